#pragma once
// A stage's position in a pipeline, and its units of a chain.

#include <cstdint>

namespace thimble::dist {

/// Stage `index` of `count`. A single stage is the whole chain. As with shards of blocks (dist/parts/team.h), the
/// number of stages is an attribute of the arithmetic: one rank may have all of them, and adds up as they do.
struct StagePlace {
  int index = 0, count = 1;
  bool has_all = false;  ///< this rank has all stages

  bool is_first() const noexcept { return has_all || index == 0; }
  bool is_last() const noexcept { return has_all || index + 1 == count; }
  /// Of `units` of a chain, the ones from `first` up to `end`: equal numbers; where they do not divide, the first
  /// stages have one more. Throws ValueError for fewer units than stages.
  struct Units {
    std::int64_t first, end;
    bool has(std::int64_t unit) const noexcept { return first <= unit && unit < end; }
  };
  Units units(std::int64_t units) const;
};

}  // namespace thimble::dist
