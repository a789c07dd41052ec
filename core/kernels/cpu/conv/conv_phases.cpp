#include <thimble/core/kernels/cpu/conv/conv_phases.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::conv_detail {
namespace phases_detail {

Phase phase_of(std::int64_t phase, std::int64_t size, std::int64_t out_size, std::int64_t kernel, std::int64_t stride,
               std::int64_t pad, std::int64_t dilation) noexcept {
  Phase result;
  result.axis.grid = size > phase ? (size - phase - 1) / stride + 1 : 0;
  result.axis.size = out_size;
  result.axis.taps = 0;
  const std::int64_t divisor = std::gcd(stride, dilation);
  result.tap_stride = stride / divisor;
  for (std::int64_t tap = 0; tap < std::min(kernel, stride); ++tap) {
    if ((phase + pad - tap * dilation) % stride != 0) continue;
    result.axis.taps = (kernel - 1 - tap) / result.tap_stride + 1;
    result.last_tap = tap + (result.axis.taps - 1) * result.tap_stride;
    result.axis.origin = (phase + pad - result.last_tap * dilation) / stride;
    result.axis.tap_step = dilation / divisor;
    break;
  }
  return result;
}

}  // namespace phases_detail

Phase phase_h(const ConvShape& s, std::int64_t phase) noexcept {
  return phases_detail::phase_of(phase, s.height, s.out_height(), s.kernel_h, s.stride_h, s.pad_top, s.dilation_h);
}
Phase phase_w(const ConvShape& s, std::int64_t phase) noexcept {
  return phases_detail::phase_of(phase, s.width, s.out_width(), s.kernel_w, s.stride_w, s.pad_left, s.dilation_w);
}

void clear_unreached(const ConvInputGradArgs& args) noexcept {
  const ConvShape& s = args.shape;
  const auto is_reached = [&](const Phase& phase) { return s.filters > 0 && phase.axis.taps > 0; };
  const std::int64_t pixel_bytes = s.channels * static_cast<std::int64_t>(size_of(args.out_dtype));
  bool reaches_all = true;
  for (std::int64_t y = 0; y < s.stride_h; ++y) reaches_all = reaches_all && is_reached(phase_h(s, y));
  for (std::int64_t x = 0; x < s.stride_w; ++x) reaches_all = reaches_all && is_reached(phase_w(s, x));
  if (reaches_all || pixel_bytes == 0) return;
  const auto clear = [&](std::int64_t line, std::int64_t pixel, std::int64_t pixels) {
    std::byte* const first = static_cast<std::byte*>(args.dx) + (line * s.width + pixel) * pixel_bytes;
    std::memset(first, 0, static_cast<std::size_t>(pixels * pixel_bytes));
  };
  parallel_for(s.images * s.height, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      if (!is_reached(phase_h(s, line % s.height % s.stride_h))) {
        clear(line, 0, s.width);
        continue;
      }
      for (std::int64_t x = 0; x < s.stride_w; ++x) {
        if (is_reached(phase_w(s, x))) continue;
        for (std::int64_t pixel = x; pixel < s.width; pixel += s.stride_w) clear(line, pixel, 1);
      }
    }
  });
}

bool folds_phases(const ConvShape& s) noexcept {
  return s.stride_h * s.stride_w > 1 && s.dilation_h == 1 && s.dilation_w == 1 &&
         s.stride_h * s.stride_w * (s.channels / s.groups) <= max_folded_columns && s.filters > 0;
}

}  // namespace thimble::kernels::conv_detail
