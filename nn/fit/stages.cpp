#include <thimble/nn/fit/stages.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/autograd/node.h>
#include <thimble/core/tensor/context.h>
#include <thimble/nn/fit/option_cache.h>

namespace thimble::nn {
namespace stages_detail {

constexpr int costly_nodes_per_stage = 4;  // in stretches without residual branches

remat::Time nanoseconds(double seconds) { return static_cast<remat::Time>(std::llround(seconds * 1e9)); }

/// What is known of the storage of values: views share one.
struct StorageUse {
  std::int32_t made_by = -1;  // first node; -1: from outside
  std::int32_t last_read = -1;
  int readers = 0;  // nodes other than views
};

std::vector<StorageUse> storage_uses(const TapeGraph& graph) {
  std::vector<StorageUse> uses(graph.storages.size());
  std::vector<bool> is_outside(graph.storages.size());
  for (const TapeGraph::Value& value : graph.values) {
    if (value.storage == TapeGraph::none) continue;
    if (value.producer < 0) is_outside[value.storage] = true;
    StorageUse& use = uses[value.storage];
    if (value.producer >= 0 && (use.made_by < 0 || value.producer < use.made_by)) use.made_by = value.producer;
  }
  for (std::size_t s = 0; s < uses.size(); ++s) {
    if (is_outside[s]) uses[s].made_by = -1;
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const std::uint32_t value : graph.nodes[n].inputs) {
      if (value == TapeGraph::none || graph.values[value].storage == TapeGraph::none) continue;
      StorageUse& use = uses[graph.values[value].storage];
      use.last_read = static_cast<std::int32_t>(n);
      use.readers += graph.nodes[n].type->cost != Cost::view;
    }
  }
  return uses;
}

/// First nodes of the stages, and the end.
std::vector<std::uint32_t> boundaries(const TapeGraph& graph, const std::vector<StorageUse>& uses) {
  const auto count = static_cast<std::uint32_t>(graph.nodes.size());
  // Storages that cross the place before each node.
  std::vector<int> begins(count + 1), ends(count + 1);
  for (const StorageUse& use : uses) {
    if (use.made_by < 0 || use.last_read <= use.made_by) continue;
    ++begins[static_cast<std::size_t>(use.made_by) + 1];
    ++ends[static_cast<std::size_t>(use.last_read) + 1];
  }
  std::vector<std::uint32_t> cuts{0};
  std::uint32_t fallback = 0;  // the last place where one tensor crosses
  int crossing = 0, costly = 0;
  for (std::uint32_t n = 1; n < count; ++n) {
    crossing += begins[n] - ends[n];
    costly += graph.nodes[n - 1].type->cost == Cost::matmul;
    if (std::find(graph.ends.begin(), graph.ends.end(), n) != graph.ends.end()) {
      cuts.push_back(n);
      costly = 0;
      continue;
    }
    if (crossing != 1) continue;
    const std::uint32_t made = graph.nodes[n - 1].output;
    const std::uint32_t storage = graph.values[made].storage;
    const bool is_its_output = storage != TapeGraph::none && uses[storage].made_by >= 0 &&
                               uses[storage].last_read >= static_cast<std::int32_t>(n);
    if (!is_its_output) continue;
    if (uses[storage].readers > 1 && graph.nodes[n].type->cost != Cost::view && costly > 0) {
      cuts.push_back(n);
      costly = 0;
    } else if (costly >= costly_nodes_per_stage && fallback > cuts.back()) {
      cuts.push_back(fallback);
      costly = 0;
    }
    if (graph.nodes[n - 1].type->cost != Cost::matmul && graph.nodes[n].type->cost == Cost::matmul) fallback = n;
  }
  if (count > 0) costly += graph.nodes[count - 1].type->cost == Cost::matmul;
  // What comes after the last product (a loss) stays with it.
  if (cuts.size() > 1 && costly == 0) cuts.pop_back();
  cuts.push_back(count);
  return cuts;
}

/// The last node that reads each leaf's storage, which makes its gradient; -1 for other storages.
std::vector<std::int32_t> leaf_readers(const TapeGraph& graph) {
  std::vector<std::int32_t> readers(graph.storages.size(), -1);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const std::uint32_t value : graph.nodes[n].inputs) {
      if (value == TapeGraph::none || !graph.values[value].is_leaf) continue;
      const std::uint32_t storage = graph.values[value].storage;
      if (storage != TapeGraph::none) readers[storage] = static_cast<std::int32_t>(n);
    }
  }
  return readers;
}

