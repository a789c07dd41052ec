#pragma once
// Ranks as threads of this process.

#include <functional>

#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// Runs body(communicator) on `ranks` threads, one a rank, and returns when all have ended. Each thread has a stack of
/// 8 MiB and a fresh context: a body that wants a separate arena makes it (ResourceScope). Communicators end with the
/// body. A message is copied once, from the sender's memory, by the receiving thread; memory of a GPU that the ranks
/// share, which `device` names, by a copy on that GPU, in order with its kernels.
///
/// If a body throws, the waits of the others end by a RankError that names the rank, and the first failure is thrown
/// here: `rank 2 of 4: text`, of its type where that is one of core/error.h's, with the original nested in it. A rank
/// that does not end within 10 s of the first failure ends the process with that text and a nonzero status: a thread
/// cannot be ended. Throws ValueError where ranks < 1.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body, memory::Device device = cpu);

}  // namespace thimble::dist
