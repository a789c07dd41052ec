#pragma once
// Queries of a device's default resource.
//
// Policy
// - Queries read default_stack(device), which the first one makes if necessary.
//
// Terms
//   max_allocated   the ledger's peak of requested bytes; statistics() has the committed bytes

#include <cstddef>
#include <cstdint>
#include <string>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/memory/arena/arena.h>

namespace thimble::memory {

/// The ledger's table (bytes by category and by path, now and at the peak), then the arena's committed bytes. For a GPU
/// also the tiers' pinned bytes on the host, the device's own count, and its libraries' calls and refusals.
std::string summary(Device device = cpu);

/// Largest sum of live requested bytes since the start or reset_peak().
std::size_t max_allocated(Device device = cpu);

/// Gives unused pages back, then sets the peaks of requested, allocated and committed bytes to the current values.
void reset_peak(Device device = cpu);

Arena::Statistics statistics(Device device = cpu);

/// Lets blocks of the default resource move (Arena::safe_point). Returns the bytes moved.
std::size_t safe_point(Device device = cpu);

/// Slides all blocks of the default resource together (Arena::compact). Returns the bytes moved.
std::size_t compact(Device device = cpu);

/// A GPU's count of its memory, other processes included.
struct DeviceUse {
  std::size_t total_bytes = 0;
  std::size_t used_bytes = 0;     ///< now
  std::size_t context_bytes = 0;  ///< used before this process's first page: by its context and other processes
  std::size_t outside_bytes = 0;  ///< used outside arenas: by the context, libraries and other processes
  std::size_t handle_bytes = 0;   ///< of outside_bytes, taken by the libraries' handles when they were made
};

/// The process's arenas have committed `arena_bytes`. Throws DeviceError when the GPU does not exist.
DeviceUse device_use(Device device, std::size_t arena_bytes);

/// "used 1.00 GiB of 8.00 GiB, outside of arenas 320.00 MiB, before the first page 256.00 MiB".
std::string to_string(const DeviceUse& use);

/// Allocations outside the books: the rise of the device's used bytes, less the libraries' handles and the
/// `arena_bytes` committed meanwhile. On a shared device other processes' memory counts, and may make it negative.
std::int64_t unbooked_bytes(const DeviceUse& before, const DeviceUse& after, std::size_t arena_bytes);

/// "cuBLASLt made 12 calls and refused 0; cuDNN made 3 calls and refused 1, the first: convolution of ...".
std::string to_string(const kernels::LibraryUse& use);

/// "2 compactions moved 3 blocks, 1.00 KiB (1024 B), in 0.01 ms", with remapped and copied bytes if pages were
/// remapped. For a GPU "in 0.01 ms of the host, copies in 0.20 ms of the device", and "so far, which is not known to be
/// done" if some copies may still run.
std::string compaction_to_string(const Arena::Statistics& statistics);

/// The arena's lines of a summary.
std::string to_string(const Arena::Statistics& statistics);

// The composition of committed bytes.
//
// Terms
//   live       requested bytes, as in the ledger
//   holes      bytes below the end of the highest block that no request holds, including the rounding of blocks
//   rounding   committed bytes above it: at a peak the rest of the last granule (2 MiB), later also pages kept for
//              future requests

struct Stack;

struct CommittedParts {
  std::size_t live_bytes = 0, hole_bytes = 0, rounding_bytes = 0;
  std::size_t total() const noexcept { return live_bytes + hole_bytes + rounding_bytes; }
};

/// The parts sum to `committed_bytes` >= `live_bytes`. A height above the committed bytes (a trimmed arena has holes
/// without pages) counts as `committed_bytes`.
CommittedParts committed_parts(std::size_t live_bytes, std::size_t height_bytes, std::size_t committed_bytes) noexcept;

/// The parts of a stack, now and at its peaks since their last reset.
CommittedParts committed_now(const Stack& stack);
CommittedParts committed_at_peak(const Stack& stack);

/// Four lines: live bytes + holes + rounding = committed bytes, now and at the peaks.
std::string committed_table(const Stack& stack);

}  // namespace thimble::memory
