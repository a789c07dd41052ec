#pragma once
// Weights of frozen layers, stored in fewer bits and decoded before use (nn/quant/weight_only.h).
//
//   code   numbers per scale                                          bits per number
//   int8   32: i8, scale in f16, Q8_0 (core/ops/quant/quantize.h)      8.5
//   nf4    64: NF4 (core/numbers/nf4.h), magnitude in 8 bits           4.127
//
// NF4's magnitudes are themselves quantized (Dettmers et al. 2023, arXiv:2305.14314, section 3, "double quantization"):
// less their mean over the weight, in f32, they become signed dynamic codes in u8 (core/numbers/quant_code.h), 256 per
// f32 scale. So n numbers take ceil(n / 2) + ceil(n / 64) + 4 ceil(n / 16384) + 4 bytes. Encoding uses the exact
// magnitude, decoding the magnitude's code, as in bitsandbytes.
//
// A coded weight is one dense u8 tensor. NF4: f32 offset, f32 scales, codes of the magnitudes, codes; int8: scales,
// codes. Blocks follow the weight's memory, across row ends. A block of zeros decodes to zeros. A NaN or an infinity
// turns its block into NaN in int8, and the whole weight in NF4.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

enum class WeightCode : std::uint8_t { int8, nf4 };

/// "int8", "nf4".
std::string_view to_string(WeightCode code) noexcept;

/// Bytes of `elements` coded numbers.
std::size_t coded_bytes(WeightCode code, std::int64_t elements);

/// Encodes `elements` numbers of a floating dtype, dense at `values` (pinned; null on a dry device), into `coded`, u8
/// (coded_bytes). NF4 takes 4 ceil(elements / 64) bytes of workspace. Throws OutOfMemory, DTypeError or ShapeError for
/// another tensor, DeviceError if this build has no kernels.
void encode_weight(WeightCode code, const void* values, DType dtype, std::int64_t elements, const Tensor& coded);
/// Decodes, rounded to the dtype.
void decode_weight(WeightCode code, const Tensor& coded, void* values, DType dtype, std::int64_t elements);

}  // namespace thimble
