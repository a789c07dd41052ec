#include <thimble/dist/sharding/group.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>

namespace thimble::dist {

StagePlace::Units StagePlace::units(std::int64_t units) const {
  if (units < count) {
    throw ValueError("`pp`: " + std::to_string(count) + " stages of a chain of " + std::to_string(units) +
                     " blocks; expected at most as many");
  }
  if (has_all) return {0, units};
  const std::int64_t each = units / count, more = units % count;
  const auto begin_of = [&](std::int64_t stage) { return stage * each + std::min(stage, more); };
  return {begin_of(index), begin_of(index + 1)};
}

}  // namespace thimble::dist
