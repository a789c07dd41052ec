#pragma once
// Ranks on separate GPUs, over NCCL.

#include <thimble/core/device.h>
#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// A communicator over the ranks of `over` for GPU memory. All ranks of `over` call it, each with a different GPU, or
/// NCCL refuses (ranks of run_ranks that share a GPU copy on it instead, dist/threads.h). `over` must outlive it; if
/// `over` is dry, so is the result.
///
/// Messages in device memory go through NCCL on a separate stream, ordered after earlier kernels. Messages in host
/// memory, and empty ones, go through a split of `over`, so that barriers and splits work here, too. Its splits share
/// one communicator of NCCL, which has no tags: between two ranks all sends and receives of all splits meet in the
/// order in which they begin. NCCL does not report differing sizes. Loads libnccl.so.2; NCCL's device memory is outside
/// every arena.
///
/// Throws DeviceError: a build without CUDA or NCCL's header, no libnccl.so.2, no such GPU, or NCCL's error.
std::unique_ptr<Communicator> make_nccl(Communicator& over, memory::Device device);

}  // namespace thimble::dist
