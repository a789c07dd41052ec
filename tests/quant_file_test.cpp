// Files of quantized nets: byte-identical round trips, and every way in which one can be wrong.

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/quant/quantized_model.h>

#include "catch.h"
#include "files.h"
#include "quant_nets.h"

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
  CHECK_THROWS_AS(rewrite(number("activation_scales", 3.5F)), ValueError);  // flattening changes no codes
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
  CHECK_THROWS_AS(QuantizedModel::load(folder / "none"), FileError);
}
