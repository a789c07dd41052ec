#pragma once
// Questions to the default resource of a device.
//
// Policy
// - What is asked is answered by the stack that default_resource(device) hands out; asking makes it where needed.
//
// Terms
//   max_allocated   the ledger's peak of requested bytes; what had to be committed for it is statistics()

#include <cstddef>
#include <string>

#include <thimble/memory/arena.h>

namespace thimble::memory {

/// The ledger's table (bytes by category and by path, now and at the peak), then what the arena committed for it.
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

/// "2 compactions moved 3 blocks, 1.00 KiB (1024 B), in 0.01 ms".
std::string compaction_to_string(const Arena::Statistics& statistics);

/// The arena's lines of a summary.
std::string to_string(const Arena::Statistics& statistics);

}  // namespace thimble::memory
