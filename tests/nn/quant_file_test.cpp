// Files of quantized nets: byte-identical round trips, and every possible fault.

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/quant/codes.h>
#include <thimble/nn/quant/quantized_model.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/quant_nets.h"
#include "support/tensor_files.h"

using namespace quant_nets;

TEST_CASE("quantized files: load, then save gives the same bytes, and the net the same bits", "[quant]") {
  const files_test::TemporaryFolder folder;
  for (const char* name : {"resnet18", "googlenet", "mlp"}) {
    Net net(name, {.width = 8});
    QuantizedModel quantized(*net.folded,
                             net.scales({Calibrator::mse, 99.99, Activations::symmetric, WeightScales::per_tensor}));
    quantized.save(folder / "a", {{"model", name}});
    const auto loaded = QuantizedModel::load(folder / "a");
    CHECK(loaded->metadata().at("model") == name);
    CHECK((to_host<float>((*loaded)(net.x)) == to_host<float>(quantized(net.x))));
    loaded->save(folder / "b");
    CHECK((files_test::read_text_file(folder / "a") == files_test::read_text_file(folder / "b")));
    CHECK_THROWS_AS(quantized.save(folder / "c", {{"program", "x"}}), ValueError);
  }
}

TEST_CASE("quantized files: what is missing or wrong is named", "[quant]") {
  const files_test::TemporaryFolder folder;
  Net net("mlp", {.width = 8});
  QuantizedModel quantized(*net.folded, net.scales());
  quantized.save(folder / "good");
  const SafetensorsReader good(folder / "good");
  // Writes the file again with changes.
  const auto rewrite =
      [&](const std::function<void(std::map<std::string, std::vector<std::byte>>&, std::vector<SafetensorsEntry>&,
                                   std::map<std::string, std::string>&)>& change) {
        std::map<std::string, std::vector<std::byte>> bytes;
        std::vector<SafetensorsEntry> entries = good.header().tensors;
        std::map<std::string, std::string> metadata = good.header().metadata;
        for (const SafetensorsEntry& e : entries) {
          bytes[e.name].resize(e.bytes());
          good.read(e, bytes[e.name]);
        }
        change(bytes, entries, metadata);
        SafetensorsWriter out(folder / "bad", entries, metadata);
        for (const SafetensorsEntry& e : entries) out.append(e.name, bytes[e.name]);
        out.commit();
        QuantizedModel::load(folder / "bad");
      };
  const auto drop = [](const std::string& name) {
    return
        [name](auto&, auto& entries, auto&) { std::erase_if(entries, [&](const auto& e) { return e.name == name; }); };
  };
  CHECK_NOTHROW(rewrite([](auto&, auto&, auto&) {}));
  for (const char* name : {"weight_scales", "biases", "activation_scales", "zero_points", "fc1.weight"}) {
    INFO(name);
    CHECK_THROWS_AS(rewrite(drop(name)), ValueError);
  }
  for (const char* key : {"format", "program", "activations", "weights"}) {
    INFO(key);
    CHECK_THROWS_AS(rewrite([&](auto&, auto&, auto& metadata) { metadata.erase(key); }), ValueError);
    CHECK_THROWS_AS(rewrite([&](auto&, auto&, auto& metadata) { metadata[key] = "other"; }), ValueError);
  }
  const auto number = [](const char* name, float value) {
    return [=](auto& bytes, auto&, auto&) { std::memcpy(bytes[name].data(), &value, 4); };
  };
  for (const float bad :
       {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    CHECK_THROWS_AS(rewrite(number("weight_scales", bad)), ValueError);
    CHECK_THROWS_AS(rewrite(number("activation_scales", bad)), ValueError);
  }
  for (const char* const name : {"activation_scales", "zero_points"}) {  // flattening changes no codes
    CHECK_THROWS_WITH(rewrite([&](auto& bytes, auto&, auto&) { bytes[name][0] ^= std::byte{1}; }),
                      Catch::EndsWith(": values 0 and 1 share their codes and have different scales"));
  }
  CHECK_THROWS_AS(rewrite([](auto& bytes, auto& entries, auto&) {
                    entries.push_back({"extra", SafetensorsDType::u8, {1}});
                    bytes["extra"].resize(1);
                  }),
                  ValueError);
  CHECK_THROWS_AS(rewrite([](auto&, auto& entries, auto&) {
                    for (auto& e : entries) {
                      if (e.name == "biases") e.dtype = SafetensorsDType::f32;
                    }
                  }),
                  DTypeError);
  CHECK_THROWS_AS(rewrite([](auto& bytes, auto& entries, auto&) {
                    for (auto& e : entries) {
                      if (e.name != "biases") continue;
                      e.shape[0] -= 1;
                      bytes["biases"].resize(bytes["biases"].size() - 4);
                    }
                  }),
                  ShapeError);
  CHECK_THROWS_WITH(rewrite([](auto&, auto& entries, auto&) {
                      for (auto& e : entries) {
                        if (e.name == "fc1.weight") e.shape = {e.shape[0] * e.shape[1]};
                      }
                    }),
                    "quantized net: " + (folder / "bad") + ": 'fc1.weight' has 1 sizes, (O, I) is needed");
  CHECK_THROWS_AS(QuantizedModel::load(folder / "none"), FileError);
}

TEST_CASE("quantized files: biases with which a sum leaves 32 bits are refused", "[quant]") {
  // Codes 255 against the positive weights, then against the negative weights: both extremes, exactly.
  const Step step{StepKind::linear, "fc", {0}, -1, false, {}};
  const std::vector<std::vector<std::int8_t>> rows{{127, -128, 3}, {-1, -2, -3}, {0, 0, 0}};
  const CodeScale in{0.5F, 128, 0, 255};
  const auto pack = [&](std::size_t row, std::int64_t bias) {
    return pack_codes(from_host(rows[row], {1, 3}), full({1}, 1),
                      from_host(std::vector{static_cast<std::int32_t>(bias)}, {1}), step, in, nullptr);
  };
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::int64_t positive = 0, negative = 0;
    std::vector<std::uint8_t> highest, lowest;
    for (const std::int8_t w : rows[row]) {
      (w > 0 ? positive : negative) += w;
      highest.push_back(w > 0 ? 255 : 0);
      lowest.push_back(w < 0 ? 255 : 0);
    }
    const std::int64_t most = INT32_MAX - 255 * positive, least = INT32_MIN - 255 * negative;
    const auto result = [&](const std::vector<std::uint8_t>& codes, std::int64_t bias) {
      return to_host<float>(
          conv_codes({from_host(codes, {1, 3}), in}, pack(row, bias), step, nullptr, nullptr).tensor)[0];
    };
    INFO(row);
    CHECK(result(highest, most) == static_cast<float>(INT32_MAX) * 0.5F);
    CHECK(result(lowest, least) == static_cast<float>(INT32_MIN) * 0.5F);
    const auto refused = [&](std::int64_t bias) {
      CHECK(files_test::error_of([&] { pack(row, bias); }) ==
            "ValueError quantized net: step fc: bias 0 is " + std::to_string(bias) +
                ", and with it sums of products leave 32 bits; expected " + std::to_string(least) + " to " +
                std::to_string(most));
    };
    if (most < INT32_MAX) refused(most + 1);
    if (most < INT32_MAX) refused(INT32_MAX);
    if (least > INT32_MIN) refused(least - 1);
    if (least > INT32_MIN) refused(INT32_MIN);
  }
}

