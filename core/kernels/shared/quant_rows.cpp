#include <thimble/core/kernels/shared/quant_rows.h>

#include <algorithm>
#include <cstring>

namespace thimble::kernels {
namespace quant_rows_detail {

constexpr std::int64_t multiple = 16;

std::int64_t elements(const ConvShape& s) { return s.kernel_h * s.kernel_w * s.channels; }
std::int64_t pixels(const ConvShape& s) { return s.images * s.height * s.width; }
std::int64_t row_bytes(const ConvShape& s) { return s.channels + 4 * s.filters; }

}  // namespace quant_rows_detail

std::int64_t quant_rows_depth(const ConvShape& shape) noexcept {
  using quant_rows_detail::multiple;
  return (quant_rows_detail::elements(shape) + multiple - 1) / multiple * multiple;
}

std::size_t quant_rows_bytes(const ConvShape& shape) noexcept {
  return static_cast<std::size_t>(shape.filters * (quant_rows_depth(shape) + 4));
}

void pack_quant_rows(const ConvShape& shape, const std::int8_t* weight, void* packed) noexcept {
  const std::int64_t depth = quant_rows_depth(shape), elements = quant_rows_detail::elements(shape);
  auto* const rows = static_cast<std::int8_t*>(packed);
  std::memset(packed, 0, quant_rows_bytes(shape));
  for (std::int64_t o = 0; o < shape.filters; ++o) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < elements; ++i) sum += rows[o * depth + i] = weight[o * elements + i];
    sum *= 128;
    std::memcpy(rows + shape.filters * depth + 4 * o, &sum, sizeof sum);
  }
}

void unpack_quant_rows(const ConvShape& shape, const void* packed, std::int8_t* weight) noexcept {
  const std::int64_t depth = quant_rows_depth(shape), elements = quant_rows_detail::elements(shape);
  const auto* const rows = static_cast<const std::int8_t*>(packed);
  for (std::int64_t o = 0; o < shape.filters; ++o) std::copy_n(rows + o * depth, elements, weight + o * elements);
}

bool is_library_quant_conv(const ConvShape& s) noexcept {
  using quant_rows_detail::multiple;
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 &&
         s.pad_bottom == 0 && s.pad_left == 0 && s.pad_right == 0 && s.channels % multiple == 0 &&
         s.filters % multiple == 0 && s.channels > 0 && s.filters > 0 && quant_rows_detail::pixels(s) > 0;
}

std::int64_t quant_window_rows(const ConvShape& shape) noexcept {
  using quant_rows_detail::multiple;
  const std::int64_t most = max_quant_workspace_bytes / quant_rows_detail::row_bytes(shape) / multiple * multiple;
  return std::min(quant_rows_detail::pixels(shape), std::max(multiple, most));
}

std::size_t cuda_quant_conv_bytes(const ConvShape& shape, int) noexcept {
  if (!is_library_quant_conv(shape)) return 0;
  return static_cast<std::size_t>(quant_window_rows(shape) * quant_rows_detail::row_bytes(shape));
}

const QuantConvKernels quant_conv_cuda_sizes{
    .packed_bytes = quant_rows_bytes,
    .pack = pack_quant_rows,
    .unpack = unpack_quant_rows,
    .workspace_bytes = cuda_quant_conv_bytes,
};

}  // namespace thimble::kernels
