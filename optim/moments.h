#pragma once
// Storage of an optimizer's moments: in full, in bf16, or in blocks of 8-bit codes.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble::optim {

struct Named;

struct MomentFormat {
  /// f32: in the parameter's compute type, f32 or f64. bf16: 2 bytes per value. u8: dynamic codes, blocks of 256 values
  /// with their largest magnitude in f32 (Dettmers et al. 2022, arXiv:2110.02861): 1 + 4 / 256 bytes.
  DType dtype = DType::f32;
  /// With bf16 and u8, parameters with fewer elements keep their moments in full; so do f64 parameters and the named
  /// ones: "wte", or "gpt.h0" for all that begin with "gpt.h0.". The paper lists embeddings among them.
  std::int64_t smallest = 4096;
  std::vector<std::string> full = {};
};

/// A moment of one parameter. Codes and scales are separate tensors, so that files and tiers treat them like any other.
struct Moment {
  Tensor values;  ///< u8, bf16, f32 or f64, of the parameter's shape
  Tensor scales;  ///< of u8: f32, one per 256 values; else undefined
};

/// Throws ValueError for a dtype that is not f32, bf16 or u8, a negative size, or an unknown parameter name.
void check_format(const char* optimizer, const MomentFormat& format, const std::vector<Named>& parameters);

/// Whether a parameter's moments are in its compute type.
bool is_kept_full(const Named& parameter, const MomentFormat& format);

/// Zeros, counted as optimizer state under the parameter's path. Unsigned codes are for moments that are never
/// negative.
Moment make_moment(const Named& parameter, const MomentFormat& format, bool is_signed);

}  // namespace thimble::optim