TEST_CASE("quantized files: numbers that compute wrong ones are refused by name", "[quant]") {
  const files_test::TemporaryFolder folder;
  for (const char* const name : {"mlp", "resnet18"}) {
    Net net(name, {.width = 8});
    QuantizedModel quantized(*net.folded, net.scales());
    quantized.save(folder / "good");
    const auto error = [&](const char* tensor, std::size_t at, auto value) {
      files_test::rewrite_element(folder / "good", folder / "bad", tensor, at, value);
      return files_test::error_of([&] { QuantizedModel::load(folder / "bad"); });
    };
    std::string first, residual;
    std::size_t input = 0;
    for (const Step& s : quantized.program().steps) {
      if (first.empty() && s.has_weight()) first = s.name;
      if (residual.empty() && s.residual >= 0) residual = s.name, input = static_cast<std::size_t>(s.residual);
    }
    const std::string begin = "ValueError quantized net: ";
    for (const std::int32_t bias : {INT32_MAX, INT32_MIN}) {
      CHECK(
          error("biases", 1, bias).starts_with(begin + "step " + first + ": bias 1 is " + std::to_string(bias) + ", "));
    }
    CHECK(error("weight_scales", 2, -1.0F) ==
          begin + "step " + first + ": weight scale 2 is -1; expected finite numbers above 0");
    CHECK(error("activation_scales", 0, 1e-45F) ==
          begin + (folder / "bad") + ": activation scale 0 is 1.4013e-45; expected finite numbers from 2^-126 on");
    if (std::string(name) == "mlp") continue;
    REQUIRE(!residual.empty());
    CHECK(error("activation_scales", input, 3e38F).find(": its scales are too far apart for f32: ") !=
          std::string::npos);
  }
}

TEST_CASE("quantized files: scales of a layer that are too far apart are refused", "[quant]") {
  const Step step{StepKind::linear, "fc", {0}, -1, false, {}};
  const auto pack = [&](float in, float filter, float out) {
    const CodeScale to{out, 128, 0, 255};
    return files_test::error_of([&] {
      pack_codes(zeros({2, 3}, DType::i8), from_host(std::vector{1.0F, filter}, {2}), zeros({2}, DType::i32), step,
                 {in, 128, 0, 255}, &to);
    });
  };
  CHECK(pack(1, 3e38F, 1) == "no error");
  CHECK(pack(1e-30F, 3e38F, 1e-30F) == "no error");
  CHECK(pack(2, 3e38F, 1) ==
        "ValueError quantized net: step fc: its scales are too far apart for f32: filter 1 has 3e+38, the input 2, the "
        "result 1; input x filter / result must be finite");
  CHECK(pack(1e30F, 1, 1e-30F).find("filter 0 has 1, the input 1e+30, the result 1e-30; ") != std::string::npos);
}

TEST_CASE("quantized nets: sums of values whose scales are too far apart are refused", "[quant]") {
  Net net("resnet18", {.width = 8});
  Scales scales = net.scales();
  const auto& steps = net.folded->program().steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != StepKind::average) continue;
    scales.values[i + 1].scale = 0x1p-126F;
    const int of = steps[i].inputs[0];
    scales.values[static_cast<std::size_t>(of)].scale = 1e30F;
    const std::string error = files_test::error_of([&] { QuantizedModel(*net.folded, scales); });
    INFO(error);
    CHECK(error.find(": its scales are too far apart for f32: value " + std::to_string(of) + " has 1e+30, the result " +
                     "1.17549e-38; 255 x value / result must be finite") != std::string::npos);
    return;
  }
  FAIL("no average");
}
