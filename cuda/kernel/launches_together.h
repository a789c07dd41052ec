#pragma once
// Kernels that pass results to each other in globals of the device.

#include <mutex>

namespace thimble::cuda_kernels {

/// Held while such a call puts its kernels in the stream. Ranks that share a GPU launch from separate threads, and the
/// kernels of one call must not interleave with another's.
inline std::mutex launches_together;

}  // namespace thimble::cuda_kernels
