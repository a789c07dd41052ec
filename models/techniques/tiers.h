#pragma once
// The tensors that plans pack, and the bytes that packing saves.

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/models/techniques/setup.h>

namespace thimble::models {

/// A plan's packing in one recording: a step, or one of its micro-batches.
struct PackedBytes {
  std::size_t bytes = 0;         ///< of the packed tensors, before
  std::size_t packed_bytes = 0;  ///< after, scales included
  std::vector<DType> dtypes;     ///< of the packed tensors, each once
};
PackedBytes packed_bytes_of(const nn::Plan& plan);

/// "bf16, i8".
std::string to_string(const std::vector<DType>& dtypes);

/// Throws ValueError if the setup allows packing, and no packable tensor is wider than the named dtype: bf16 and f16
/// save nothing on 16-bit tensors. `graph` is of the setup's step.
void check_lossy(const Setup& setup, memory::Device device, const TapeGraph& graph);

/// The dtypes that can pack at least one result that backward reads, the widest first.
std::vector<DType> narrower_dtypes(const TapeGraph& graph);

}  // namespace thimble::models
