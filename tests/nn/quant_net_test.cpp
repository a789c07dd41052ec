// Folding, calibration and quantized nets, on small untrained nets: exactness, bytes, files, errors.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/quant/calibrate.h>
#include <thimble/nn/quant/error_report.h>
#include <thimble/nn/quant/quantized_model.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/near.h"
#include "support/quant_nets.h"
#include "support/tensor_files.h"

namespace quant_net_test {

using namespace quant_nets;

double largest_difference(const Tensor& a, const Tensor& b) {
  return thimble_test::largest_error(to_host<double>(b), to_host<double>(a));
}

}  // namespace quant_net_test

using namespace quant_net_test;

TEST_CASE("folding: in f64 the folded net is the net", "[quant]") {
  const NoGrad off;
  for (const models::Build build : {models::Build::fused, models::Build::textbook}) {
    for (const char* name : {"resnet18", "resnet50", "googlenet", "sharedconv"}) {
      INFO(name);
      const bool shares = std::string(name) != "sharedconv";  // its unshared twin
      Net net(name, {.width = 8, .shares_kernels = shares, .build = build}, DType::f64, 2);
      CHECK(largest_difference(net.model->forward(net.x), (*net.folded)(net.x)) < 1e-11);
    }
  }
  for (const models::Build build : {models::Build::fused, models::Build::textbook}) {
    Net net("mlp", {.width = 24, .build = build}, DType::f64);
    CHECK(net.folded->program().steps.front().kind == StepKind::flatten);
    CHECK(largest_difference(net.model->forward(net.x), (*net.folded)(net.x)) < 1e-12);
  }
}

TEST_CASE("folding: the steps are those of the net, and both builds have the same", "[quant]") {
  const Net net("resnet18", {.width = 8});
  const Program& program = net.folded->program();
  REQUIRE(program.steps.size() == 22);  // 20 convolutions with the operators fused into them, a mean, a linear layer
  CHECK(program.steps[0].name == "conv1");
  CHECK(program.steps[2].name == "layer1.0.conv2");
  CHECK(program.steps[2].residual == 1);
  CHECK(program.steps[2].has_relu);
  CHECK(program.steps[7].name == "layer2.0.conv2");
  CHECK(program.steps[7].residual == 7);  // the result of layer2.0.downsample.0
  CHECK_FALSE(program.steps[6].has_relu);
  std::string pools;  // a module that runs an operator again numbers it
  const Net googlenet("googlenet", {.width = 8});
  for (const auto& step : googlenet.folded->program().steps) {
    if (step.name.starts_with("max_pool2d")) pools += step.name + " ";
  }
  CHECK(pools == "max_pool2d max_pool2d_2 max_pool2d_3 ");
  const Net textbook("resnet18", {.width = 8, .build = models::Build::textbook});
  CHECK((textbook.folded->program() == program));
  CHECK((parse_program(to_text(program)) == program));
}

TEST_CASE("programs: text that is none is refused", "[quant]") {
  for (const char* text : {"", "conv a", "conf a 0", "conv a 1", "conv a x", "conv a 0 k3", "conv a 0 k0x1",
                           "conv a 0 q", "conv a 0 +1", "add a 0", "relu a 0 relu", "max_pool a 0 +0",
                           "linear a 0 k2x2", "conv a 0 up", "conv a 0\n\nconv b 1", "conv  0", "conv a 0,0"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_program(text), ValueError);
  }
}

TEST_CASE("nets that cannot be quantized are refused by name", "[quant]") {
  class Odd final : public nn::Layer {
   public:
    explicit Odd(int kind)
        : kind_(kind),
          conv_(child<nn::Conv2d>("conv", 4, 4, 3, Conv2dOptions{.padding = 1, .groups = kind == 0 ? 2 : 1})) {}

   protected:
    Tensor forward(const Tensor& x) override {
      const Tensor y = conv_(x);
      return kind_ == 1   ? thimble::tanh(y)
             : kind_ == 2 ? avg_pool2d(y, {})
             : kind_ == 3 ? full({1, 2, 2, 4}, 1)
                          : add(y, full({1, 4, 4, 4}, 1));
    }

   private:
    int kind_;
    nn::Conv2d& conv_;
  };
  const std::string others =
      ": this operator cannot be quantized; conv2d, batch norm behind it, relu, add, max_pool2d, global_avg_pool, "
      "concat of channels, linear and flattening can";
  const std::string whys[] = {"conv2d at conv: expected 1 group, got 2", "tanh" + others, "avg_pool2d" + others,
                              "the net's result is not made by any of its operators",
                              "add: an operand is not made from the input; such nets cannot be quantized"};
  for (int kind = 0; kind < 5; ++kind) {
    INFO(kind);
    Odd odd(kind);
    const Tensor x = images({1, 4, 4, 4}, 1);
    CHECK_THROWS_WITH(FoldedNet(
                          odd, [&](const Tensor& t) { return odd(t); }, x),
                      "quantize: " + whys[kind]);
    CHECK(odd.is_training());
  }
}

