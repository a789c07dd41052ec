#pragma once
// A model for inference: a list of steps, each of which computes one value.
// Value 0 is the input (N, H, W, C), value i + 1 the result of step i; the last value is the net's result.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/kernels/quant_codes.h>

namespace thimble::nn::quant {

enum class StepKind : std::uint8_t {
  conv,      ///< convolution, with a bias
  linear,    ///< (N, I) -> (N, O), with a bias
  max_pool,  ///< the largest element of each window
  average,   ///< mean over all pixels: (N, H, W, C) -> (N, C)
  concat,    ///< along the channels
  add,
  relu,
  flatten  ///< (N, ...) -> (N, all)
};

/// The window of a convolution or a pool, along (H, W).
struct StepWindow {
  std::array<std::int64_t, 2> kernel{1, 1}, stride{1, 1}, padding{0, 0}, dilation{1, 1};
  bool rounds_up = false;  ///< pools: rounds the number of windows up
  friend bool operator==(const StepWindow&, const StepWindow&) = default;
};

struct Step {
  StepKind kind = StepKind::conv;
  std::string name;         ///< the layer's, "layer1.0.conv1"; also names its weights in files
  std::vector<int> inputs;  ///< values
  int residual = -1;        ///< conv: a value added to the result before a relu, or -1
  bool has_relu = false;    ///< conv, linear, add
  StepWindow window;
  friend bool operator==(const Step&, const Step&) = default;

  bool has_weight() const noexcept { return kind == StepKind::conv || kind == StepKind::linear; }
};

struct Program {
  std::vector<Step> steps;
  friend bool operator==(const Program&, const Program&) = default;

  int values() const noexcept { return static_cast<int>(steps.size()) + 1; }
  /// The last step that reads each value; steps.size() for the result.
  std::vector<int> last_uses() const;
  /// Groups of values that must share a scale, because codes pass between them unchanged (pools, concatenation, relu,
  /// flatten): for each value the smallest value of its group.
  std::vector<int> scale_groups() const;
};

/// One line of text for each step, as in files: `conv layer1.0.conv1 3 k3x3 s2x2 p1x1 +1 relu`.
std::string to_text(const Program& program);
/// Inverse of to_text(). Throws ValueError naming the line.
Program parse_program(std::string_view text);

// ---- Scales

using kernels::CodeScale;

/// Codes of values. asymmetric: 0 .. 255 over [min(low, 0), max(high, 0)], with a zero point. symmetric: -127 .. 127
/// over +- max(|low|, |high|), stored as u8 around a zero point of 128.
enum class Activations : std::uint8_t { asymmetric, symmetric };
/// Codes of weights are i8 within +-127, with a scale amax / 127 per filter or per layer.
enum class WeightScales : std::uint8_t { per_channel, per_tensor };

/// The scales of all values of a net (Program), and the kind of its weights' scales.
struct Scales {
  std::vector<CodeScale> values;
  Activations activations = Activations::asymmetric;
  WeightScales weights = WeightScales::per_channel;
};

/// The scale for numbers within [low, high], extended to contain 0, which has an exact code. Throws ValueError, naming
/// the value, when a bound is not finite or the range is empty (both are 0, or its scale would be less than 2^-126).
CodeScale code_scale(double low, double high, Activations activations, std::string_view what);

/// Whether the range has a scale: code_scale() does not throw.
bool has_code_scale(double low, double high, Activations activations) noexcept;

/// "asymmetric", "symmetric"; "per_channel", "per_tensor".
std::string_view to_string(Activations activations) noexcept;
std::string_view to_string(WeightScales weights) noexcept;

}  // namespace thimble::nn::quant
