#include <thimble/nn/fit/spilling.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <thimble/autograd/node.h>
#include <thimble/core/ops/quant/quantize.h>

namespace thimble::nn {

std::vector<Spillable> spillables(const TapeGraph& graph) {
  std::vector<Spillable> uses(graph.storages.size());
  for (const TapeGraph::Value& value : graph.values) {
    if (value.storage == TapeGraph::none) continue;
    Spillable& use = uses[value.storage];
    use.bytes = graph.storages[value.storage].bytes;
    use.dtype = value.dtype;
    if (value.is_leaf || value.producer < 0 || value.program_until == TapeGraph::none) {
      use.is_held = true;
    } else {
      use.until = std::max(use.until, value.program_until);
    }
  }
  const auto made = [&](std::uint32_t value, std::uint32_t node, std::int32_t which) {
    const std::uint32_t storage = graph.values[value].storage;
    if (storage == TapeGraph::none || graph.values[value].producer != static_cast<std::int32_t>(node)) return;
    if (uses[storage].node == TapeGraph::none) uses[storage].node = node, uses[storage].which = which;
  };
  for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const TapeGraph::Node& node = graph.nodes[n];
    made(node.output, n, TapePlan::Spill::result);
    for (std::size_t k = 0; k < node.saved.size(); ++k) {
      made(node.saved[k], n, node.places[k]);
      const std::uint32_t storage = graph.values[node.saved[k]].storage;
      if (storage != TapeGraph::none) uses[storage].is_saved = true;
    }
  }
  return uses;
}

namespace {

constexpr std::uint32_t nodes_ahead = 8;  // of later stages, whose backward may hide a stage's reads

}  // namespace

remat::Time nanoseconds(double seconds) { return static_cast<remat::Time>(std::llround(seconds * 1e9)); }

SpillVariants::SpillVariants(const TapeGraph& graph, const std::vector<NodeTimes>& times, const Hardware& hardware,
                             const SpillPolicy& spilling)
    : graph_(graph),
      times_(times),
      tier_bytes_per_s_(hardware.tier_bytes_per_s),
      bytes_per_s_(hardware.bytes_per_s),
      spilling_(spilling),
      uses_(spillables(graph)) {}

bool SpillVariants::is_spillable(std::uint32_t storage, const Stage& stage, TapePlan::Spill::Form form) const {
  const Spillable& use = uses_[storage];
  if (use.is_held || use.node == TapeGraph::none || use.until >= stage.end || use.bytes < spilling_.smallest)
    return false;
  if (form == TapePlan::Spill::Form::offload) return true;
  const std::optional<DType> to = spilling_.packed_as(*graph_.nodes[use.node].type);
  return use.which == TapePlan::Spill::result && to && can_pack(use.dtype, *to);
}

// The last node of the stage whose backward or recomputation may read a storage.
std::uint32_t SpillVariants::last_reader(std::uint32_t storage, const Stage& stage) const {
  const auto is_on_it = [&](std::uint32_t v) { return v != TapeGraph::none && graph_.values[v].storage == storage; };
  for (std::uint32_t n = stage.end; n-- > stage.first;) {
    const TapeGraph::Node& node = graph_.nodes[n];
    if (std::any_of(node.saved.begin(), node.saved.end(), is_on_it)) return n;
    if (std::any_of(node.inputs.begin(), node.inputs.end(), is_on_it)) return n;
  }
  return stage.first;
}

