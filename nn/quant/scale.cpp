#include <thimble/nn/quant/scale.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <thimble/core/error.h>

namespace thimble::nn::quant {

CodeScale code_scale(double low, double high, Activations activations, std::string_view what) {
  const auto refuse = [&](const char* why) {
    throw ValueError("quantize: the range of " + std::string(what) + " is " + std::to_string(low) + " to " +
                     std::to_string(high) + ": " + why);
  };
  if (!std::isfinite(low) || !std::isfinite(high)) refuse("it must be finite");
  if (low > high) refuse("its ends are the wrong way round");
  low = std::min(low, 0.0);
  high = std::max(high, 0.0);
  const bool is_symmetric = activations == Activations::symmetric;
  const double width = is_symmetric ? std::max(-low, high) / 127 : (high - low) / 255;
  CodeScale s;
  s.scale = static_cast<float>(width);
  if (!(s.scale >= std::numeric_limits<float>::min())) refuse("it is empty, so there is no scale; all numbers are 0");
  if (!std::isfinite(s.scale)) refuse("it is too wide");
  if (is_symmetric) return {s.scale, 128, 1, 255};
  s.zero = static_cast<int>(std::clamp(std::nearbyint(-low / static_cast<double>(s.scale)), 0.0, 255.0));
  return s;
}

std::string_view to_string(Activations activations) noexcept {
  return activations == Activations::asymmetric ? "asymmetric" : "symmetric";
}
std::string_view to_string(WeightScales weights) noexcept {
  return weights == WeightScales::per_channel ? "per_channel" : "per_tensor";
}

}  // namespace thimble::nn::quant
