#pragma once
// Placement of buffers that hold fewer bytes at times within their lifetimes (gaps), as in minimalloc's CSV.
//
// Policy
// - Gaps break the assumption of the exact stage: a buffer is one interval of time and one of bytes. So such buffers
//   are placed greedily in several orders, and a local search moves the highest ones forward in the best order.
// - Height equal to the load is optimal; more is not proven.

#include <span>
#include <vector>

#include <thimble/memory/placement/placement.h>

namespace thimble::memory {

/// A time [lower, upper) within a buffer's lifetime when it holds only its bytes [from, to); none where these are
/// equal.
struct Gap {
  std::uint64_t lower = 0, upper = 0;
  std::size_t from = 0, to = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};

/// As place(). `gaps` has the gaps of each buffer, disjoint and in order of time. Throws ValueError as place() does,
/// and for gaps outside the lifetime and the bytes of their buffer.
Placement place_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                          const PlacementOptions& options = {});

/// As check_placement(), for buffers with gaps.
void check_placement_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                               std::span<const std::size_t> offsets, std::size_t height_bytes);

}  // namespace thimble::memory
