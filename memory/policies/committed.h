#pragma once
// The composition of committed bytes: a table whose columns add up.
//
// Terms
//   live       requested bytes, as in the ledger
//   holes      below the end of the highest block and in none, the rounding of blocks to 64 bytes included
//   rounding   committed above that: at a peak the excess of whole granules (2 MiB on a CPU) over the height, later
//              also pages that are kept for future requests

#include <cstddef>
#include <string>

#include <thimble/memory/stack.h>

namespace thimble::memory {

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