SpillVariant SpillVariants::offloaded(const remat::Option& option, const Stage& stage,
                                      std::vector<std::uint32_t> storages, bool has_input) const {
  SpillVariant result{option, {}};
  result.option.is_first_visit_only = true;
  std::vector<double> ends(stage.end - stage.first);  // of each node's forward
  double forward = 0;
  for (std::uint32_t n = stage.first; n < stage.end; ++n) {
    ends[n - stage.first] = forward += times_[n].forward;
  }
  const auto away_after = [&](std::uint32_t storage) { return std::max(uses_[storage].until, stage.first); };
  std::sort(storages.begin(), storages.end(),
            [&](std::uint32_t a, std::uint32_t b) { return away_after(a) < away_after(b); });
  double written = 0;  // time at which the tier is done
  remat::Bytes bytes = 0;
  for (const std::uint32_t storage : storages) {
    const Spillable& use = uses_[storage];
    TapePlan::Spill spill{use.node, use.which, TapePlan::Spill::Form::offload, use.dtype, away_after(storage), 0, 0};
    written = std::max(written, ends[spill.away_after - stage.first]);
    written += static_cast<double>(use.bytes) / tier_bytes_per_s_;
    spill.gone_after = spill.away_after;
    while (spill.gone_after + 1 < stage.end && ends[spill.gone_after - stage.first] < written) ++spill.gone_after;
    result.spills.push_back(spill);
    bytes += static_cast<remat::Bytes>(use.bytes);
  }
  // Reads, in the order in which backward uses them.
  std::uint32_t ahead = stage.end - 1;
  double hidden = 0;
  std::vector<std::pair<std::uint32_t, double>> reads;
  for (const std::uint32_t storage : storages) {
    reads.emplace_back(last_reader(storage, stage), static_cast<double>(uses_[storage].bytes) / tier_bytes_per_s_);
  }
  std::sort(reads.rbegin(), reads.rend());
  const auto last = std::min<std::size_t>(graph_.nodes.size() - 1, stage.end - 1 + nodes_ahead);
  while (ahead < last && hidden < reads.front().second) hidden += times_[++ahead].backward;
  double now = hidden, read = 0, waited = 0;  // time since the first read began
  std::uint32_t at = stage.end;
  for (const auto& [reader, seconds] : reads) {
    for (; at > reader + 1; --at) now += times_[at - 1].backward;
    read += seconds;
    if (read > now) waited += read - std::exchange(now, read);
  }
  for (TapePlan::Spill& spill : result.spills) spill.back_before = ahead;
  const remat::Bytes input = has_input ? static_cast<remat::Bytes>(uses_[stage.input].bytes) : 0;
  result.option.kept_bytes -= bytes - input;
  result.option.keeps_input = option.keeps_input && !has_input;
  result.option.forward_time += nanoseconds(std::max(0.0, written - forward));
  result.option.recompute_time += nanoseconds(waited);
  result.option.forward_peak_bytes += bytes - input;
  result.option.recompute_peak_bytes += bytes;
  result.option.backward_peak_bytes += bytes;
  return result;
}

SpillVariant SpillVariants::packed(const remat::Option& option, const Stage& stage,
                                   const std::vector<std::uint32_t>& storages, bool has_input) const {
  SpillVariant result{option, {}};
  result.option.is_first_visit_only = true;
  remat::Bytes bytes = 0, small = 0;
  for (const std::uint32_t storage : storages) {
    const Spillable& use = uses_[storage];
    const std::uint32_t after = std::max(use.until, stage.first);
    const DType to = *spilling_.packed_as(*graph_.nodes[use.node].type);
    result.spills.push_back({use.node, use.which, TapePlan::Spill::Form::pack, to, after, after, stage.end - 1});
    bytes += static_cast<remat::Bytes>(use.bytes);
    small += static_cast<remat::Bytes>(packed_bytes(static_cast<std::int64_t>(use.bytes / size_of(use.dtype)), to));
  }
  const remat::Bytes input = has_input ? static_cast<remat::Bytes>(uses_[stage.input].bytes) : 0;
  const remat::Time pass = nanoseconds(static_cast<double>(bytes + small) / bytes_per_s_);
  result.option.kept_bytes += small - (bytes - input);
  result.option.keeps_input = option.keeps_input && !has_input;
  result.option.forward_time += pass;
  result.option.recompute_time += pass;
  result.option.forward_peak_bytes += bytes - input;
  result.option.recompute_peak_bytes += bytes;
  result.option.backward_peak_bytes += bytes;
  return result;
}

std::vector<SpillVariant> SpillVariants::of(const remat::Option& option, const Stage& stage) const {
  std::vector<SpillVariant> list;
  using Form = TapePlan::Spill::Form;
  for (const Form form : {Form::offload, Form::pack}) {
    if (!(form == Form::offload ? spilling_.offloads : spilling_.packs)) continue;
    std::vector<std::uint32_t> inner;
    for (const std::uint32_t storage : stage.kept) {
      if (is_spillable(storage, stage, form)) inner.push_back(storage);
    }
    const auto add = [&](std::vector<std::uint32_t> storages, bool has_input) {
      if (storages.empty()) return;
      list.push_back(form == Form::offload ? offloaded(option, stage, std::move(storages), has_input)
                                           : packed(option, stage, storages, has_input));
    };
    add(inner, false);
    if (stage.input == TapeGraph::none || !option.keeps_input || !is_spillable(stage.input, stage, form)) continue;
    add({stage.input}, true);
    if (inner.empty()) continue;
    inner.push_back(stage.input);
    add(std::move(inner), true);
  }
  return list;
}

}  // namespace thimble::nn
