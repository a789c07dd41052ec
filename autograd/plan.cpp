#include <thimble/autograd/plan.h>

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/quant/quantize.h>

namespace thimble {

Fate drop_all(const OpType&) { return Fate::drop; }

Fate keep_costly(const OpType& type) { return type.cost == ops::Cost::matmul ? Fate::keep : Fate::drop; }

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
      throw PlanError(name + ", expected ranges within 0 to " + std::to_string(of.size()));
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

namespace {

// The error in a spill; empty if it is valid.
std::string fault_of(const TapePlan::Spill& spill, const std::vector<const OpType*>& types) {
  using Form = TapePlan::Spill::Form;
  const auto number = [](auto n) { return std::to_string(n); };
  if (spill.node >= types.size()) return "of node " + number(spill.node) + ", there are " + number(types.size());
  const OpType& type = *types[spill.node];
  if (spill.which < TapePlan::Spill::result || spill.which >= type.saved_tensors) {
    return number(spill.which) + ", " + type.name + " saves " + number(type.saved_tensors) + " tensors";
  }
  if (spill.away_after < spill.node || spill.gone_after < spill.away_after || spill.gone_after >= types.size()) {
    return "goes after node " + number(spill.away_after) + " and is gone after " + number(spill.gone_after) +
           "; expected an order within " + number(spill.node) + " to " + number(types.size() - 1);
  }
  if (spill.form == Form::offload) {
    const bool is_in_range = spill.back_before >= spill.node && spill.back_before < types.size();
    return is_in_range ? "" : "comes back before node " + number(spill.back_before) + ", which does not read it";
  }
  if (spill.which != TapePlan::Spill::result) return "is packed; only results can be";
  if (!can_pack(DType::f32, spill.dtype)) {
    return "is packed to " + std::string(to_string(spill.dtype)) + "; expected f16, bf16, f8e4m3, f8e5m2 or i8";
  }
  return spill.gone_after == spill.away_after ? "" : "is packed and gone at different nodes";
}

}  // namespace

void TapePlan::validate() const {
  innermost();
  if (!sizes.empty() && sizes.size() != types.size()) {
    throw PlanError("plan: sizes of " + std::to_string(sizes.size()) + " nodes for " + std::to_string(types.size()));
  }
  std::vector<std::pair<std::uint32_t, std::int32_t>> named;
  for (const Spill& spill : spills) {
    const std::string name = "plan: spill of node " + std::to_string(spill.node);
    const std::string fault = fault_of(spill, types);
    if (!fault.empty()) throw PlanError(name + ": " + fault);
    named.emplace_back(spill.node, spill.which);
  }
  std::sort(named.begin(), named.end());
  const auto twice = std::adjacent_find(named.begin(), named.end());
  if (twice == named.end()) return;
  throw PlanError("plan: two spills of node " + std::to_string(twice->first) + ", tensor " +
                  std::to_string(twice->second));
}

bool TapePlan::offloads() const noexcept {
  return std::any_of(spills.begin(), spills.end(),
                     [](const Spill& spill) { return spill.form == Spill::Form::offload; });
}

namespace {

/// Nodes [first, end) of a plan as a separate plan.
std::shared_ptr<const TapePlan> part_of(const TapePlan& plan, std::uint32_t first, std::uint32_t end) {
  auto part = std::make_shared<TapePlan>();
  const auto cut = [&](const auto& of_nodes, auto& to) {
    if (!of_nodes.empty()) to.assign(of_nodes.begin() + first, of_nodes.begin() + end);
  };
  cut(plan.fates, part->fates);
  cut(plan.types, part->types);
  cut(plan.sizes, part->sizes);
  std::vector<std::int32_t> places(plan.segments.size(), TapePlan::none);  // indices of segments in the new plan
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    const TapePlan::Segment& segment = plan.segments[s];
    const std::uint32_t begin = std::max(segment.first, first), stop = std::min(segment.end, end);
    if (begin >= stop) continue;
    places[s] = static_cast<std::int32_t>(part->segments.size());
    const std::int32_t parent =
        segment.parent == TapePlan::none ? TapePlan::none : places[static_cast<std::size_t>(segment.parent)];
    part->segments.push_back({begin - first, stop - first, parent});
  }
  for (TapePlan::Spill spill : plan.spills) {
    if (spill.node < first || spill.node >= end) continue;
    for (std::uint32_t* const node : {&spill.node, &spill.away_after, &spill.gone_after, &spill.back_before}) {
      *node = std::min(*node, end - 1) - first;
    }
    part->spills.push_back(spill);
  }
  return part;
}

}  // namespace

std::vector<std::shared_ptr<const TapePlan>> split(const TapePlan& plan, std::size_t count) {
  if (plan.ends.size() != count) {
    throw PlanError("plan: it is for " + std::to_string(std::max<std::size_t>(plan.ends.size(), 1)) +
                    " recordings in a row, and followed by " + std::to_string(count));
  }
  std::vector<std::shared_ptr<const TapePlan>> parts;
  std::uint32_t first = 0;
  for (const std::uint32_t end : plan.ends) {
    parts.push_back(part_of(plan, first, end));
    first = end;
  }
  return parts;
}

}  // namespace thimble
