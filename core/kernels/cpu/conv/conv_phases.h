#pragma once
// The input's gradient of a convolution with a stride, phase by phase: every input pixel belongs to one phase, and the
// same taps reach all pixels of a phase.

#include <cstdint>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/conv/conv_operand.h>

namespace thimble::kernels::conv_detail {

/// Along one axis: input pixels phase, phase + stride, ... and the taps that reach them. From out * stride = in + pad -
/// tap * dilation follows that the taps are an arithmetic progression, and so are the output pixels that each of them
/// meets. Without a stride phase 0 is all pixels and all taps.
struct Phase {
  WindowAxis axis;              // over dy, the last tap first
  std::int64_t last_tap = 0;    // in the kernel
  std::int64_t tap_stride = 1;  // in the kernel
};
Phase phase_h(const ConvShape& s, std::int64_t phase) noexcept;
Phase phase_w(const ConvShape& s, std::int64_t phase) noexcept;

/// dx = 0 where no tap arrives.
void clear_unreached(const ConvInputGradArgs& args) noexcept;

/// Whether all phases are columns of one product instead, because a single phase has too few channels for a vector.
inline constexpr std::int64_t max_folded_columns = 16;
bool folds_phases(const ConvShape& s) noexcept;

}  // namespace thimble::kernels::conv_detail
