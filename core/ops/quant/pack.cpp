#include <thimble/core/ops/quant/pack.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/tensor/copy.h>

namespace thimble {
namespace pack_detail {

bool is_scaled(DType dtype) noexcept { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2 || dtype == DType::i8; }

}  // namespace pack_detail

bool can_pack(DType from, DType to) noexcept {
  return is_floating(from) && (is_floating(to) || to == DType::i8) && size_of(to) < size_of(from);
}

std::size_t packed_bytes(std::int64_t elements, DType dtype) {
  if (pack_detail::is_scaled(dtype)) return quantized_bytes({elements}, packing(dtype));
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

Tensor pack(const Tensor& t, DType dtype) {
  if (!can_pack(t.dtype(), dtype)) {
    throw DTypeError("pack: " + describe(t) + " to " + std::string(to_string(dtype)) +
                     "; expected a narrower one of f32, f16, bf16, f8e4m3, f8e5m2, i8");
  }
  return pack_detail::is_scaled(dtype) ? quantize(t, packing(dtype)) : to_dtype(t, dtype);
}

Tensor unpack(const Tensor& packed, DType dtype) {
  return packed.scale() ? dequantize(packed, packing(packed.dtype()), dtype) : to_dtype(packed, dtype);
}

}  // namespace thimble
