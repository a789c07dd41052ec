#pragma once
// How the values of a net become codes.

#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/kernels/quant_codes.h>

namespace thimble::nn::quant {

using kernels::CodeScale;

/// Codes of values. asymmetric: 0 .. 255 over [min(low, 0), max(high, 0)], with a zero point. symmetric: -127 .. 127
/// over +- max(|low|, |high|), stored as u8 around a zero point of 128.
enum class Activations : std::uint8_t { asymmetric, symmetric };
/// Codes of weights are i8 within +-127, with a scale amax / 127 for each filter, or one for all of a layer.
enum class WeightScales : std::uint8_t { per_channel, per_tensor };

/// The scales of all values of a net (Program), and how its weights get theirs.
struct Scales {
  std::vector<CodeScale> values;
  Activations activations = Activations::asymmetric;
  WeightScales weights = WeightScales::per_channel;
};

/// The scale for numbers within [low, high], which is made to hold 0: that always has a code of its own. Throws
/// ValueError, naming `what`, when a bound is not finite or the range is empty (both are 0, or its scale would be less
/// than 2^-126).
CodeScale code_scale(double low, double high, Activations activations, std::string_view what);

/// Whether code_scale() has one for the range.
bool has_code_scale(double low, double high, Activations activations) noexcept;

/// "asymmetric", "symmetric"; "per_channel", "per_tensor".
std::string_view to_string(Activations activations) noexcept;
std::string_view to_string(WeightScales weights) noexcept;

}  // namespace thimble::nn::quant
