// Ranges of codes at the ends of f32: which have a scale, and what is said of those that have none.

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/quant/calibrate.h>

#include "support/catch.h"
#include "support/quant_nets.h"
#include "support/tensor_files.h"

namespace quant_range_test {

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

}  // namespace quant_range_test

using namespace quant_range_test;

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
