#include <algorithm>
#include <numeric>

#include <thimble/memory/remat/kept_space.h>
#include <thimble/memory/remat/select.h>

namespace thimble::remat {

namespace {

constexpr std::uint32_t nobody = 0xFFFFFFFFU;

/// Union-find with path halving.
class Union {
 public:
  explicit Union(std::size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0U); }
  std::uint32_t find(std::uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::uint32_t a, std::uint32_t b) { parent_[std::max(find(a), find(b))] = std::min(find(a), find(b)); }

 private:
  std::vector<std::uint32_t> parent_;
};

}  // namespace

KeptSpace::KeptSpace(const Graph& graph) : graph_(&graph) {
  validate(graph);
  describe_tensors();
  find_components();
  for (Component& component : components_) {
    const Vertex all = evaluate(component, std::vector<bool>(graph.operators.size()));
    Time total = 1;
    for (const std::uint32_t i : component.operators) total += graph.operators[i].cost;
    const Vertex least = cut(component, {total, 1});  // a byte costs more than all re-runs together
    component.vertices.push_back(all);
    if (least.bytes < all.bytes) {
      component.vertices.push_back(least);
      component.is_proven.push_back(false);
    }
  }
}

void KeptSpace::describe_tensors() {
  const Graph& graph = *graph_;
  const std::size_t operators = graph.operators.size();
  const std::vector<bool> can_make = recomputable(graph);
  tensors_.assign(graph.tensors.size(), {});
  for (std::uint32_t i = 0; i < operators; ++i) {
    for (const std::uint32_t t : graph.operators[i].outputs) {
      tensors_[t].maker = i;
      tensors_[t].can_make = can_make[t];
    }
  }
  for (std::uint32_t i = 0; i < operators; ++i) {
    for (const std::uint32_t t : graph.operators[i].backward_reads) tensors_[t].is_read = !graph.tensors[t].is_given;
    if (!graph.operators[i].can_recompute) continue;
    for (const std::uint32_t t : graph.operators[i].inputs) {
      if (!graph.tensors[t].is_given) tensors_[t].takers.push_back(i);
    }
  }
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    if (!tensors_[t].is_read || tensors_[t].can_make) continue;
    fixed_bytes_ += graph.tensors[t].bytes;
    tensors_[t] = {};  // kept under every choice: it joins nothing
  }
}

void KeptSpace::find_components() {
  const Graph& graph = *graph_;
  Union joined(graph.operators.size());
  const auto owner = [&](std::size_t t) {
    const Tensor& tensor = tensors_[t];
    if (tensor.can_make && (tensor.is_read || !tensor.takers.empty())) return tensor.maker;
    return tensor.takers.empty() ? nobody : tensor.takers.front();
  };
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const std::uint32_t own = owner(t);
    for (const std::uint32_t i : tensors_[t].takers) joined.join(own, i);
  }
  std::vector<std::uint32_t> number(graph.operators.size(), nobody);
  for (std::uint32_t t = 0; t < tensors_.size(); ++t) {
    if (owner(t) == nobody) continue;
    const std::uint32_t root = joined.find(owner(t));
    if (number[root] == nobody) {
      number[root] = static_cast<std::uint32_t>(components_.size());
      components_.emplace_back();
    }
    components_[number[root]].tensors.push_back(t);
  }
  for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
    const std::uint32_t at = number[joined.find(i)];
    if (at == nobody || !graph.operators[i].can_recompute) continue;
    components_[at].operators.push_back(i);
  }
}

KeptSpace::Vertex KeptSpace::cut(const Component& component, Price price) const {
  std::size_t nodes = component.operators.size();
  for (const std::uint32_t t : component.tensors) nodes += tensors_[t].takers.size() > 1 ? 1 : 0;
  MinCut network(nodes);
  const auto node = [&](std::uint32_t op) {
    return static_cast<std::size_t>(std::lower_bound(component.operators.begin(), component.operators.end(), op) -
                                    component.operators.begin());
  };
  constexpr Wide unbounded = Wide{1} << 124;
  std::size_t next = component.operators.size();
  // The single operator, or a new node that is on the source side if any of the operators is.
  const auto any_of = [&](const std::vector<std::uint32_t>& operators) {
    if (operators.size() == 1) return node(operators.front());
    for (const std::uint32_t i : operators) network.add(node(i), next, unbounded);
    return next++;
  };
  for (const std::uint32_t i : component.operators) {
    network.add(node(i), network.sink(), Wide{graph_->operators[i].cost} * price.bytes);
  }
  for (const std::uint32_t t : component.tensors) {
    const Tensor& tensor = tensors_[t];
    const Wide bytes = Wide{graph_->tensors[t].bytes} * price.cost;
    const std::size_t needed = tensor.is_read ? network.source() : any_of(tensor.takers);
    network.add(needed, tensor.can_make ? node(tensor.maker) : network.sink(), bytes);
  }
  const std::vector<bool> side = network.source_side();
  std::vector<bool> is_recomputed(graph_->operators.size());
  for (std::size_t i = 0; i < component.operators.size(); ++i) is_recomputed[component.operators[i]] = side[i];
  return evaluate(component, is_recomputed);
}