/// A recording with what follows from it.
struct Recorded {
  const TapeGraph& graph;
  const std::vector<NodeTimes>& times;
  std::vector<StorageUse> uses;            // per storage
  std::vector<std::int32_t> leaf_readers;  // per storage
};

/// One stage, or several, as a graph for the solver, and which of its tensors belong to which node.
class Block {
 public:
  Block(const Recorded& recorded, std::uint32_t first, std::uint32_t end)
      : graph_(recorded.graph),
        uses_(recorded.uses),
        times_(recorded.times),
        first_(first),
        end_(end),
        tensor_of_(recorded.graph.storages.size(), none) {
    const TapeGraph& graph = recorded.graph;
    for (std::uint32_t n = first; n < end; ++n) add(n);
    count_sums();
    std::vector<bool> has_gradient(graph.storages.size());
    for (std::uint32_t n = first; n < end; ++n) {
      for (const std::uint32_t value : graph.nodes[n].inputs) {
        if (value == TapeGraph::none || !graph.values[value].is_leaf) continue;
        const std::uint32_t storage = graph.values[value].storage;
        if (storage == TapeGraph::none || has_gradient[storage]) continue;
        if (recorded.leaf_readers[storage] >= static_cast<std::int32_t>(end)) continue;  // a later stage's
        has_gradient[storage] = true;
        parameter_gradient_bytes_ += static_cast<remat::Bytes>(graph.bytes_of(value));
        block_.tensors[tensor_of_[storage]].gradient_bytes = static_cast<remat::Bytes>(graph.bytes_of(value));
      }
    }
  }

  const remat::Graph& graph() const noexcept { return block_; }
  remat::Bytes parameter_gradient_bytes() const noexcept { return parameter_gradient_bytes_; }
  /// The tensor of a value that is made here.
  std::uint32_t tensor_of(std::uint32_t value) const { return tensor_of_[graph_.values[value].storage]; }

  /// The storages that a selection keeps, its last node's output not among them.
  std::vector<std::uint32_t> kept_storages(const remat::Selection& selection) const {
    std::vector<std::uint32_t> kept;
    const std::uint32_t output = graph_.values[graph_.nodes[end_ - 1].output].storage;
    for (std::uint32_t storage = 0; storage < tensor_of_.size(); ++storage) {
      const std::uint32_t tensor = tensor_of_[storage];
      if (tensor == none || storage == output) continue;
      if (std::binary_search(selection.kept.begin(), selection.kept.end(), tensor)) kept.push_back(storage);
    }
    return kept;
  }

  /// What a selection means for the nodes.
  std::vector<Fate> fates(const remat::Selection& selection) const {
    std::vector<bool> is_kept(block_.tensors.size());
    for (const std::uint32_t t : selection.kept) is_kept[t] = true;
    const auto is_there = [&](std::uint32_t value) {
      const std::uint32_t storage = graph_.values[value].storage;
      if (storage == TapeGraph::none) return true;
      const std::uint32_t tensor = tensor_of_[storage];
      return tensor == none || block_.tensors[tensor].is_given || is_kept[tensor];
    };
    std::vector<Fate> fates;
    for (std::uint32_t n = first_; n < end_; ++n) {
      const TapeGraph::Node& node = graph_.nodes[n];
      bool keeps_saved = true;
      for (const std::uint32_t value : node.saved) {
        const bool is_operand = std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
        if (!is_operand && value != node.output) keeps_saved = keeps_saved && is_there(value);
      }
      fates.push_back(static_cast<Fate>((is_there(node.output) ? 1 : 0) | (keeps_saved ? 2 : 0)));
    }
    return fates;
  }

 private:
  static constexpr std::uint32_t none = ~0u;

  // The tensor of a value; none when it has no bytes.
  std::uint32_t tensor(std::uint32_t value) {
    if (value == TapeGraph::none || graph_.values[value].storage == TapeGraph::none) return none;
    const std::uint32_t storage = graph_.values[value].storage;
    std::uint32_t& at = tensor_of_[storage];
    if (at != none) return at;
    at = static_cast<std::uint32_t>(block_.tensors.size());
    remat::GraphTensor t;
    t.name = "storage " + std::to_string(storage);
    t.bytes = static_cast<remat::Bytes>(graph_.storages[storage].bytes);
    t.is_given = uses_[storage].made_by < static_cast<std::int32_t>(first_);
    if (t.is_given && uses_[storage].made_by >= 0) t.gradient_bytes = gradient_bytes(value);
    block_.tensors.push_back(t);
    return at;
  }

