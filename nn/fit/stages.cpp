#include <thimble/nn/fit/stages.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include <thimble/autograd/node.h>
#include <thimble/core/ops/conv/conv.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/matmul/matmul.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/remat/peak_options.h>
#include <thimble/nn/fit/option_cache.h>

namespace thimble::nn {
namespace {

constexpr int costly_nodes_per_stage = 4;  // in runs without residual branches
constexpr int costly_nodes_of_block = 8;   // a tensor that lives longer is no residual branch
constexpr double crossing_weight = 3;      // cost in stages of one mean stage's bytes crossing a cut

/// Uses of the storage of values, which views share.
struct StorageUse {
  std::int32_t made_by = -1;  // first node; -1 from outside
  std::int32_t last_read = -1;
  int readers = 0;  // nodes other than views
};

std::uint32_t storage_of(const TapeGraph& graph, std::uint32_t value) {
  return value == TapeGraph::none ? TapeGraph::none : graph.values[value].storage;
}

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
      use.readers += graph.nodes[n].type->cost != ops::Cost::view;
    }
  }
  return uses;
}

/// First nodes of the stages, and the end of the last one.
std::vector<std::uint32_t> boundaries(const TapeGraph& graph, const std::vector<StorageUse>& uses) {
  const auto count = static_cast<std::uint32_t>(graph.nodes.size());
  std::vector<int> costly_before(1, 0);
  for (const TapeGraph::Node& node : graph.nodes) {
    costly_before.push_back(costly_before.back() + (node.type->cost == ops::Cost::matmul ? 1 : 0));
  }
  const auto lives_long = [&](const StorageUse& use) {
    return costly_before[static_cast<std::size_t>(use.last_read)] -
               costly_before[static_cast<std::size_t>(use.made_by)] >
           costly_nodes_of_block;
  };
  // Storages that cross the place before each node: local ones begin and end nearby, long-lived ones pass.
  std::vector<int> begins(count + 1), ends(count + 1), passes(count + 1);
  std::vector<std::int64_t> more_bytes(count + 1);
  for (std::size_t s = 0; s < uses.size(); ++s) {
    const StorageUse& use = uses[s];
    if (use.made_by < 0 || use.last_read <= use.made_by) continue;
    more_bytes[static_cast<std::size_t>(use.made_by) + 1] += static_cast<std::int64_t>(graph.storages[s].bytes);
    more_bytes[static_cast<std::size_t>(use.last_read) + 1] -= static_cast<std::int64_t>(graph.storages[s].bytes);
    if (lives_long(use)) {
      ++passes[static_cast<std::size_t>(use.made_by) + 1];
      --passes[static_cast<std::size_t>(use.last_read) + 1];
      continue;
    }
    ++begins[static_cast<std::size_t>(use.made_by) + 1];
    ++ends[static_cast<std::size_t>(use.last_read) + 1];
  }
  std::vector<std::uint32_t> cuts{0};
  std::uint32_t fallback = 0;  // place since the last cut where the fewest bytes cross
  std::int64_t fewest = 0;
  int crossing = 0, passing = 0, costly = 0;
  std::int64_t bytes = 0;
  for (std::uint32_t n = 1; n < count; ++n) {
    crossing += begins[n] - ends[n];
    passing += passes[n];
    bytes += more_bytes[n];
    costly += graph.nodes[n - 1].type->cost == ops::Cost::matmul;
    if (std::find(graph.ends.begin(), graph.ends.end(), n) != graph.ends.end()) {
      cuts.push_back(n);
      costly = 0;
      continue;
    }
    const std::uint32_t made = graph.nodes[n - 1].output;
    const std::uint32_t storage = graph.values[made].storage;
    const bool is_its_output = storage != TapeGraph::none && uses[storage].made_by >= 0 &&
                               uses[storage].last_read >= static_cast<std::int32_t>(n);
    if (!is_its_output || crossing > (lives_long(uses[storage]) ? 0 : 1)) continue;
    // Stages begin with a node that computes; if long-lived tensors pass, a view of one may begin a stage, too.
    const bool has_view = graph.nodes[n].type->cost == ops::Cost::view;
    const bool is_viewed = has_view && (passing == 0 || storage_of(graph, graph.nodes[n].output) == storage);
    if (uses[storage].readers > 1 && !is_viewed && costly > 0) {
      cuts.push_back(n);
      costly = 0;
    } else if (costly >= costly_nodes_per_stage && fallback > cuts.back()) {
      cuts.push_back(fallback);
      costly = 0;
    }
    const bool is_next_costly = graph.nodes[n].type->cost == ops::Cost::matmul;
    if (graph.nodes[n - 1].type->cost == ops::Cost::matmul || is_viewed || (passing == 0 && !is_next_costly)) continue;
    const bool is_better = passing == 0 || (is_next_costly ? bytes <= fewest : bytes < fewest);
    if (fallback <= cuts.back() || is_better) fallback = n, fewest = bytes;
  }
  if (count > 0) costly += graph.nodes[count - 1].type->cost == ops::Cost::matmul;
  // The operators after the last product (a loss) stay in its stage.
  if (cuts.size() > 1 && costly == 0) cuts.pop_back();
  cuts.push_back(count);
  return cuts;
}

