#include <thimble/autograd/plan.h>

#include <algorithm>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>

namespace thimble {

Fate drop_all(const OpType&) { return Fate::drop; }

Fate keep_costly(const OpType& type) { return type.cost == Cost::matmul ? Fate::keep : Fate::drop; }

std::vector<std::int32_t> TapePlan::innermost() const {
  if (fates.size() != types.size()) {
    throw PlanError("plan: " + std::to_string(fates.size()) + " fates for " + std::to_string(types.size()) + " nodes");
  }
  std::vector<std::int32_t> of(fates.size(), none);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const std::string name = "plan: segment " + std::to_string(s) + " of nodes " + std::to_string(segment.first) +
                             " to " + std::to_string(segment.end);
    if (segment.first >= segment.end || segment.end > of.size()) {
      throw PlanError(name + ", allowed are ranges within 0 to " + std::to_string(of.size()));
    }
    if (segment.parent < none || segment.parent >= static_cast<std::int32_t>(s)) {
      throw PlanError(name + ": segment " + std::to_string(segment.parent) + " around it does not come before it");
    }
    for (std::uint32_t n = segment.first; n < segment.end; ++n) {
      if (of[n] != segment.parent) throw PlanError(name + " crosses another one at node " + std::to_string(n));
      of[n] = static_cast<std::int32_t>(s);
    }
  }
  return of;
}

}  // namespace thimble
