#pragma once
// Ranks on separate GPUs, over NCCL.

#include <thimble/core/device.h>
#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// A communicator of the ranks of `over` for memory of a GPU: each rank names another one, or NCCL refuses (ranks of
/// run_ranks that share a GPU copy on it instead, dist/threads.h). All ranks of `over` call it. `over` outlives it; a
/// dry one gives a dry one.
///
/// Messages in device memory go through NCCL, on a separate stream: behind the kernels launched before. Messages in
/// host memory, and without bytes, go through a split of `over`, so that barriers and splits work here, too. Its splits
/// share one communicator of NCCL, which knows no tags: between two ranks all sends and receives of all splits meet in
/// the order in which they begin. NCCL does not report differing sizes. Loads libnccl.so.2; NCCL's device memory is
/// outside every arena.
///
/// Throws DeviceError: a build without CUDA or NCCL's header, no libnccl.so.2, no such GPU, or NCCL's error.
std::unique_ptr<Communicator> make_nccl(Communicator& over, memory::Device device);

}  // namespace thimble::dist