/// The last node that reads each leaf's storage, and so makes its gradient; -1 for other storages.
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

/// A recording and facts derived from it.
struct Recorded {
  const TapeGraph& graph;
  const std::vector<NodeTimes>& times;
  std::vector<StorageUse> uses;            // per storage
  std::vector<std::int32_t> leaf_readers;  // per storage
};

/// One or more stages as a graph for the solver, and the map from values to its tensors.
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
    for (std::uint32_t n = first; n < end; ++n) {
      add(n);
      operators_until_.push_back(static_cast<std::uint32_t>(block_.operators.size()));
      gradient_bytes_.resize(block_.operators.size(), static_cast<remat::Bytes>(graph.nodes[n].gradient_bytes));
    }
    for (std::uint32_t storage = 0; storage < tensor_of_.size(); ++storage) {
      if (tensor_of_[storage] == none) continue;
      remat::GraphTensor& tensor = block_.tensors[tensor_of_[storage]];
      tensor.is_result = !tensor.is_given && is_read_later(storage);
    }
    count_sums();
    if (first == 0 && end == graph.nodes.size()) hold_variables();
    std::vector<bool> has_gradient(graph.storages.size());
    for (std::uint32_t n = first; n < end; ++n) {
      for (const std::uint32_t value : graph.nodes[n].inputs) {
        if (value == TapeGraph::none || !graph.values[value].is_leaf) continue;
        const std::uint32_t storage = graph.values[value].storage;
        if (storage == TapeGraph::none || has_gradient[storage]) continue;
        if (recorded.leaf_readers[storage] >= static_cast<std::int32_t>(end)) continue;  // a later stage makes it
        has_gradient[storage] = true;
        parameter_gradient_bytes_ += static_cast<remat::Bytes>(graph.bytes_of(value));
        block_.tensors[tensor_of_[storage]].gradient_bytes = static_cast<remat::Bytes>(graph.bytes_of(value));
      }
    }
  }

  const remat::Graph& graph() const noexcept { return block_; }
  remat::Bytes parameter_gradient_bytes() const noexcept { return parameter_gradient_bytes_; }
  /// Of each operator: all gradients before its backward, as observed.
  const std::vector<remat::Bytes>& gradient_bytes() const noexcept { return gradient_bytes_; }
  /// The tensor of a value of this block.
  std::uint32_t tensor_of(std::uint32_t value) const { return tensor_of_storage(graph_.values[value].storage); }
  std::uint32_t tensor_of_storage(std::uint32_t storage) const { return tensor_of_[storage]; }

  bool keeps(const remat::Selection& selection, std::uint32_t storage) const {
    return std::binary_search(selection.kept.begin(), selection.kept.end(), tensor_of_[storage]);
  }

  /// The storages that a selection keeps, except the last node's output and tensors that later stages read.
  std::vector<std::uint32_t> kept_storages(const remat::Selection& selection) const {
    std::vector<std::uint32_t> kept;
    const std::uint32_t output = graph_.values[graph_.nodes[end_ - 1].output].storage;
    for (std::uint32_t storage = 0; storage < tensor_of_.size(); ++storage) {
      if (tensor_of_[storage] == none || storage == output || is_read_later(storage)) continue;
      if (keeps(selection, storage)) kept.push_back(storage);
    }
    return kept;
  }

  /// Per tensor, whether a selection's backward or recomputation reads it.
  std::vector<bool> read_again(const remat::Selection& selection) const {
    std::vector<bool> is_read(block_.tensors.size());
    for (const remat::GraphOperator& op : block_.operators) {
      for (const std::uint32_t t : op.backward_reads) is_read[t] = true;
    }
    for (const std::uint32_t i : selection.recomputed) {
      for (const std::uint32_t t : block_.operators[i].inputs) is_read[t] = true;
    }
    return is_read;
  }

  /// The fates of the nodes under a selection.
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

  bool is_read_later(std::uint32_t storage) const {
    return uses_[storage].last_read >= static_cast<std::int32_t>(end_);
  }

  // The tensor of a value; `none` if it has no bytes.
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
    if (t.is_given && uses_[storage].made_by >= 0) t.gradient_bytes = bytes_of_gradient(value);
    block_.tensors.push_back(t);
    return at;
  }

  remat::Bytes bytes_of_gradient(std::uint32_t value) const {
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
    if (block_.tensors[output].is_given) return;  // the program also holds it off the tape (detach), so it stays
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
    op.is_backward_in_place = node.type->cost == ops::Cost::elementwise || node.type->cost == ops::Cost::reduction;
    op.frees_reads_first = node.is<ops::Conv2d>() || node.is<ops::ConvTranspose2d>() || node.is<ops::Linear>();
    if (node.is<ops::Concat>()) op.windows = windows(n);
    if (node.type->has_output_from_saved && !extras.empty()) {
      // Saving takes the whole forward; the result is recomputed from the saved tensors.
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

  /// The inputs of a concat whose gradients wait as windows, without a copy.
  std::vector<std::uint32_t> windows(std::uint32_t n) const {
    std::vector<std::uint32_t> list;
    for (const std::uint32_t value : graph_.nodes[n].inputs) {
      const std::uint32_t t = storage_of(graph_, value) == TapeGraph::none ? none : tensor_of(value);
      const std::int32_t producer = t == none ? -1 : graph_.values[value].producer;
      const bool waits_long = n > static_cast<std::uint32_t>(producer) + ops::Concat::longest_wait;
      if (producer < 0 || waits_long || block_.tensors[t].is_given || block_.tensors[t].gradient_bytes == 0) continue;
      if (std::find(list.begin(), list.end(), t) == list.end()) list.push_back(t);
    }
    return list;
  }

  /// Keeps tensors in the forward while the program holds them.
  void hold_variables() {
    for (const TapeGraph::Value& value : graph_.values) {
      if (value.storage == TapeGraph::none || tensor_of_[value.storage] == none) continue;
      remat::GraphTensor& tensor = block_.tensors[tensor_of_[value.storage]];
      if (tensor.is_given || value.producer < 0) continue;
      const std::uint32_t until = std::min(value.program_until, end_ - 1);
      const std::uint32_t op = operators_until_[until - first_];
      if (op > 0) tensor.held_until = std::max(tensor.held_until, op - 1);
    }
  }

  /// If a later operator has already made a gradient, each addend is a separate tensor.
  void count_sums() {
    std::vector<bool> has_sum(block_.tensors.size());
    for (std::uint32_t storage = 0; storage < tensor_of_.size(); ++storage) {
      if (tensor_of_[storage] == none || uses_[storage].made_by < 0 || !is_read_later(storage)) continue;
      has_sum[tensor_of_[storage]] = true;
    }
    for (std::size_t i = block_.operators.size(); i-- > 0;) {
      remat::GraphOperator& op = block_.operators[i];
      const auto has_gradient = [&](std::uint32_t t) { return block_.tensors[t].gradient_bytes > 0; };
      if (std::none_of(op.outputs.begin(), op.outputs.end(), has_gradient)) continue;
      for (const std::uint32_t t : op.inputs) {
        if (has_sum[t]) op.backward_peak_bytes += block_.tensors[t].gradient_bytes;
        has_sum[t] = true;
      }
    }
    // Here these gradients are only added to.
    for (std::uint32_t storage = 0; storage < tensor_of_.size(); ++storage) {
      if (tensor_of_[storage] == none || !is_read_later(storage)) continue;
      remat::GraphTensor& tensor = block_.tensors[tensor_of_[storage]];
      if (tensor.is_given) tensor.gradient_bytes = 0;
    }
  }

  const TapeGraph& graph_;
  const std::vector<StorageUse>& uses_;
  const std::vector<NodeTimes>& times_;
  std::uint32_t first_, end_;
  std::vector<std::uint32_t> tensor_of_;        // per storage
  std::vector<std::uint32_t> operators_until_;  // number of operators up to each node
  remat::Graph block_;
  remat::Bytes parameter_gradient_bytes_ = 0;
  std::vector<remat::Bytes> gradient_bytes_;
};

/// Finds the tensors that a chain's stages share, and their storages. A stage's last output that only the next stage
/// reads is not one: it is an activation of the chain.
std::vector<std::uint32_t> find_shared(const Recorded& recorded, const std::vector<std::uint32_t>& cuts,
                                       remat::Chain& chain) {
  const TapeGraph& graph = recorded.graph;
  const auto stage_of = [&](std::size_t node) {
    return static_cast<std::uint32_t>(std::upper_bound(cuts.begin(), cuts.end(), node) - cuts.begin() - 1);
  };
  std::vector<std::vector<std::uint32_t>> readers(graph.storages.size());  // stages after the maker's
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const std::uint32_t value : graph.nodes[n].inputs) {
      const std::uint32_t storage = storage_of(graph, value);
      if (storage == TapeGraph::none || recorded.uses[storage].made_by < 0) continue;
      const std::uint32_t stage = stage_of(n);
      if (stage == stage_of(static_cast<std::size_t>(recorded.uses[storage].made_by))) continue;
      if (readers[storage].empty() || readers[storage].back() != stage) readers[storage].push_back(stage);
    }
  }
  struct Found {
    remat::SharedTensor tensor;
    std::uint32_t storage;
  };
  std::vector<Found> found;
  for (std::uint32_t storage = 0; storage < readers.size(); ++storage) {
    if (readers[storage].empty()) continue;
    const auto maker = static_cast<std::size_t>(recorded.uses[storage].made_by);
    const std::uint32_t stage = stage_of(maker);
    const bool is_output = storage_of(graph, graph.nodes[cuts[stage + 1] - 1].output) == storage;
    if (is_output && readers[storage] == std::vector<std::uint32_t>{stage + 1}) continue;
    const auto bytes = static_cast<remat::Bytes>(graph.storages[storage].bytes);
    found.push_back({{stage, std::move(readers[storage]), bytes, graph.nodes[maker].needs.any() ? bytes : 0}, storage});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& x, const Found& y) { return x.tensor.maker < y.tensor.maker; });
  std::vector<std::uint32_t> storages;
  for (Found& one : found) {
    chain.shared.push_back(std::move(one.tensor));
    storages.push_back(one.storage);
  }
  return storages;
}

