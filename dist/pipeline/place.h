#pragma once
// Where a stage of a pipeline stands, and which units of a chain it has.

#include <cstdint>

namespace thimble::dist {

/// Stage `index` of `count`. One stage alone is the whole chain. As with parts of blocks (dist/parts/team.h), in how
/// many stages a chain is cut is an attribute of the arithmetic: one rank may have all of them, and adds up as they do.
struct StagePlace {
  int index = 0, count = 1;
  bool has_all = false;  ///< this rank has all stages

  bool is_first() const noexcept { return has_all || index == 0; }
  bool is_last() const noexcept { return has_all || index + 1 == count; }
  /// Of `units` of a chain, those from `first` up to `end`: equal numbers; where they do not divide, the first stages
  /// have one more. Throws ValueError where there are fewer units than stages.
  struct Units {
    std::int64_t first, end;
    bool has(std::int64_t unit) const noexcept { return first <= unit && unit < end; }
  };
  Units units(std::int64_t units) const;
};

}  // namespace thimble::dist
