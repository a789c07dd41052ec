#pragma once
// Queries of a device's default resource.
//
// Policy
// - The stack of default_resource(device) answers; a query makes it if necessary.
//
// Terms
//   max_allocated   the ledger's peak of requested bytes; statistics() has the committed bytes for it

#include <cstddef>
#include <cstdint>
#include <string>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/memory/arena/arena.h>

namespace thimble::memory {

/// The ledger's table (bytes by category and by path, now and at the peak), then the arena's committed bytes; for a GPU
/// also the tiers' bytes of the host's pinned memory, the device's own count, and its libraries' calls and refusals.
std::string summary(Device device = cpu);

/// Largest sum of live requested bytes since the start or reset_peak().
std::size_t max_allocated(Device device = cpu);

/// Gives unused pages back, then makes the present the peak, of requested, allocated and committed bytes.
void reset_peak(Device device = cpu);

Arena::Statistics statistics(Device device = cpu);

/// A point at which blocks of the default resource may move (Arena::safe_point). Returns the bytes moved.
std::size_t safe_point(Device device = cpu);

/// Slides all blocks of the default resource together (Arena::compact). Returns the bytes moved.
std::size_t compact(Device device = cpu);

/// A GPU's count of its memory, other processes included, beside the arenas' bytes.
struct DeviceUse {
  std::size_t total_bytes = 0;
  std::size_t used_bytes = 0;     ///< now
  std::size_t context_bytes = 0;  ///< before the process's first page: its context, and other processes
  std::size_t outside_bytes = 0;  ///< now, outside arenas: the context, the libraries, and other processes
  std::size_t handle_bytes = 0;   ///< of these, taken by the handles of libraries when they were made
};

/// `arena_bytes` are committed by the process's arenas. Throws DeviceError without such a GPU.
DeviceUse device_use(Device device, std::size_t arena_bytes);

/// "used 1.00 GiB of 8.00 GiB, outside of arenas 320.00 MiB, before the first page 256.00 MiB".
std::string to_string(const DeviceUse& use);

/// The rise of the device's used bytes between two results of device_use, less the handles of libraries and the
/// `arena_bytes` committed meanwhile: allocations outside the books. On a shared device it includes other processes'
/// memory; negative where they gave back.
std::int64_t unbooked_bytes(const DeviceUse& before, const DeviceUse& after, std::size_t arena_bytes);

/// "cuBLASLt made 12 calls and refused 0; cuDNN made 3 calls and refused 1, the first: convolution of ...".
std::string to_string(const kernels::LibraryUse& use);

/// "2 compactions moved 3 blocks, 1.00 KiB (1024 B), in 0.01 ms"; where pages were remapped, with the bytes that moved
/// with their pages and the copied ones; for a GPU "in 0.01 ms of the host, copies in 0.20 ms of the device", and "so
/// far, which is not known to be done" where some may still run.
std::string compaction_to_string(const Arena::Statistics& statistics);

/// The arena's lines of a summary.
std::string to_string(const Arena::Statistics& statistics);

// The composition of committed bytes: a table whose columns add up.
//
// Terms
//   live       requested bytes, as in the ledger
//   holes      below the end of the highest block and in none, the rounding of blocks to 64 bytes included
//   rounding   committed above that: at a peak the excess of whole granules (2 MiB on a CPU) over the height, later
//              also pages that are kept for future requests

struct Stack;

struct CommittedParts {
  std::size_t live_bytes = 0, hole_bytes = 0, rounding_bytes = 0;
  std::size_t total() const noexcept { return live_bytes + hole_bytes + rounding_bytes; }
};

/// Their sum is `committed_bytes`, which is not below `live_bytes`. A height above the committed bytes (a trimmed arena
/// has holes without pages) counts as far as they go.
CommittedParts committed_parts(std::size_t live_bytes, std::size_t height_bytes, std::size_t committed_bytes) noexcept;

/// For a stack, now and at its peaks since they were last reset.
CommittedParts committed_now(const Stack& stack);
CommittedParts committed_at_peak(const Stack& stack);

/// Four lines below a ledger's summary: holes and rounding, and with all live bytes the committed ones.
std::string committed_table(const Stack& stack);

}  // namespace thimble::memory