/// Stages that options may span; limits the time to plan a long chain.
std::size_t longest_span(std::size_t stages) { return stages <= 24 ? 8 : stages <= 40 ? 6 : 3; }

}  // namespace

std::vector<std::uint32_t> cut_points(const TapeGraph& graph) { return boundaries(graph, storage_uses(graph)); }

std::vector<std::uint32_t> even_cuts(const TapeGraph& graph, std::size_t stages) {
  const std::vector<StorageUse> uses = storage_uses(graph);
  const std::size_t count = graph.nodes.size();
  std::vector<double> made(count + 1), crossing(count + 1);  // up to each node
  for (std::size_t s = 0; s < uses.size(); ++s) {
    if (uses[s].made_by < 0) continue;
    const auto begin = static_cast<std::size_t>(uses[s].made_by) + 1;
    const auto bytes = static_cast<double>(graph.storages[s].bytes);
    made[begin] += bytes;
    if (uses[s].last_read <= uses[s].made_by) continue;
    crossing[begin] += bytes;
    crossing[static_cast<std::size_t>(uses[s].last_read) + 1] -= bytes;
  }
  std::partial_sum(made.begin(), made.end(), made.begin());
  std::partial_sum(crossing.begin(), crossing.end(), crossing.begin());
  const double share = std::max(1.0, made[count]) / static_cast<double>(stages);
  const auto is_end = [&](std::uint32_t n) {
    return std::find(graph.ends.begin(), graph.ends.end(), n) != graph.ends.end();
  };
  std::vector<double> least(count + 1);  // cost of the stages before a place
  std::vector<std::uint32_t> before(count + 1), places{0};
  for (std::uint32_t n = 1; n <= count; ++n) {
    const std::uint32_t output = storage_of(graph, graph.nodes[n - 1].output);
    const bool crosses = output != TapeGraph::none && uses[output].made_by >= 0 &&
                         uses[output].last_read >= static_cast<std::int32_t>(n);
    if (!crosses && n < count && !is_end(n)) continue;
    const double cut = n < count ? crossing_weight * crossing[n] / share : 0;
    least[n] = std::numeric_limits<double>::infinity();
    for (std::size_t k = places.size(); k-- > 0;) {
      const double shares = (made[n] - made[places[k]]) / share;
      const double own = 1 + shares * shares + cut;
      if (own >= least[n]) break;  // longer stages cost more
      if (least[places[k]] + own < least[n]) least[n] = least[places[k]] + own, before[n] = places[k];
      if (is_end(places[k])) break;
    }
    places.push_back(n);
  }
  std::vector<std::uint32_t> cuts;
  for (auto n = static_cast<std::uint32_t>(count); n > 0; n = before[n]) cuts.push_back(n);
  cuts.push_back(0);
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

StagedGraph make_stages(const TapeGraph& graph, const std::vector<NodeTimes>& times,
                        const std::vector<std::uint32_t>& cuts, const StageLimits& limits,
                        const SpillVariants* variants) {
  const Recorded recorded{graph, times, storage_uses(graph), leaf_readers(graph)};
  const std::size_t count = cuts.size() - 1;
  const std::size_t longest = limits.span > 0 ? limits.span : longest_span(count);
  StagedGraph staged;
  for (const TapeGraph::Node& node : graph.nodes) staged.types.push_back(node.type);
  staged.sizes = graph.sizes();
  staged.ends = graph.ends;
  staged.stages.resize(count);
  staged.chain.stages.resize(count);
  const std::vector<std::uint32_t> shared = find_shared(recorded, cuts, staged.chain);
  std::vector<bool> is_shared(graph.storages.size());
  for (const std::uint32_t storage : shared) is_shared[storage] = true;
  const auto output_of = [&](std::size_t stage) { return storage_of(graph, graph.nodes[cuts[stage + 1] - 1].output); };
  const auto is_activation = [&](std::size_t stage) {
    return output_of(stage) == TapeGraph::none || !is_shared[output_of(stage)];
  };
  const auto add = [&](std::size_t i, const Block& block, remat::Option option, const remat::Selection& selection,
                       std::vector<TapePlan::Spill> spills) {
    const std::size_t end = i + option.span;
    option.name = "option " + std::to_string(staged.chain.stages[i].options.size());
    option.keeps_output = option.keeps_output && is_activation(end - 1);
    if (!shared.empty()) {
      const std::vector<bool> is_read = block.read_again(selection);
      for (std::uint32_t t = 0; t < shared.size(); ++t) {
        const remat::SharedTensor& tensor = staged.chain.shared[t];
        if (tensor.maker < i) {
          const bool is_given = tensor.is_read_in(i, end);
          if (is_given && !is_read[block.tensor_of_storage(shared[t])]) option.unread_shared.push_back(t);
        } else if (tensor.maker < end && tensor.readers.back() >= end) {
          if (block.keeps(selection, shared[t])) option.kept_shared.push_back(t);
        }
      }
    }
    staged.chain.stages[i].options.push_back(std::move(option));
    staged.stages[i].fates.push_back(block.fates(selection));
    staged.stages[i].spills.push_back(std::move(spills));
  };
  OptionCache cache;
  for (std::size_t i = 0; i < count; ++i) {
    StagedGraph::Stage& stage = staged.stages[i];
    remat::Stage& of_chain = staged.chain.stages[i];
    stage.first = cuts[i], stage.end = cuts[i + 1];
    of_chain.name = std::string(path_name(graph.nodes[stage.first].path));
    const TapeGraph::Node& last = graph.nodes[stage.end - 1];
    of_chain.output_bytes = is_activation(i) ? static_cast<remat::Bytes>(graph.bytes_of(last.output)) : 0;
    of_chain.output_gradient_bytes = last.needs.any() ? of_chain.output_bytes : 0;
    double backward = 0;
    for (std::size_t span = 1; span <= std::min(longest, count - i); ++span) {
      const std::uint32_t end = cuts[i + span];
      for (std::uint32_t n = cuts[i + span - 1]; n < end; ++n) backward += times[n].backward;
      const Block block(recorded, stage.first, end);
      if (span == 1) of_chain.parameter_gradient_bytes = block.parameter_gradient_bytes();
      std::vector<std::uint32_t> inner;
      for (std::size_t k = 1; k < span; ++k) inner.push_back(block.tensor_of(graph.nodes[cuts[i + k] - 1].output));
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
        add(i, block, option, entry.selection, {});
        const bool is_outer = &entry == &entries.front() || &entry == &entries.back();
        if (variants == nullptr || (span > 1 && !is_outer)) continue;
        SpillVariants::Stage of{stage.first, end, block.kept_storages(entry.selection)};
        if (i > 0 && is_activation(i - 1)) of.input = graph.values[graph.nodes[stage.first - 1].output].storage;
        for (SpillVariant& twin : variants->of(option, of)) {
          add(i, block, std::move(twin.option), entry.selection, std::move(twin.spills));
        }
      }
    }
  }
  return staged;
}

