#include <thimble/nn/quant/scale.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <thimble/core/error.h>
#include <thimble/memory/units.h>

namespace thimble::nn::quant {

namespace {

/// The scale of a range that is finite and the right way round.
float scale_of(double low, double high, Activations activations) noexcept {
  low = std::min(low, 0.0);
  high = std::max(high, 0.0);
  return static_cast<float>(activations == Activations::symmetric ? std::max(-low, high) / 127 : (high - low) / 255);
}
bool is_wide_enough(float scale) noexcept { return scale >= std::numeric_limits<float>::min(); }

}  // namespace

bool has_code_scale(double low, double high, Activations activations) noexcept {
  if (!std::isfinite(low) || !std::isfinite(high) || low > high) return false;
  const float scale = scale_of(low, high, activations);
  return is_wide_enough(scale) && std::isfinite(scale);
}

CodeScale code_scale(double low, double high, Activations activations, std::string_view what) {
  const auto refuse = [&](const char* why) {
    throw ValueError("quantize: the range of " + std::string(what) + " is " + format_short(low) + " to " +
                     format_short(high) + ": " + why);
  };
  if (!std::isfinite(low) || !std::isfinite(high)) refuse("it must be finite");
  if (low > high) refuse("its ends are the wrong way round");
  CodeScale s;
  s.scale = scale_of(low, high, activations);
  if (low == 0 && high == 0) refuse("it is empty, so there is no scale; all numbers are 0");
  if (!is_wide_enough(s.scale)) refuse("it is too narrow: its scale would be less than 2^-126");
  if (!std::isfinite(s.scale)) refuse("it is too wide");
  if (activations == Activations::symmetric) return {s.scale, 128, 1, 255};
  const double zero = std::nearbyint(-std::min(low, 0.0) / static_cast<double>(s.scale));
  s.zero = static_cast<int>(std::clamp(zero, 0.0, 255.0));
  return s;
}

std::string_view to_string(Activations activations) noexcept {
  return activations == Activations::asymmetric ? "asymmetric" : "symmetric";
}
std::string_view to_string(WeightScales weights) noexcept {
  return weights == WeightScales::per_channel ? "per_channel" : "per_tensor";
}

}  // namespace thimble::nn::quant
