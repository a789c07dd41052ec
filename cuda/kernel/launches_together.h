#pragma once
// Kernels that hand each other results in globals of the device.

#include <mutex>

namespace thimble::cuda_kernels {

/// Held while such a call puts its kernels in the stream. Ranks that share a GPU launch from threads of their own, and
/// the kernels of one call must not lie between those of another.
inline std::mutex launches_together;

}  // namespace thimble::cuda_kernels