  remat::Bytes gradient_bytes(std::uint32_t value) const {
    const std::int32_t producer = graph_.values[value].producer;
    const bool needs = producer >= 0 && graph_.nodes[static_cast<std::size_t>(producer)].needs.any();
    return needs ? static_cast<remat::Bytes>(graph_.bytes_of(value)) : 0;
  }

  void add(std::uint32_t n) {
    const TapeGraph::Node& node = graph_.nodes[n];
    std::vector<std::uint32_t> inputs, outputs, extras, reads;
    const auto append = [](std::vector<std::uint32_t>& list, std::uint32_t t) {
      if (t != none && std::find(list.begin(), list.end(), t) == list.end()) list.push_back(t);
    };
    for (const std::uint32_t value : node.inputs) append(inputs, tensor(value));
    const std::uint32_t output = tensor(node.output);
    if (std::find(inputs.begin(), inputs.end(), output) != inputs.end()) return;  // a view
    if (output == none) return;
    if (block_.tensors[output].is_given) return;  // the program holds it as well, off the tape (detach): it is there
    block_.tensors[output].gradient_bytes = node.needs.any() ? block_.tensors[output].bytes : 0;
    outputs.push_back(output);
    for (const std::uint32_t value : node.saved) {
      const std::uint32_t t = tensor(value);
      append(reads, t);
      const bool is_made_here = t != none && t != output && std::find(inputs.begin(), inputs.end(), t) == inputs.end();
      if (is_made_here) append(extras, t);
    }
    if (!node.needs.any()) reads.clear();
    remat::GraphOperator op;
    op.name = node.type->name;
    op.inputs = inputs;
    op.backward_reads = reads;
    op.is_backward_in_place = node.type->cost == Cost::elementwise || node.type->cost == Cost::reduction;
    if (node.type->has_output_from_saved && !extras.empty()) {
      // What it saves takes the whole forward; its result is recomputed from that.
      remat::GraphOperator saving = op;
      saving.outputs = extras;
      saving.backward_reads.clear();
      saving.cost = std::max<remat::Time>(0, nanoseconds(times_[n].forward - times_[n].recompute));
      block_.operators.push_back(std::move(saving));
      op.name += " (result)";
      for (const std::uint32_t t : extras) append(op.inputs, t);
      op.cost = nanoseconds(times_[n].recompute);
    } else {
      for (const std::uint32_t t : extras) append(outputs, t);
      op.cost = nanoseconds(times_[n].forward);
    }
    op.outputs = outputs;
    block_.operators.push_back(std::move(op));
  }

  /// Where a gradient is there already, from an operator further on, what is added to it is made beside it.
  void count_sums() {
    std::vector<bool> is_read_later(block_.tensors.size());
    for (std::size_t i = block_.operators.size(); i-- > 0;) {
      remat::GraphOperator& op = block_.operators[i];
      const auto has_gradient = [&](std::uint32_t t) { return block_.tensors[t].gradient_bytes > 0; };
      if (std::none_of(op.outputs.begin(), op.outputs.end(), has_gradient)) continue;
      for (const std::uint32_t t : op.inputs) {
        if (is_read_later[t]) op.backward_peak_bytes += block_.tensors[t].gradient_bytes;
        is_read_later[t] = true;
      }
    }
  }

  const TapeGraph& graph_;
  const std::vector<StorageUse>& uses_;
  const std::vector<NodeTimes>& times_;
  std::uint32_t first_, end_;
  std::vector<std::uint32_t> tensor_of_;  // per storage
  remat::Graph block_;
  remat::Bytes parameter_gradient_bytes_ = 0;
};

/// Stages that options may span, so that planning a long chain stays short.
std::size_t longest_span(std::size_t stages) { return stages <= 24 ? 8 : stages <= 40 ? 6 : 3; }

}  // namespace stages_detail

std::vector<std::uint32_t> cut_points(const TapeGraph& graph) {
  return stages_detail::boundaries(graph, stages_detail::storage_uses(graph));
}

