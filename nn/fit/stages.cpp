#include <thimble/nn/fit/stages.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/autograd/node.h>
#include <thimble/core/context.h>
#include <thimble/memory/remat/select.h>

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

/// One stage as a graph for the solver, and which of its tensors belong to which node.
class Block {
 public:
  Block(const TapeGraph& graph, const std::vector<StorageUse>& uses, const std::vector<NodeTimes>& times,
        std::uint32_t first, std::uint32_t end, std::vector<bool>& has_gradient)
      : graph_(graph), uses_(uses), times_(times), first_(first), end_(end), tensor_of_(graph.storages.size(), none) {
    for (std::uint32_t n = first; n < end; ++n) add(n);
    // From the last stage to the first: a parameter's gradient is made by the last operator that reads it.
    for (std::uint32_t n = first; n < end; ++n) {
      for (const std::uint32_t value : graph.nodes[n].inputs) {
        if (value == TapeGraph::none || !graph.values[value].is_leaf) continue;
        const std::uint32_t storage = graph.values[value].storage;
        if (storage == TapeGraph::none || has_gradient[storage]) continue;
        has_gradient[storage] = true;
        parameter_gradient_bytes_ += static_cast<remat::Bytes>(graph.bytes_of(value));
        block_.tensors[tensor_of_[storage]].gradient_bytes = static_cast<remat::Bytes>(graph.bytes_of(value));
      }
    }
  }

  const remat::Graph& graph() const noexcept { return block_; }
  bool is_empty() const noexcept { return block_.operators.empty(); }
  remat::Bytes parameter_gradient_bytes() const noexcept { return parameter_gradient_bytes_; }

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
    if (node.type->has_remake && !extras.empty()) {
      // What it saves takes the whole forward; its result is made again from that.
      remat::GraphOperator saving = op;
      saving.outputs = extras;
      saving.cost = std::max<remat::Time>(0, nanoseconds(times_[n].forward - times_[n].remake));
      block_.operators.push_back(std::move(saving));
      op.name += " (result)";
      for (const std::uint32_t t : extras) append(op.inputs, t);
      op.backward_reads.clear();
      op.cost = nanoseconds(times_[n].remake);
    } else {
      for (const std::uint32_t t : extras) append(outputs, t);
      op.cost = nanoseconds(times_[n].forward);
    }
    op.outputs = outputs;
    block_.operators.push_back(std::move(op));
  }

  const TapeGraph& graph_;
  const std::vector<StorageUse>& uses_;
  const std::vector<NodeTimes>& times_;
  std::uint32_t first_, end_;
  std::vector<std::uint32_t> tensor_of_;  // per storage
  remat::Graph block_;
  remat::Bytes parameter_gradient_bytes_ = 0;
};

}  // namespace stages_detail

std::vector<std::uint32_t> cut_points(const TapeGraph& graph) {
  return stages_detail::boundaries(graph, stages_detail::storage_uses(graph));
}

std::vector<std::vector<std::size_t>> groupings(const std::vector<std::size_t>& crossing) {
  const std::size_t count = crossing.size();
  std::vector<std::vector<std::size_t>> all;
  const auto add = [&](auto&& size_at) {
    std::vector<std::size_t> sizes;
    std::size_t left = count;
    while (left > 0) {
      sizes.push_back(std::min<std::size_t>(left, std::max<std::size_t>(1, size_at(sizes.size()))));
      left -= sizes.back();
    }
    if (std::find(all.begin(), all.end(), sizes) == all.end()) all.push_back(std::move(sizes));
  };
  add([](std::size_t) { return 1; });
  for (const std::size_t equal : {2, 3, 4}) add([=](std::size_t) { return equal; });
  for (std::size_t first = 2; first <= count / 2; first += 1 + first / 4) {
    add([=](std::size_t i) { return i == 0 ? first : 1; });                     // first, 1, 1, ...
    add([=](std::size_t i) { return first - std::min(i, first); });             // first, first - 1, ...
    add([=](std::size_t i) { return first >> std::min<std::size_t>(i, 60); });  // first, first / 2, ...
  }
  // Runs of stages that end with equally large tensors, whole or in parts; the first few of them, the rest as they are.
  std::vector<std::size_t> runs;
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && crossing[i] == crossing[i - 1]) {
      ++runs.back();
    } else {
      runs.push_back(1);
    }
  }
  for (const std::size_t longest : {12, 8, 6, 4, 3, 2}) {
    for (std::size_t joined = 1; joined <= std::min<std::size_t>(runs.size(), 6); ++joined) {
      std::vector<std::size_t> sizes;
      for (std::size_t r = 0; r < runs.size(); ++r) {
        const std::size_t parts = r < joined ? (runs[r] + longest - 1) / longest : runs[r];
        for (std::size_t p = 0; p < parts; ++p) sizes.push_back(runs[r] * (p + 1) / parts - runs[r] * p / parts);
      }
      add([&](std::size_t i) { return sizes[i]; });
    }
  }
  return all;
}

