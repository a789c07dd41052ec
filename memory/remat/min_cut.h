#pragma once
// Minimum cut of a directed network (Dinic 1970): level graphs by breadth-first search, blocking flows with an explicit
// path. The selection of kept tensors (kept_space.h) is one.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace thimble::remat {

/// Products of bytes and times, exactly: both are below 2^58.
__extension__ using Wide = __int128;

class MinCut {
 public:
  /// A network of `nodes` nodes, the source and the sink besides.
  explicit MinCut(std::size_t nodes) : first_(nodes + 2, none) {}

  std::size_t source() const noexcept { return first_.size() - 2; }
  std::size_t sink() const noexcept { return first_.size() - 1; }

  /// An edge with its capacity, >= 0.
  void add(std::size_t from, std::size_t to, Wide capacity);

  /// After the maximum flow: for each node, whether the source still reaches it. That is the smallest of the source
  /// sides of minimum cuts.
  std::vector<bool> source_side();

 private:
  static constexpr std::uint32_t none = 0xFFFFFFFFU;
  struct Edge {
    std::uint32_t to;
    std::uint32_t next;  // of the same node
    Wide capacity;       // left
  };

  bool find_levels();
  void block();

  std::vector<std::uint32_t> first_;
  std::vector<Edge> edges_;  // an edge and its reverse stand side by side
  std::vector<std::int32_t> level_;
  std::vector<std::uint32_t> current_;
  std::vector<std::uint32_t> queue_;
};

}  // namespace thimble::remat