TEST_CASE("calibration: ranges of known numbers", "[quant]") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(200'000);
  for (float& v : x) v = normal(random);
  x[0] = 40;  // an outlier
  x[1] = -9;
  const auto histogram = [](const std::vector<float>& list) {
    Histogram h;
    h.widen(list, "x");
    h.count(list);
    return h;
  };
  const Histogram h = histogram(x);
  const auto range = [&](Calibrator c, Activations a = Activations::asymmetric) { return h.range(c, a, 99.99); };
  CHECK(range(Calibrator::max).low == -9);
  CHECK(range(Calibrator::max).high == 40);
  CHECK(range(Calibrator::percentile).low == Approx(-3.89).margin(0.3));  // 0.005 % on each side
  CHECK(range(Calibrator::percentile).high == Approx(3.89).margin(0.3));
  for (const Calibrator c : {Calibrator::entropy, Calibrator::mse}) {
    for (const Activations a : {Activations::asymmetric, Activations::symmetric}) {
      CHECK(range(c, a).high > 2);
      CHECK(range(c, a).high < (c == Calibrator::mse ? 35 : 12));  // a squared error weighs an outlier heavily
      CHECK(range(c, a).low >= (c == Calibrator::mse ? -8 : -9));  // both ends are clipped
      CHECK(range(c, a).low < -2);
    }
  }
  std::vector<float> even(100'000);
  for (std::size_t i = 0; i < even.size(); ++i) even[i] = static_cast<float>(i) / 100'000;
  const Histogram flat = histogram(even);
  CHECK(flat.range(Calibrator::entropy, Activations::asymmetric, 99.99).high > 0.9);
  CHECK(flat.range(Calibrator::mse, Activations::asymmetric, 99.99).high > 0.97);
  CHECK(flat.range(Calibrator::percentile, Activations::asymmetric, 90).high == Approx(0.9).margin(1e-3));
  CHECK(flat.range(Calibrator::percentile, Activations::asymmetric, 99.99).low == 0);
  CHECK(flat.range(Calibrator::percentile, Activations::asymmetric, 100).high == even.back());
  std::vector<float> apart(10, 1.0f);
  apart.back() = 100;  // the tenth that 90 % cuts off
  CHECK(histogram(apart).range(Calibrator::percentile, Activations::asymmetric, 90).high < 2);
  for (const double percent : {0.0, -1.0, 101.0, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_AS(flat.range(Calibrator::percentile, Activations::asymmetric, percent), ValueError);
  }
}

TEST_CASE("calibration: scales and zero points", "[quant]") {
  const CodeScale a = code_scale(-1, 3, Activations::asymmetric, "x");
  CHECK(a.scale == static_cast<float>(4.0 / 255));
  CHECK(a.zero == 64);
  const CodeScale positive = code_scale(0.5, 2.55, Activations::asymmetric, "x");
  CHECK(positive.zero == 0);
  CHECK(positive.scale == Approx(0.01));
  const CodeScale s = code_scale(-1, 3, Activations::symmetric, "x");
  CHECK(s.scale == static_cast<float>(3.0 / 127));
  CHECK(s.zero == 128);
  CHECK(s.low == 1);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Activations kind : {Activations::asymmetric, Activations::symmetric}) {
    CHECK_THROWS_AS(code_scale(0, 0, kind, "x"), ValueError);
    CHECK_THROWS_AS(code_scale(0, 1e-44, kind, "x"), ValueError);
    CHECK_THROWS_AS(code_scale(2, 1, kind, "x"), ValueError);
    CHECK(has_code_scale(2, 2, kind));
    CHECK_FALSE(has_code_scale(2, 1, kind));
    CHECK_THROWS_AS(code_scale(0, infinity, kind, "x"), ValueError);
    CHECK_THROWS_AS(code_scale(std::numeric_limits<double>::quiet_NaN(), 1, kind, "x"), ValueError);
  }
  CHECK_THROWS_AS(parse_calibrator("median"), ValueError);
  for (const Calibrator c : calibrators) CHECK(parse_calibrator(to_string(c)) == c);
}

TEST_CASE("calibration: what is not a number, or 0 throughout, is refused", "[quant]") {
  Net net("resnet18", {.width = 4});
  const auto with = [&](Tensor x) { return calibrate(*net.folded, 1, [&](std::int64_t) { return x; }); };
  CHECK_THROWS_AS(with(full({1, 16, 16, 3}, std::numeric_limits<double>::quiet_NaN())), ValueError);
  CHECK_THROWS_AS(with(full({1, 16, 16, 3}, std::numeric_limits<double>::infinity())), ValueError);
  CHECK_THROWS_AS(with(zeros({1, 16, 16, 3})), ValueError);
  CHECK_THROWS_AS(with(zeros({1, 16, 16, 3}, DType::f16)), DTypeError);
  CHECK_THROWS_AS(with(zeros({1, 16, 16, 3}, DType::f32, dry(cpu))), DeviceError);
  CHECK_THROWS_AS(calibrate(*net.folded, 0, [&](std::int64_t) { return net.x; }), ValueError);
  const auto input = [&](Calibrator c) {
    return calibrate(*net.folded, 1, [&](std::int64_t) { return net.x; }, {c, 60}).values[0].scale;
  };
  CHECK(input(Calibrator::entropy) == input(Calibrator::max));  // pictures are cut off only on request
  CHECK(input(Calibrator::percentile) < input(Calibrator::max));
  copy_into(net.folded->weight(3), full(net.folded->weight(3).shape(), std::numeric_limits<double>::quiet_NaN()));
  CHECK_THROWS_AS(QuantizedModel(*net.folded, unit_scales(net.folded->program())), ValueError);
  CHECK_THROWS_AS(QuantizedModel(*net.folded, Scales{}), ValueError);
}

TEST_CASE("quantized nets compute what training with fake quantization computes", "[quant]") {
  const NoGrad off;
  for (const char* name : {"resnet18", "googlenet", "mlp"}) {
    for (const Activations activations : {Activations::asymmetric, Activations::symmetric}) {
      for (const WeightScales weights : {WeightScales::per_channel, WeightScales::per_tensor}) {
        // All four pairs for one of the nets.
        const bool is_pair = (activations == Activations::symmetric) == (weights == WeightScales::per_tensor);
        if (!is_pair && std::string(name) != "resnet18") continue;
        INFO(name << " " << to_string(activations) << " " << to_string(weights));
        Net net(name, {.width = 8});
        const Scales scales = net.scales({Calibrator::max, 100, activations, weights});
        QuantizedModel quantized(*net.folded, scales);
        net.folded->fake_quantize(scales);
        Scales few = scales;
        few.values.pop_back();
        CHECK_THROWS_WITH(net.folded->fake_quantize(few), "fake_quantize: " + std::to_string(few.values.size()) +
                                                              " scales for " + std::to_string(scales.values.size()) +
                                                              " values");
        // Compares step by step from equal codes: over the whole net, differences in rounding would add up.
        std::vector<Tensor> values(static_cast<std::size_t>(quantized.program().values()));
        quantized.run(net.x, [&](int value, const Tensor& t) { values[static_cast<std::size_t>(value)] = t; });
        for (std::size_t i = 0; i < quantized.program().steps.size(); ++i) {
          INFO(quantized.program().steps[i].name);
          const auto ours = to_host<float>(values[i + 1]), theirs = to_host<float>(net.folded->compute(i, values));
          const bool is_last = i + 1 == quantized.program().steps.size();
          const float code = is_last ? 0.01F : scales.values[i + 1].scale;
          std::size_t different = 0;
          double most = 0;
          for (std::size_t k = 0; k < ours.size(); ++k) {
            most = thimble_test::worse(most, std::fabs(ours[k] - theirs[k]));
            different += std::fabs(ours[k] - theirs[k]) > 0.5F * code;
          }
          CHECK(most < 1.01F * code);
          // The mean of a few codes often lies halfway between two.
          if (quantized.program().steps[i].kind == StepKind::average) continue;
          CHECK(static_cast<double>(different) <= 2 + 0.01 * static_cast<double>(ours.size()));
        }
        net.folded->fake_quantize({});
        const auto lost = compare(*net.folded, quantized, net.x);
        CHECK(lost.back().signal_to_noise_db > 15);
        CHECK(lost.back().cosine > 0.98);
        CHECK(lost.back().signal_to_noise_db < 60);
      }
    }
  }
}

TEST_CASE("quantized nets have the same bits everywhere, and leave alone what they are given", "[quant]") {
  Net net("googlenet", {.width = 8});
  QuantizedModel quantized(*net.folded, net.scales());
  kernel_test::Settings settings;
  const auto before = to_host<float>(net.x);
  const auto expected = to_host<float>(quantized(net.x));
  for (const kernels::Isa set : kernel_test::supported()) {
    for (const int threads : {1, 3}) {
      kernels::set_isa(set);
      set_thread_count(threads);
      CHECK((to_host<float>(quantized(net.x)) == expected));
    }
  }
  CHECK((to_host<float>(net.x) == before));
  CHECK_THROWS_AS(quantized(images({1, 16, 16, 4}, 1)), ShapeError);
  CHECK_THROWS_AS(quantized(images({1, 16, 16, 3}, 1, DType::f64)), DTypeError);
  CHECK_THROWS_AS(quantized(full({1, 16, 16, 3}, std::numeric_limits<double>::quiet_NaN())), ValueError);
}

TEST_CASE("quantized nets: filters whose weights are next to nothing keep their bias", "[quant]") {
  Step step;
  step.window.kernel = {1, 1};
  const Tensor weight = from_host(std::vector<float>{1e-20F, -1e-20F, 0, 0, 1, 0.5F}, {3, 1, 1, 2});
  const Tensor bias = from_host(std::vector<float>{2, -3, 0.25F}, {3});
  const CodeScale in{0.1F, 3, 0, 255};
  const PackedWeights packed = pack_weights(weight, bias, step, in, nullptr, WeightScales::per_channel);
  const Tensor x = from_host(std::vector<std::uint8_t>{13, 3}, {1, 1, 1, 2});
  const auto y = to_host<float>(conv_codes({x, in}, packed, step, nullptr, nullptr).tensor);
  CHECK(y[0] == Approx(2));
  CHECK(y[1] == Approx(-3));
  CHECK(y[2] == Approx(1.25).epsilon(1e-3));
  CHECK_THROWS_AS(pack_weights(zeros({3, 1, 1, 2}, DType::f16), zeros({3}, DType::f16), step, in, nullptr,
                               WeightScales::per_channel),
                  DTypeError);
  CHECK_THROWS_AS(pack_weights(weight, zeros({2}), step, in, nullptr, WeightScales::per_channel), ShapeError);
  CHECK_THROWS_AS(pack_weights(weight, full({3}, std::numeric_limits<double>::infinity()), step, in, nullptr,
                               WeightScales::per_channel),
                  ValueError);
  step.kind = StepKind::linear;
  CHECK_THROWS_AS(pack_weights(zeros({1, 65794}), zeros({1}), step, in, nullptr, WeightScales::per_channel),
                  ShapeError);
}

TEST_CASE("quantized nets need what a dry run says, event by event", "[quant]") {
  const auto events = [](memory::Device device) {
    const memory::Stack stack = memory::make_resource(device, {.trace = true});
    const ResourceScope scope(stack.top);
    const auto model = models::make_model("googlenet", {.image = 16, .width = 8}, {device});
    FoldedNet net(
        *model, [&](const Tensor& t) { return model->forward(t); }, zeros({1, 16, 16, 3}, DType::f32, device));
    QuantizedModel quantized(net, unit_scales(net.program()));
    quantized(zeros({5, 16, 16, 3}, DType::f32, device));
    return stack.trace->events();
  };
  CHECK((events(cpu) == events(dry(cpu))));
}

TEST_CASE("quantized net: the error of numbers that are none has no sign", "[quant]") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  struct Row {
    std::vector<float> exact, there;
    double decibels, cosine;
  };
  const double none = nan, equal = infinity;
  const Row rows[] = {{{1, 2}, {1, 2}, equal, 1},     {{0, 0}, {0, 0}, equal, 1},
                      {{0, 0}, {1, 1}, -equal, 0},    {{3, 4}, {3, 0}, 10 * std::log10(25.0 / 16), 0.6},
                      {{1, nan}, {1, 2}, none, none}, {{1, 2}, {-nan, 2}, none, none},
                      {{-nan, 0}, {0, 0}, none, 0},   {{1, infinity}, {1, 2}, none, none}};
  for (const Row& row : rows) {
    INFO(row.exact[0] << ", " << row.exact[1] << " and " << row.there[0] << ", " << row.there[1]);
    const StepError error = step_error("x", row.exact, row.there);
    for (const auto& [got, expected] :
         {std::pair{error.signal_to_noise_db, row.decibels}, {error.cosine, row.cosine}}) {
      CHECK(std::isnan(got) == std::isnan(expected));
      if (std::isnan(got)) CHECK_FALSE(std::signbit(got));
      if (std::isinf(expected)) CHECK(got == expected);
      if (std::isfinite(expected)) CHECK(got == Approx(expected));
    }
  }
}

