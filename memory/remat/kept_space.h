#pragma once
// All best trades of kept bytes for recompute cost on a graph.
//
// Policy
// - A choice is the set of operators that run again. An operator costs its time when it is in; a tensor costs its bytes
//   when a backward reads it and its maker is out, or when an operator that is in takes it and its maker is out. For
//   any price of a byte the cheapest choice is a minimum cut: operators are nodes, those on the source side run again.
// - The network falls into components that share no tensor which may be kept or not: usually far smaller than segments.
//   Each has a lower convex hull of (kept bytes, cost); that of the whole is made of their edges, ordered by cost per
//   byte.
// - Hulls are refined where they are looked at. All arithmetic is exact in integers.
//
// Terms
//   vertex   a choice of one component that is best for some price of a byte
//   edge     two neighbouring vertices; it is proven when no choice lies below it
//   position the index of a vertex; 0 runs nothing again

#include <cstddef>
#include <cstdint>
#include <vector>

#include <thimble/memory/remat/graph.h>

namespace thimble::remat {

class KeptSpace {
 public:
  struct Vertex {
    Bytes bytes = 0;  ///< of kept tensors that belong to the component
    Time cost = 0;
    std::vector<std::uint32_t> recomputed;  ///< operators
  };
  /// What a byte costs: cost / bytes, bytes > 0.
  struct Price {
    Time cost = 0;
    Bytes bytes = 1;
  };

  /// The step from the vertex at `position` to the next: bytes given up and the cost of that.
  struct Edge {
    std::size_t component = 0;
    std::size_t position = 0;
    Bytes bytes = 0;
    Time cost = 0;
  };

  /// Validates the graph, which must outlive the space, and solves the two ends of each component's hull.
  explicit KeptSpace(const Graph& graph);

  std::size_t size() const noexcept { return components_.size(); }
  /// Vertices of a component by falling bytes and rising cost.
  const std::vector<Vertex>& vertices(std::size_t component) const { return components_[component].vertices; }
  /// Every edge by rising cost per byte: the hull of the whole. Edges of one component come in their order.
  std::vector<Edge> edges() const;
  /// Bytes that are kept under every choice.
  Bytes fixed_bytes() const noexcept { return fixed_bytes_; }

  /// Proves the edge after `position`, or splits it where a better choice is found. Returns true when it was split.
  bool refine(std::size_t component, std::size_t position);
  bool is_proven(std::size_t component, std::size_t position) const {
    return components_[component].is_proven[position];
  }
  /// Proves every edge of a component, with at most `cuts` minimum cuts.
  void refine_all(std::size_t component, std::size_t cuts);

  /// The selection of one vertex for each component.
  Selection selection(const std::vector<const Vertex*>& choice) const;

 private:
  struct Component {
    std::vector<std::uint32_t> operators;  // rising
    std::vector<std::uint32_t> tensors;
    std::vector<Vertex> vertices;
    std::vector<bool> is_proven;  // of the edge to the next vertex
  };
  /// What decides over one tensor that is not kept under every choice.
  struct Tensor {
    std::uint32_t maker = 0;
    bool can_make = false;              // again
    bool is_read = false;               // by some backward
    std::vector<std::uint32_t> takers;  // operators that can run again and then need it
  };

  void describe_tensors();
  void find_components();
  Vertex cut(const Component& component, Price price) const;
  Vertex evaluate(const Component& component, const std::vector<bool>& is_recomputed) const;

  const Graph* graph_;
  std::vector<Tensor> tensors_;
  std::vector<Component> components_;
  Bytes fixed_bytes_ = 0;
};

}  // namespace thimble::remat
