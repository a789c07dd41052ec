#pragma once
// Optimal trades of kept bytes for recompute cost on a graph.
//
// Policy
// - A choice is the set of operators that run again. Each of them costs its time. A tensor whose maker does not run
//   again costs its bytes if a backward or an operator that runs again reads it. For any price of a byte, the cheapest
//   choice is a minimum cut: operators are nodes, and the source side runs again.
// - The network falls into components that have no optional tensor in common, usually far smaller than segments. Each
//   has a lower convex hull of (kept bytes, cost). Their edges, ordered by cost per byte, form the hull of the whole.
// - Hulls are refined on demand. All arithmetic is exact in integers.
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
    Bytes bytes = 0;  ///< of the component's kept tensors
    Time cost = 0;
    std::vector<std::uint32_t> recomputed;  ///< operators
  };
  /// The price of a byte: cost / bytes, bytes > 0.
  struct Price {
    Time cost = 0;
    Bytes bytes = 1;
  };

  /// The step from the vertex at `position` to the next: bytes saved, and their cost.
  struct Edge {
    std::size_t component = 0;
    std::size_t position = 0;
    Bytes bytes = 0;
    Time cost = 0;
  };

  /// Validates the graph, which must outlive the space, and solves the two ends of each component's hull.
  explicit KeptSpace(const Graph& graph);

  std::size_t size() const noexcept { return components_.size(); }
  /// By falling bytes and rising cost.
  const std::vector<Vertex>& vertices(std::size_t component) const { return components_[component].vertices; }
  /// Every edge by rising cost per byte: the hull of the whole. Edges of one component stay in order.
  std::vector<Edge> edges() const;
  /// Bytes that every choice keeps.
  Bytes fixed_bytes() const noexcept { return fixed_bytes_; }

  /// Proves the edge after `position`, or splits it at a better choice and returns true.
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
  /// The graph around one tensor that some choices do not keep.
  struct Tensor {
    std::uint32_t maker = 0;
    bool can_make = false;              // its maker can run again
    bool is_read = false;               // by some backward
    std::vector<std::uint32_t> takers;  // operators that can run again and take it
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
