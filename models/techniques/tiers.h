#pragma once
// Tensors that plans pack, and savings of offloading and packing.

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/models/techniques/setup.h>

namespace thimble::models {

/// A plan's packing in one recording: a step, or one of its micro-batches.
struct PackedBytes {
  std::size_t bytes = 0;         ///< of saved tensors, before
  std::size_t packed_bytes = 0;  ///< and after, scales included
  std::vector<DType> dtypes;     ///< to which, each once
};
PackedBytes packed_bytes_of(const nn::Plan& plan);

/// "bf16, i8".
std::string to_string(const std::vector<DType>& dtypes);

/// Throws ValueError if the setup allows packing, and no packable tensor is wider than the named dtype: for tensors in
/// 16 bits bf16 and f16 save nothing. `graph` is of the setup's step.
void check_lossy(const Setup& setup, memory::Device device, const TapeGraph& graph);

/// The dtypes to which some result of the recording that backward reads can be packed, the widest first.
std::vector<DType> narrower_dtypes(const TapeGraph& graph);

}  // namespace thimble::models