KeptSpace::Vertex KeptSpace::evaluate(const Component& component, const std::vector<bool>& is_recomputed) const {
  const auto any = [&](const std::vector<std::uint32_t>& operators) {
    return std::any_of(operators.begin(), operators.end(), [&](std::uint32_t i) { return is_recomputed[i]; });
  };
  Vertex vertex;
  for (const std::uint32_t i : component.operators) {
    if (!is_recomputed[i]) continue;
    vertex.recomputed.push_back(i);
    vertex.cost += graph_->operators[i].cost;
  }
  for (const std::uint32_t t : component.tensors) {
    const Tensor& tensor = tensors_[t];
    const bool is_made = tensor.can_make && is_recomputed[tensor.maker];
    if (!is_made && (tensor.is_read || any(tensor.takers))) vertex.bytes += graph_->tensors[t].bytes;
  }
  return vertex;
}

std::vector<KeptSpace::Edge> KeptSpace::edges() const {
  std::vector<Edge> edges;
  for (std::size_t c = 0; c < components_.size(); ++c) {
    const std::vector<Vertex>& v = components_[c].vertices;
    for (std::size_t i = 0; i + 1 < v.size(); ++i) {
      edges.push_back({c, i, v[i].bytes - v[i + 1].bytes, v[i + 1].cost - v[i].cost});
    }
  }
  std::stable_sort(edges.begin(), edges.end(),
                   [](const Edge& x, const Edge& y) { return Wide{x.cost} * y.bytes < Wide{y.cost} * x.bytes; });
  return edges;
}

bool KeptSpace::refine(std::size_t component, std::size_t position) {
  Component& own = components_[component];
  const Vertex& begin = own.vertices[position];
  const Vertex& end = own.vertices[position + 1];
  const Price price{end.cost - begin.cost, begin.bytes - end.bytes};
  Vertex found = cut(own, price);
  const auto value = [&](const Vertex& v) { return Wide{v.cost} * price.bytes + Wide{v.bytes} * price.cost; };
  const bool is_below = value(found) < value(begin) && found.bytes < begin.bytes && found.bytes > end.bytes;
  if (!is_below) {
    own.is_proven[position] = true;
    return false;
  }
  const auto at = static_cast<std::ptrdiff_t>(position) + 1;
  own.vertices.insert(own.vertices.begin() + at, std::move(found));
  own.is_proven.insert(own.is_proven.begin() + at, false);
  return true;
}

void KeptSpace::refine_all(std::size_t component, std::size_t cuts) {
  const Component& own = components_[component];
  // Widest edges first, so that a limit on cuts leaves evenly spaced choices.
  while (cuts-- > 0) {
    std::size_t widest = own.is_proven.size();
    for (std::size_t i = 0; i < own.is_proven.size(); ++i) {
      const auto width = [&](std::size_t e) { return own.vertices[e].bytes - own.vertices[e + 1].bytes; };
      if (!own.is_proven[i] && (widest == own.is_proven.size() || width(i) > width(widest))) widest = i;
    }
    if (widest == own.is_proven.size()) return;
    refine(component, widest);
  }
}

Selection KeptSpace::selection(const std::vector<const Vertex*>& choice) const {
  std::vector<bool> wanted(graph_->tensors.size(), true);
  for (const Vertex* vertex : choice) {
    for (const std::uint32_t i : vertex->recomputed) {
      for (const std::uint32_t t : graph_->operators[i].outputs) wanted[t] = false;
    }
  }
  return close_selection(*graph_, wanted);
}

}  // namespace thimble::remat
