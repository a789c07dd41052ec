#include <thimble/memory/remat/select.h>

#include <algorithm>
#include <numeric>

#include <thimble/memory/remat/kept_space.h>

namespace thimble::remat {

namespace {

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

}  // namespace

Time hull_cost(KeptSpace& space, Bytes kept_bytes) {
  const Bytes all = Choice(space).bytes();
  if (all <= kept_bytes) return 0;
  Bytes least = space.fixed_bytes();
  Time most = 0;
  for (std::size_t c = 0; c < space.size(); ++c) {
    least += space.vertices(c).back().bytes;
    most += space.vertices(c).back().cost;
  }
  if (least > kept_bytes) return most;
  // Walk along the edges until the bytes fit, and again until the edges at that point are proven.
  while (true) {
    std::vector<std::size_t> position(space.size(), 0);
    Bytes bytes = all;
    Time cost = 0;
    KeptSpace::Edge last;
    for (const KeptSpace::Edge& edge : space.edges()) {
      if (bytes <= kept_bytes) break;
      last = edge;
      position[edge.component] = edge.position + 1;
      bytes -= edge.bytes;
      cost += edge.cost;
    }
    if (refine_around(space, position)) continue;
    // On the last edge the hull rises by last.cost over last.bytes. Its value is rounded up.
    return cost - static_cast<Time>(Wide{kept_bytes - bytes} * last.cost / last.bytes);
  }
}

std::vector<KeptPlan> block_options(const Graph& block, std::size_t limit) {
  if (block.segment_count() != 1) {
    throw ValueError("remat block_options: the block has " + std::to_string(block.segment_count()) +
                     " segments, must be one");
  }
  if (limit < 2) throw ValueError("remat block_options: limit is " + std::to_string(limit) + ", must be >= 2");
  KeptSpace space(block);
  for (std::size_t c = 0; c < space.size(); ++c) space.refine_all(c, std::size_t{1} << 20);

  // The components' edges in order form the hull of the whole.
  Choice choice(space);
  std::vector<Choice> vertices{choice};
  for (const KeptSpace::Edge& edge : space.edges()) {
    choice.set(edge.component, space.vertices(edge.component)[edge.position + 1]);
    if (choice.cost() == vertices.back().cost()) vertices.pop_back();  // fewer bytes for nothing
    vertices.push_back(choice);
  }
  while (vertices.size() > limit) {
    // Removing a vertex costs its distance below the line between its neighbours.
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
  for (const Choice& vertex : vertices) {
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

void MinCut::add(std::size_t from, std::size_t to, Wide capacity) {
  if (capacity == 0) return;
  edges_.push_back({static_cast<std::uint32_t>(to), first_[from], capacity});
  first_[from] = static_cast<std::uint32_t>(edges_.size() - 1);
  edges_.push_back({static_cast<std::uint32_t>(from), first_[to], 0});
  first_[to] = static_cast<std::uint32_t>(edges_.size() - 1);
}

bool MinCut::find_levels() {
  level_.assign(first_.size(), -1);
  queue_.assign(1, static_cast<std::uint32_t>(source()));
  level_[source()] = 0;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    for (std::uint32_t e = first_[queue_[i]]; e != none; e = edges_[e].next) {
      const std::uint32_t to = edges_[e].to;
      if (edges_[e].capacity == 0 || level_[to] >= 0) continue;
      level_[to] = level_[queue_[i]] + 1;
      if (to == sink()) return true;  // all nearer nodes have their level
      queue_.push_back(to);
    }
  }
  return false;
}

/// Fills the level graph: walks forward along edges with capacity left, back from dead ends, and back from the sink to
/// the first full edge.
void MinCut::block() {
  current_ = first_;
  std::vector<std::uint32_t> path;  // edges from the source
  std::size_t node = source();
  while (true) {
    if (node == sink()) {
      Wide flow = edges_[path.front()].capacity;
      for (const std::uint32_t e : path) flow = std::min(flow, edges_[e].capacity);
      std::size_t keep = path.size();
      for (std::size_t i = path.size(); i-- > 0;) {
        edges_[path[i]].capacity -= flow;
        edges_[path[i] ^ 1U].capacity += flow;
        if (edges_[path[i]].capacity == 0) keep = i;
      }
      node = edges_[path[keep] ^ 1U].to;
      path.resize(keep);
      continue;
    }
    std::uint32_t& e = current_[node];
    while (e != none && (edges_[e].capacity == 0 || level_[edges_[e].to] != level_[node] + 1)) e = edges_[e].next;
    if (e != none) {
      path.push_back(e);
      node = edges_[e].to;
    } else if (path.empty()) {
      return;
    } else {
      level_[node] = -1;
      node = edges_[path.back() ^ 1U].to;
      path.pop_back();
    }
  }
}

std::vector<bool> MinCut::source_side() {
  while (find_levels()) block();
  std::vector<bool> side(first_.size());
  for (std::size_t i = 0; i < side.size(); ++i) side[i] = level_[i] >= 0;
  return side;
}

namespace {

constexpr std::size_t moments = 4;  // the last operator and the largest readers

}  // namespace

std::vector<Bytes> bytes_around_backwards(const Graph& graph) {
  validate(graph);
  const GradientBytes gradients = gradient_bytes(graph);
  std::vector<Bytes> around;
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const GraphOperator& op = graph.operators[i];
    const bool is_over = op.is_backward_in_place || op.frees_reads_first;
    around.push_back(op.backward_peak_bytes + (is_over ? gradients.before : gradients.during)[i]);
  }
  return around;
}

TimeBound::TimeBound(const Graph& graph, std::span<const Bytes> around) {
  validate(graph);
  const auto read_bytes = [&](std::uint32_t op) {
    std::vector<std::uint32_t> reads = graph.operators[op].backward_reads;
    std::sort(reads.begin(), reads.end());
    reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    Bytes bytes = around.empty() ? 0 : around[op];
    for (const std::uint32_t t : reads) bytes += graph.tensors[t].is_given ? 0 : graph.tensors[t].bytes;
    return bytes;
  };
  std::vector<std::uint32_t> operators(graph.operators.size());
  std::iota(operators.begin(), operators.end(), 0U);
  std::stable_sort(operators.begin(), operators.end() - 1,
                   [&](std::uint32_t a, std::uint32_t b) { return read_bytes(a) > read_bytes(b); });
  std::rotate(operators.begin(), operators.end() - 1, operators.end());
  operators.resize(std::min(operators.size(), moments));
  for (const std::uint32_t v : operators) {
    Graph part;
    part.tensors = graph.tensors;
    part.operators.assign(graph.operators.begin(), graph.operators.begin() + v + 1);
    Moment moment;
    moment.read_bytes = read_bytes(v);
    for (GraphTensor& tensor : part.tensors) tensor.held_until = 0;  // its operator may be left out
    // The tensors that v reads exist: they need no re-run, and re-runs can take them.
    for (const std::uint32_t t : part.operators[v].backward_reads) part.tensors[t].bytes = 0;
    moment.graph = std::make_unique<const Graph>(std::move(part));
    moment.space = std::make_unique<KeptSpace>(*moment.graph);
    moments_.push_back(std::move(moment));
  }
}

Time TimeBound::at(Bytes bytes) {
  Time least = 0;
  for (Moment& moment : moments_) least = std::max(least, hull_cost(*moment.space, bytes - moment.read_bytes));
  return least;
}

}  // namespace thimble::remat
