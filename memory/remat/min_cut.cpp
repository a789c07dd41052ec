#include <algorithm>

#include <thimble/memory/remat/min_cut.h>

namespace thimble::remat {

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
      queue_.push_back(to);
    }
  }
  return level_[sink()] >= 0;
}

/// Fills the level graph: walks forward along edges with capacity left, back from dead ends, and from the sink back to
/// the first edge that is full.
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

}  // namespace thimble::remat
