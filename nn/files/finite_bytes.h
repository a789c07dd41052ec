#pragma once
// Whether bytes of a file are numbers.

#include <cstddef>
#include <span>

#include <thimble/nn/files/safetensors.h>

namespace thimble {

/// Whether no element is NaN or infinite; integers never are. `bytes` are whole elements, little-endian.
bool all_finite(SafetensorsDType dtype, std::span<const std::byte> bytes) noexcept;

}  // namespace thimble
