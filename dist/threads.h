#pragma once
// Ranks as threads of this process.

#include <functional>

#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// Runs body(communicator) on `ranks` threads, one per rank, and returns when all have ended. Each thread has a stack
/// of 8 MiB and a fresh context: a body that wants a separate arena makes it (ResourceScope). Communicators end with
/// the body. The receiving thread copies a message once, straight from the sender's memory. Ranks may share one GPU,
/// which `device` names; its memory is copied on the GPU, in order with its kernels.
///
/// If a body throws, the other ranks' waits throw a RankError that names the rank, and run_ranks throws the first
/// failure: `rank 2 of 4: text`, of the same type if core/error.h has it, with the original nested. If a rank does not
/// end within 10 s of the first failure, the process exits with that text and a nonzero status, because a thread cannot
/// be ended. Throws ValueError if ranks < 1.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body, memory::Device device = cpu);

}  // namespace thimble::dist