StagedGraph make_stages(const TapeGraph& graph, const std::vector<NodeTimes>& times,
                        const std::vector<std::uint32_t>& cuts, const StageLimits& limits,
                        const SpillVariants* variants) {
  using namespace stages_detail;
  const Recorded recorded{graph, times, storage_uses(graph), leaf_readers(graph)};
  const std::size_t count = cuts.size() - 1;
  const std::size_t longest = limits.span > 0 ? limits.span : longest_span(count);
  StagedGraph staged;
  for (const TapeGraph::Node& node : graph.nodes) staged.types.push_back(node.type);
  staged.sizes = graph.sizes();
  staged.ends = graph.ends;
  staged.stages.resize(count);
  staged.chain.stages.resize(count);
  OptionCache cache;
  for (std::size_t i = 0; i < count; ++i) {
    StagedGraph::Stage& stage = staged.stages[i];
    remat::Stage& of_chain = staged.chain.stages[i];
    stage.first = cuts[i], stage.end = cuts[i + 1];
    of_chain.name = std::string(path_name(graph.nodes[stage.first].path));
    const TapeGraph::Node& last = graph.nodes[stage.end - 1];
    of_chain.output_bytes = static_cast<remat::Bytes>(graph.bytes_of(last.output));
    of_chain.output_gradient_bytes = last.needs.any() ? of_chain.output_bytes : 0;
    double backward = 0;
    for (std::size_t span = 1; span <= std::min(longest, count - i); ++span) {
      const std::uint32_t end = cuts[i + span];
      for (std::uint32_t n = cuts[i + span - 1]; n < end; ++n) backward += times[n].backward;
      const Block block(recorded, stage.first, end);
      if (span == 1) of_chain.parameter_gradient_bytes = block.parameter_gradient_bytes();
      std::vector<std::uint32_t> inner;
      for (std::size_t k = 1; k < span; ++k) inner.push_back(block.tensor_of(graph.nodes[cuts[i + k] - 1].output));
      const auto add = [&](remat::Option option, const remat::Selection& selection,
                           std::vector<TapePlan::Spill> spills) {
        option.name = "option " + std::to_string(of_chain.options.size());
        of_chain.options.push_back(std::move(option));
        stage.fates.push_back(block.fates(selection));
        stage.spills.push_back(std::move(spills));
      };
      const std::vector<OptionCache::Entry>& entries =
          cache.options(block.graph(), inner, limits.options + limits.more * (span - 1));
      for (const OptionCache::Entry& entry : entries) {
        remat::Option option = entry.option;
        option.span = static_cast<std::uint32_t>(span);
        option.backward_time = nanoseconds(backward);
        if (span == 1) {
          of_chain.forward_time = option.forward_time;
          of_chain.forward_peak_bytes = std::max(of_chain.forward_peak_bytes, option.forward_peak_bytes);
        }
        add(option, entry.selection, {});
        const bool is_outer = &entry == &entries.front() || &entry == &entries.back();
        if (variants == nullptr || (span > 1 && !is_outer)) continue;
        SpillVariants::Stage of{stage.first, end, block.kept_storages(entry.selection)};
        if (i > 0) of.input = graph.values[graph.nodes[stage.first - 1].output].storage;
        for (SpillVariant& twin : variants->of(option, of)) {
          add(std::move(twin.option), entry.selection, std::move(twin.spills));
        }
      }
    }
  }
  return staged;
}

TapePlan make_tape_plan(const StagedGraph& staged, const remat::ScheduleTree& plan) {
  TapePlan tape;
  tape.types = staged.types;
  tape.sizes = staged.sizes;
  tape.ends = staged.ends;
  tape.fates.assign(staged.types.size(), Fate::drop);
  // The items of a dropped one follow it; `end` is the place in the list where a segment's items end.
  struct Open {
    std::int32_t segment;
    std::size_t end;
  };
  std::vector<Open> open;
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    while (!open.empty() && open.back().end <= i) open.pop_back();
    const remat::ScheduleTree::Item& item = plan.items[i];
    const std::int32_t parent = open.empty() ? TapePlan::none : open.back().segment;
    const std::uint32_t first = staged.stages[item.begin].first, end = staged.stages[item.end - 1].end;
    if (item.is_dropped()) {
      open.push_back({static_cast<std::int32_t>(tape.segments.size()), i + 1 + item.size});
      tape.segments.push_back({first, end, parent});
    } else if (item.option > 0) {
      tape.segments.push_back({first, end, parent});
      const std::vector<Fate>& fates = staged.stages[item.begin].fates[item.option];
      std::copy(fates.begin(), fates.end(), tape.fates.begin() + first);
      const std::vector<TapePlan::Spill>& spills = staged.stages[item.begin].spills[item.option];
      tape.spills.insert(tape.spills.end(), spills.begin(), spills.end());
    }
  }
  return tape;
}

}  // namespace thimble::nn
