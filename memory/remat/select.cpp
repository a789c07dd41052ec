#include <algorithm>

#include <thimble/memory/remat/kept_space.h>
#include <thimble/memory/remat/select.h>

namespace thimble::remat {

namespace select_detail {

/// One vertex for each component of a space.
class Choice {
 public:
  explicit Choice(const KeptSpace& space) : space_(&space) {
    bytes_ = space.fixed_bytes();
    for (std::size_t c = 0; c < space.size(); ++c) {
      now_.push_back(space.vertices(c).front());
      bytes_ += now_.back().bytes;
      cost_ += now_.back().cost;
    }
  }

  Bytes bytes() const { return bytes_; }
  Time cost() const { return cost_; }
  const KeptSpace::Vertex& at(std::size_t component) const { return now_[component]; }

  void set(std::size_t component, KeptSpace::Vertex vertex) {
    bytes_ += vertex.bytes - now_[component].bytes;
    cost_ += vertex.cost - now_[component].cost;
    now_[component] = std::move(vertex);
  }

  Selection selection() const {
    std::vector<const KeptSpace::Vertex*> all;
    for (const KeptSpace::Vertex& vertex : now_) all.push_back(&vertex);
    return space_->selection(all);
  }

 private:
  const KeptSpace* space_;
  std::vector<KeptSpace::Vertex> now_;
  Bytes bytes_ = 0;
  Time cost_ = 0;
};

/// A change of one component that lowers the cost, and the bytes that it takes.
struct Change {
  std::size_t component;
  KeptSpace::Vertex vertex;
  Bytes bytes;
  Time saved;
};

/// All single changes that take at most `slack` bytes, by falling saving: back to an earlier vertex, or one operator
/// less that runs again.
std::vector<Change> changes(const KeptSpace& space, const Choice& choice, Bytes slack) {
  std::vector<Change> found;
  const auto offer = [&](std::size_t c, KeptSpace::Vertex vertex) {
    const Bytes bytes = vertex.bytes - choice.at(c).bytes;
    const Time saved = choice.at(c).cost - vertex.cost;
    if (bytes <= slack && saved > 0) found.push_back({c, std::move(vertex), bytes, saved});
  };
  for (std::size_t c = 0; c < space.size(); ++c) {
    if (choice.at(c).cost == 0) continue;
    for (const KeptSpace::Vertex& vertex : space.vertices(c)) offer(c, vertex);
    for (const std::uint32_t i : choice.at(c).recomputed) offer(c, space.without(c, choice.at(c), i));
  }
  std::stable_sort(found.begin(), found.end(), [](const Change& x, const Change& y) {
    return x.saved != y.saved ? x.saved > y.saved : x.bytes < y.bytes;
  });
  return found;
}

/// Takes back what still fits, the largest savings first.
void fill(const KeptSpace& space, Choice& choice, Bytes budget) {
  bool has_changed = true;
  while (has_changed) {
    has_changed = false;
    std::vector<bool> is_stale(space.size());
    for (Change& change : changes(space, choice, budget - choice.bytes())) {
      if (is_stale[change.component] || change.bytes > budget - choice.bytes()) continue;
      is_stale[change.component] = true;
      has_changed = true;
      choice.set(change.component, std::move(change.vertex));
    }
  }
}

/// The hull of the whole where it crosses a budget.
struct Crossing {
  Choice above;          // the last vertex with more bytes than the budget
  Choice within;         // the next one
  Time lower_bound = 0;  // the hull's value at the budget, rounded up
};

/// Refines the edges on both sides of each component's position. Returns true when one was split.
bool refine_around(KeptSpace& space, const std::vector<std::size_t>& position) {
  bool is_split = false;
  for (std::size_t c = 0; c < space.size(); ++c) {
    std::size_t here = position[c];
    if (here > 0 && !space.is_proven(c, here - 1) && space.refine(c, here - 1)) {
      is_split = true;
      ++here;
    }
    if (here + 1 < space.vertices(c).size() && !space.is_proven(c, here)) is_split = space.refine(c, here) || is_split;
  }
  return is_split;
}

/// Walks along the edges to the budget, below which the walk must end, until all edges next to the crossing are proven.
Crossing cross(KeptSpace& space, Bytes budget) {
  while (true) {
    std::vector<std::size_t> position(space.size(), 0);
    Bytes bytes = Choice(space).bytes();
    Time cost = 0;
    KeptSpace::Edge last;
    for (const KeptSpace::Edge& edge : space.edges()) {
      if (bytes <= budget) break;
      last = edge;
      position[edge.component] = edge.position + 1;
      bytes -= edge.bytes;
      cost += edge.cost;
    }
    if (refine_around(space, position)) continue;
    Crossing at{Choice(space), Choice(space), 0};
    for (std::size_t c = 0; c < space.size(); ++c) {
      at.within.set(c, space.vertices(c)[position[c]]);
      at.above.set(c, space.vertices(c)[position[c] - (c == last.component ? 1 : 0)]);
    }
    // On the last edge the hull rises by edge.cost over edge.bytes.
    const Wide left = Wide{budget - bytes} * last.cost / last.bytes;
    at.lower_bound = cost - static_cast<Time>(left);
    return at;
  }
}

/// From above the budget to within it by the one change that costs least, when there is one.
bool step_within(const KeptSpace& space, Choice& choice, Bytes budget) {
  const KeptSpace::Vertex* best = nullptr;
  std::size_t component = 0;
  for (std::size_t c = 0; c < space.size(); ++c) {
    for (const KeptSpace::Vertex& vertex : space.vertices(c)) {
      if (choice.bytes() - choice.at(c).bytes + vertex.bytes > budget) continue;
      if (best != nullptr && vertex.cost - choice.at(c).cost >= best->cost - choice.at(component).cost) continue;
      best = &vertex;
      component = c;
    }
  }
  if (best != nullptr) choice.set(component, *best);
  return best != nullptr;
}

}  // namespace select_detail

Time hull_cost(KeptSpace& space, Bytes kept_bytes) {
  const select_detail::Choice all(space);
  if (all.bytes() <= kept_bytes) return 0;
  Bytes least = space.fixed_bytes();
  Time most = 0;
  for (std::size_t c = 0; c < space.size(); ++c) {
    least += space.vertices(c).back().bytes;
    most += space.vertices(c).back().cost;
  }
  return least > kept_bytes ? most : select_detail::cross(space, kept_bytes).lower_bound;
}

KeptPlan select_kept(const Graph& graph, Bytes kept_bytes) {
  using select_detail::Choice;
  KeptSpace space(graph);
  KeptPlan plan;
  Choice choice(space);
  if (choice.bytes() > kept_bytes) {
    Bytes least = space.fixed_bytes();
    for (std::size_t c = 0; c < space.size(); ++c) least += space.vertices(c).back().bytes;
    if (least > kept_bytes) {
      throw InfeasibleBudget("remat select_kept: a budget of " + std::to_string(kept_bytes) +
                                 " bytes of kept tensors is below the " + std::to_string(least) + " that must be kept",
                             kept_bytes, least);
    }
    select_detail::Crossing crossing = select_detail::cross(space, kept_bytes);
    choice = crossing.within;
    plan.lower_bound = crossing.lower_bound;
    select_detail::fill(space, choice, kept_bytes);
    if (select_detail::step_within(space, crossing.above, kept_bytes)) {
      select_detail::fill(space, crossing.above, kept_bytes);
      if (crossing.above.cost() < choice.cost()) choice = std::move(crossing.above);
    }
  }
  plan.selection = choice.selection();
  plan.cost = simulate(graph, plan.selection);
  return plan;
}

std::vector<KeptPlan> block_options(const Graph& block, std::size_t limit) {
  if (block.segment_count() != 1) {
    throw ValueError("remat block_options: the block has " + std::to_string(block.segment_count()) +
                     " segments, must be one");
  }
  if (limit < 2) throw ValueError("remat block_options: limit is " + std::to_string(limit) + ", must be >= 2");
  KeptSpace space(block);
  for (std::size_t c = 0; c < space.size(); ++c) space.refine_all(c, std::size_t{1} << 20);

  // The hull of the whole is that of its components, edge by edge.
  select_detail::Choice choice(space);
  std::vector<select_detail::Choice> vertices{choice};
  for (const KeptSpace::Edge& edge : space.edges()) {
    choice.set(edge.component, space.vertices(edge.component)[edge.position + 1]);
    if (choice.cost() == vertices.back().cost()) vertices.pop_back();  // fewer bytes for nothing
    vertices.push_back(choice);
  }
  while (vertices.size() > limit) {
    // How much worse a budget gets when a vertex goes: the height of its neighbours' line above it.
    std::size_t flattest = 1;
    double least = -1;
    for (std::size_t i = 1; i + 1 < vertices.size(); ++i) {
      const auto value = [&](std::size_t k) { return static_cast<double>(vertices[k].cost()); };
      const double share = static_cast<double>(vertices[i - 1].bytes() - vertices[i].bytes()) /
                           static_cast<double>(vertices[i - 1].bytes() - vertices[i + 1].bytes());
      const double height = value(i - 1) + (value(i + 1) - value(i - 1)) * share - value(i);
      if (least < 0 || height < least) {
        least = height;
        flattest = i;
      }
    }
    vertices.erase(vertices.begin() + static_cast<std::ptrdiff_t>(flattest));
  }
  std::vector<KeptPlan> plans;
  for (const select_detail::Choice& vertex : vertices) {
    KeptPlan plan;
    plan.selection = vertex.selection();
    plan.cost = simulate(block, plan.selection);
    plan.lower_bound = plan.selection.cost;
    plans.push_back(std::move(plan));
  }
  return plans;
}

Option chain_option(const Graph& block, const Selection& selection, std::string name) {
  const GraphCost cost = simulate(block, selection);
  if (cost.segment_peak_bytes.size() != 1) {
    throw ValueError("remat chain_option: the block has " + std::to_string(cost.segment_peak_bytes.size()) +
                     " segments, must be one");
  }
  const std::uint32_t output = block.operators.back().outputs.front();
  const auto is_kept = [&](std::uint32_t t) {
    return std::binary_search(selection.kept.begin(), selection.kept.end(), t);
  };
  Bytes result_bytes = 0, kept_result_bytes = 0, result_gradients = 0;
  for (std::uint32_t t = 0; t < block.tensors.size(); ++t) {
    const GraphTensor& tensor = block.tensors[t];
    if (!tensor.is_result && t != output) continue;
    result_bytes += tensor.bytes;
    result_gradients += tensor.gradient_bytes;
    kept_result_bytes += is_kept(t) ? tensor.bytes : 0;
  }
  Option option;
  option.name = std::move(name);
  option.keeps_output = is_kept(output);
  option.kept_bytes = selection.kept_bytes - kept_result_bytes;
  option.recompute_time = selection.cost;
  for (const GraphOperator& op : block.operators) option.forward_time += op.cost;

  Bytes given_gradients = 0;
  for (const GraphTensor& tensor : block.tensors) given_gradients += tensor.is_given ? tensor.gradient_bytes : 0;
  const Bytes held = selection.kept_bytes + result_gradients;
  option.forward_peak_bytes = std::max<Bytes>(0, cost.forward_peak_bytes - option.kept_bytes - result_bytes);
  option.recompute_peak_bytes = std::max<Bytes>(0, cost.recompute_peak_bytes[0] - held);
  option.backward_peak_bytes = std::max<Bytes>(0, cost.segment_peak_bytes[0] - held - given_gradients);
  return option;
}

}  // namespace thimble::remat
