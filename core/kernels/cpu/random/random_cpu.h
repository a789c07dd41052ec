#pragma once
// The functions of random_cpu that are in separate files.

#include <cstdint>

#include <thimble/core/kernels/random.h>

namespace thimble::kernels {

void dropout_on_cpu(const DropoutArgs& args);
void apply_mask_on_cpu(const MaskArgs& args);

// ---- One bit per element, written and read by vectors: element i has bit i % 8 of byte i / 8.

/// Bit i is values[i] > zero. The last byte is padded with zeros.
void pack_greater(const float* values, std::int64_t n, float zero, std::uint8_t* mask);
void pack_greater(const double* values, std::int64_t n, double zero, std::uint8_t* mask);

/// to[i] = from[i] where bit first + i is set, else 0. `to` may be `from`.
void keep_masked(const std::uint8_t* mask, std::int64_t first, const float* from, float* to, std::int64_t n);
void keep_masked(const std::uint8_t* mask, std::int64_t first, const double* from, double* to, std::int64_t n);

}  // namespace thimble::kernels
