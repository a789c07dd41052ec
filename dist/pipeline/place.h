#pragma once
// Where a stage of a pipeline stands, and which units of a chain it has.

#include <cstdint>

namespace thimble::dist {

/// Stage `index` of `count`. One stage alone is the whole chain.
struct StagePlace {
  int index = 0, count = 1;

  bool is_first() const noexcept { return index == 0; }
  bool is_last() const noexcept { return index + 1 == count; }
  /// Of `units` of a chain, those from `first` up to `end`, alike in number; where they do not divide, the first stages
  /// have one more. Throws ValueError where there are fewer units than stages.
  struct Units {
    std::int64_t first, end;
    bool has(std::int64_t unit) const noexcept { return first <= unit && unit < end; }
  };
  Units units(std::int64_t units) const;
};

}  // namespace thimble::dist
