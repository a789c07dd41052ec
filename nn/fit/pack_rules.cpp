#include <thimble/nn/fit/pack_rules.h>

#include <algorithm>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/nn/fit/spilling.h>

namespace thimble::nn {

TapePlan pack_all(const TapeGraph& graph, const SpillPolicy& spilling) {
  check_rules(graph, spilling);
  TapePlan plan;
  for (const TapeGraph::Node& node : graph.nodes) plan.types.push_back(node.type);
  plan.sizes = graph.sizes();
  plan.fates.assign(plan.types.size(), Fate::keep);
  const std::vector<Spillable> uses = spillables(graph);
  for (std::size_t s = 0; s < uses.size(); ++s) {
    const Spillable& use = uses[s];
    const std::optional<DType> to = spilling.packed_as(graph, use);
    const std::uint32_t after = std::max(use.until, use.node);
    if (!to || after + 1 >= graph.nodes.size()) continue;
    plan.spills.push_back({use.node, TapePlan::Spill::result, TapePlan::Spill::Form::pack, *to, after, after, after});
  }
  return plan;
}

Plan packed_plan(const MakeRun& make, memory::Device device, const SpillPolicy& spilling) {
  const memory::Device on = dry(device);
  const TapeGraph graph = record_step(on, make);
  Plan plan;
  plan.tape = std::make_shared<TapePlan>(pack_all(graph, spilling));
  plan.description = spilling.rules.empty()
                         ? "everything that can be is packed to " + std::string(to_string(spilling.packed))
                         : "everything that can be is packed, by operator";
  count_spills(plan, graph);
  const MemoryProfile profile = profile_training(on, [&](memory::Device target) {
    std::unique_ptr<TrainingRun> run = make(target);
    plan.apply(run->options(), target);
    return run;
  });
  plan.peak_bytes = profile.peak_bytes;
  plan.lower_bound_bytes = profile.lower_bound_bytes;
  plan.peak_by_category = profile.peak_by_category;
  return plan;
}

// ---- Pack rules by operator name: which results are packed, and to which dtype.

bool PackRule::names(std::string_view op) const noexcept {
  return op.starts_with(name) && (op.size() == name.size() || op[name.size()] == '_');
}

std::optional<DType> SpillPolicy::packed_as(const OpType& type) const {
  const PackRule* best = nullptr;
  for (const PackRule& rule : rules) {
    if (rule.names(type.name) && (best == nullptr || rule.name.size() > best->name.size())) best = &rule;
  }
  if (best != nullptr) return best->dtype;
  return packs_rest ? std::optional(packed) : std::nullopt;
}

std::optional<DType> SpillPolicy::packed_as(const TapeGraph& graph, const Spillable& use) const {
  if (use.is_held || !use.is_saved || use.node == TapeGraph::none || use.which != TapePlan::Spill::result) return {};
  if (use.bytes < smallest) return {};
  const std::optional<DType> to = packed_as(*graph.nodes[use.node].type);
  return to && can_pack(use.dtype, *to) ? to : std::nullopt;
}

std::vector<std::string> packable_operators(const TapeGraph& graph, DType dtype, std::size_t smallest) {
  SpillPolicy all;
  all.packed = dtype, all.smallest = smallest;
  std::vector<std::string> names;
  for (const Spillable& use : spillables(graph)) {
    if (all.packed_as(graph, use)) names.emplace_back(graph.nodes[use.node].type->name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void check_rules(const TapeGraph& graph, const SpillPolicy& spilling) {
  for (const PackRule& rule : spilling.rules) {
    // A rule against packing may name any operator that the widest choice of dtypes could pack.
    const std::vector<std::string> allowed =
        packable_operators(graph, rule.dtype.value_or(DType::i8), spilling.smallest);
    if (std::any_of(allowed.begin(), allowed.end(), [&](const std::string& op) { return rule.names(op); })) continue;
    std::string list;
    for (const std::string& op : allowed) list += (list.empty() ? "" : ", ") + op;
    const std::string to = rule.dtype ? " to " + std::string(to_string(*rule.dtype)) : "";
    throw ValueError("packing: '" + rule.name + "' names no operator of this step whose results can be packed" + to +
                     "; expected " + (list.empty() ? "none" : list));
  }
}

void add_packed(std::vector<PackedResults>& list, const TapeGraph& graph, const TapePlan::Spill& spill,
                std::uint32_t value) {
  const std::string_view name = graph.nodes[spill.node].type->name;
  auto found = std::find_if(list.begin(), list.end(),
                            [&](const PackedResults& p) { return p.name == name && p.dtype == spill.dtype; });
  if (found == list.end()) found = list.insert(list.end(), {std::string(name), spill.dtype});
  const std::size_t bytes = graph.bytes_of(value);
  ++found->tensors;
  found->bytes += bytes;
  found->packed_bytes +=
      packed_bytes(static_cast<std::int64_t>(bytes / size_of(graph.values[value].dtype)), spill.dtype);
}

void count_spills(Plan& plan, const TapeGraph& graph) {
  plan.offloaded_bytes = plan.packed_bytes = 0;
  plan.packed.clear();
  if (!plan.tape) return;
  for (const TapePlan::Spill& spill : plan.tape->spills) {
    const TapeGraph::Node& node = graph.nodes[spill.node];
    std::uint32_t value = node.output;
    for (std::size_t k = 0; k < node.saved.size(); ++k) {
      if (node.places[k] == spill.which) value = node.saved[k];
    }
    const bool is_offloaded = spill.form == TapePlan::Spill::Form::offload;
    (is_offloaded ? plan.offloaded_bytes : plan.packed_bytes) += graph.bytes_of(value);
    if (!is_offloaded) add_packed(plan.packed, graph, spill, value);
  }
}

}  // namespace thimble::nn
