#pragma once
// A model for inference alone: a list of steps, each of which computes one value.
// Value 0 is the input (N, H, W, C), value i + 1 the result of step i; the last one is the net's result.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

/// Of a convolution or a pool, along (H, W).
struct StepWindow {
  std::array<std::int64_t, 2> kernel{1, 1}, stride{1, 1}, padding{0, 0}, dilation{1, 1};
  bool rounds_up = false;  ///< pools: the number of windows is rounded up
  friend bool operator==(const StepWindow&, const StepWindow&) = default;
};

struct Step {
  StepKind kind = StepKind::conv;
  std::string name;         ///< the layer's, "layer1.0.conv1"; of weights also in files
  std::vector<int> inputs;  ///< values
  int residual = -1;        ///< conv: a value that is added to the result, before a relu
  bool has_relu = false;    ///< conv, linear, add
  StepWindow window;
  friend bool operator==(const Step&, const Step&) = default;

  bool has_weight() const noexcept { return kind == StepKind::conv || kind == StepKind::linear; }
};

struct Program {
  std::vector<Step> steps;
  friend bool operator==(const Program&, const Program&) = default;

  int values() const noexcept { return static_cast<int>(steps.size()) + 1; }
  /// The step after which a value is not read any more; steps.size() for the result.
  std::vector<int> last_uses() const;
  /// Values that must have one scale, because codes pass between them unchanged (pools, concatenation, relu, flatten):
  /// for each value the smallest value of its group.
  std::vector<int> scale_groups() const;
};

/// One line of text for each step, as files hold it: `conv layer1.0.conv1 3 k3x3 s2x2 p1x1 +1 relu`.
std::string to_text(const Program& program);
/// Reads what to_text() writes. Throws ValueError naming the line.
Program parse_program(std::string_view text);

}  // namespace thimble::nn::quant
