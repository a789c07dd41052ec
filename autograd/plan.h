#pragma once
// What becomes of the nodes of a segment: plans and policies.
//
// Policy
// - A segment is *closed* from the moment it is recorded until backward reaches it; then it is run again, from what was
//   kept, and is *open*. Segments nest: those inside of one that is run again are closed anew, so a node at depth d
//   runs up to d + 1 times.
// - The fate of a node counts while its innermost segment is closed and all around it are open. Under a closed segment
//   further out nothing inside is kept, except what running that one again needs.
//
// Terms
//   fate       whether a node's result, and what its operator saves, are kept
//   source     a value that running a closed segment again reads: made before it, or kept inside
//   ordinal    a node's place on the tape, counted from 0; the same in every recording of the same program

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace thimble {

struct OpType;

/// What a closed segment keeps of a node; the two can be combined.
enum class Fate : std::uint8_t {
  drop = 0,         ///< nothing: the node runs again when its result or what it saves is needed
  keep_output = 1,  ///< its result, for the backward of nodes in the segment and for running others again
  keep_saved = 2,   ///< what its operator saves; those of its operands that are dropped are made again
  keep = 3
};
constexpr bool keeps_output(Fate fate) noexcept { return (static_cast<unsigned>(fate) & 1u) != 0; }
constexpr bool keeps_saved(Fate fate) noexcept { return (static_cast<unsigned>(fate) & 2u) != 0; }

/// Chooses a fate by what kind of operator it is.
using Policy = Fate (*)(const OpType& type);

/// Keeps nothing.
Fate drop_all(const OpType& type);
/// Keeps what matmuls, convolutions and attention make; everything that is cheap to make again is dropped.
Fate keep_costly(const OpType& type);

/// The fates of all nodes of a tape, by ordinal. It replaces the segments that the program itself names.
struct TapePlan {
  static constexpr std::int32_t none = -1;
  struct Segment {
    std::uint32_t first = 0, end = 0;  ///< ordinals of its nodes, half open, not empty
    std::int32_t parent = none;        ///< index of the segment around it, which comes before it in the list
    friend bool operator==(const Segment&, const Segment&) = default;
  };
  std::vector<Segment> segments;     ///< in order of `first`, outer ones before inner ones
  std::vector<Fate> fates;           ///< one per node; those of nodes in no segment have no effect
  std::vector<const OpType*> types;  ///< the operators it was made for

  /// Innermost segment of each node. Throws PlanError when the plan contradicts itself: a segment that is empty, leaves
  /// the one around it or overlaps its neighbour, or lists that differ in length.
  std::vector<std::int32_t> innermost() const;
};

}  // namespace thimble