StagedGraph make_stages(const TapeGraph& graph, const std::vector<NodeTimes>& times,
                        const std::vector<std::uint32_t>& cuts, std::size_t options) {
  using namespace stages_detail;
  const std::vector<StorageUse> uses = storage_uses(graph);
  StagedGraph staged;
  for (const TapeGraph::Node& node : graph.nodes) staged.types.push_back(node.type);
  std::vector<bool> has_gradient(graph.storages.size());
  staged.stages.resize(cuts.size() - 1);
  staged.chain.stages.resize(cuts.size() - 1);
  for (std::size_t i = cuts.size() - 1; i-- > 0;) {
    StagedGraph::Stage& stage = staged.stages[i];
    remat::Stage& of_chain = staged.chain.stages[i];
    stage.first = cuts[i], stage.end = cuts[i + 1];
    const Block block(graph, uses, times, stage.first, stage.end, has_gradient);
    of_chain.name = std::string(path_name(graph.nodes[stage.first].path));
    const TapeGraph::Node& last = graph.nodes[stage.end - 1];
    of_chain.output_bytes = static_cast<remat::Bytes>(graph.bytes_of(last.output));
    of_chain.output_gradient_bytes = last.needs.any() ? of_chain.output_bytes : 0;
    of_chain.parameter_gradient_bytes = block.parameter_gradient_bytes();
    double backward = 0;
    for (std::uint32_t n = stage.first; n < stage.end; ++n) backward += times[n].backward;
    for (const remat::KeptPlan& plan : remat::block_options(block.graph(), options)) {
      remat::Option option =
          remat::chain_option(block.graph(), plan.selection, "option " + std::to_string(of_chain.options.size()));
      option.backward_time = nanoseconds(backward);
      of_chain.forward_time = option.forward_time;
      of_chain.forward_peak_bytes = std::max(of_chain.forward_peak_bytes, option.forward_peak_bytes);
      of_chain.options.push_back(std::move(option));
      stage.fates.push_back(block.fates(plan.selection));
    }
  }
  return staged;
}

TapePlan make_tape_plan(const StagedGraph& staged, const remat::Plan& plan) {
  TapePlan tape;
  tape.types = staged.types;
  tape.fates.assign(staged.types.size(), Fate::drop);
  // The items of a dropped one follow it; `end` is the place in the list where a segment's items end.
  struct Open {
    std::int32_t segment;
    std::size_t end;
  };
  std::vector<Open> open;
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    while (!open.empty() && open.back().end <= i) open.pop_back();
    const remat::Plan::Item& item = plan.items[i];
    const std::int32_t parent = open.empty() ? TapePlan::none : open.back().segment;
    const std::uint32_t first = staged.stages[item.begin].first, end = staged.stages[item.end - 1].end;
    if (item.is_dropped()) {
      open.push_back({static_cast<std::int32_t>(tape.segments.size()), i + 1 + item.size});
      tape.segments.push_back({first, end, parent});
    } else if (item.option > 0) {
      tape.segments.push_back({first, end, parent});
      const std::vector<Fate>& fates = staged.stages[item.begin].fates[item.option];
      std::copy(fates.begin(), fates.end(), tape.fates.begin() + first);
    }
  }
  return tape;
}

}  // namespace thimble::nn