std::vector<WholePlan> whole_plans(const TapeGraph& graph, const std::vector<NodeTimes>& times, std::size_t limit) {
  const Recorded recorded{graph, times, storage_uses(graph), leaf_readers(graph)};
  const Block whole(recorded, 0, static_cast<std::uint32_t>(graph.nodes.size()));
  std::vector<WholePlan> plans;
  for (const remat::KeptPlan& plan : remat::peak_options(whole.graph(), limit, remat::Reruns::once)) {
    if (plan.selection.cost > 0) plans.push_back({whole.fates(plan.selection), plan.selection.cost});
  }
  return plans;
}

remat::TimeBound time_bound(const TapeGraph& graph, const std::vector<NodeTimes>& times) {
  const Recorded recorded{graph, times, storage_uses(graph), leaf_readers(graph)};
  const Block whole(recorded, 0, static_cast<std::uint32_t>(graph.nodes.size()));
  return remat::TimeBound(whole.graph(), whole.gradient_bytes());
}

TapePlan make_tape_plan(const StagedGraph& staged, const WholePlan& plan) {
  TapePlan tape;
  tape.types = staged.types;
  tape.sizes = staged.sizes;
  tape.ends = staged.ends;
  tape.fates = plan.fates;
  tape.segments.push_back({0, static_cast<std::uint32_t>(plan.fates.size()), TapePlan::none});
  return tape;
}

TapePlan make_tape_plan(const StagedGraph& staged, const remat::ScheduleTree& plan) {
  TapePlan tape;
  tape.types = staged.types;
  tape.sizes = staged.sizes;
  tape.ends = staged.ends;
  tape.fates.assign(staged.types.size(), Fate::drop);
  // The items of a dropped segment follow it; `end` is the index where a segment's items end.
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