// ---- Ranges of codes at the ends of f32: which have a scale, and the messages for the others.

namespace {

using namespace quant_nets;
using files_test::error_of;

Histogram of(const std::vector<float>& list) {
  Histogram h;
  h.widen(list, "x");
  h.count(list);
  return h;
}

/// 1000 numbers from low to high.
std::vector<float> even(double low, double high) {
  std::vector<float> list;
  for (int i = 0; i <= 1000; ++i) list.push_back(static_cast<float>(low + (high - low) * i / 1000));
  return list;
}

}  // namespace

TEST_CASE("calibration: every calibrator has a scale for what max has one for", "[quant]") {
  constexpr double least = std::numeric_limits<float>::min(), most = std::numeric_limits<float>::max();
  for (const Activations activations : {Activations::asymmetric, Activations::symmetric}) {
    for (const auto& [low, high] :
         {std::pair{0.0, 1e-34}, std::pair{-1e-34, 1e-35}, std::pair{0.0, 260 * least}, std::pair{-260 * least, 0.0},
          std::pair{0.0, most}, std::pair{-most, most}, std::pair{0.5, 0.5}, std::pair{-0.5, -0.5}}) {
      const Histogram h = of(even(low, high));
      for (const Calibrator calibrator : calibrators) {
        INFO(to_string(calibrator) << " of " << low << " to " << high);
        const Histogram::Range range = h.range(calibrator, activations, 99.99);
        const CodeScale scale = code_scale(range.low, range.high, activations, "x");
        CHECK(static_cast<double>(scale.scale) >= least);
        CHECK(range.low >= std::min(h.seen().low, 0.0));
        CHECK(range.high <= std::max(h.seen().high, 0.0));
      }
    }
  }
}

