#pragma once
// Ranks on GPUs of their own, over NCCL.

#include <thimble/core/tensor/device.h>
#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// A communicator of the ranks of `over` for memory of a GPU: each rank names another one, or NCCL refuses (ranks of
/// run_ranks that share a GPU copy on it instead, dist/threads.h). All ranks of `over` call it. `over` outlives it; a
/// dry one gives a dry one.
///
/// Messages in the memory of the device go through NCCL, on a stream of their own: behind the kernels that were
/// launched before. Those in memory of the host, and those without bytes, go through a split of `over`, so that
/// barriers and splits work here, too. Its splits share one communicator of NCCL, which knows no tags: between two
/// ranks all sends and receives of all splits meet in the order in which they begin. NCCL does not tell sizes that
/// differ. Loads libnccl.so.2; what NCCL takes of the device's memory is outside of every arena.
///
/// Throws DeviceError: a build without CUDA or NCCL's header, no libnccl.so.2, no such GPU, or NCCL's own error.
std::unique_ptr<Communicator> make_nccl(Communicator& over, Device device);

}  // namespace thimble::dist