TEST_CASE("calibration: a range without a scale is an error that names layer and ends", "[quant]") {
  for (const Calibrator calibrator : calibrators) {
    const Histogram h = of(even(0, 1e-37));
    const Histogram::Range range = h.range(calibrator, Activations::asymmetric, 99.99);
    const std::string error = error_of([&] { code_scale(range.low, range.high, Activations::asymmetric, "layer1.0"); });
    INFO(error);
    CHECK(error.starts_with("ValueError quantize: the range of layer1.0 is 0 to "));
    CHECK(error.ends_with("e-38: it is too narrow: its scale would be less than 2^-126") !=
          error.ends_with("is 0 to 1e-37: it is too narrow: its scale would be less than 2^-126"));
  }
  Net net("mlp", {.width = 8});
  for (const Calibrator calibrator : calibrators) {
    const auto calibrated = [&](float value) {
      const Tensor x = full(net.x.shape(), static_cast<double>(value));
      return error_of([&] { calibrate(*net.folded, 1, [&](std::int64_t) { return x; }, {calibrator}); });
    };
    CHECK(
        calibrated(0) ==
        "ValueError quantize: the range of the input is 0 to 0: it is empty, so there is no scale; all numbers are 0");
    CHECK(calibrated(1e-40F).starts_with("ValueError quantize: the range of the input is "));
    CHECK(calibrated(1e-34F) == "no error");
    CHECK(calibrated(std::numeric_limits<float>::infinity()) ==
          "ValueError calibrate: the input has the value inf; expected finite numbers");
  }
}
