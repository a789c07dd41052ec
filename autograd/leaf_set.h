#pragma once
// Which leaves a recording trains.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace thimble {

struct Leaf;

/// Leaves by address. Who makes one sees to it that they live as long.
class LeafSet {
 public:
  LeafSet() = default;
  explicit LeafSet(std::vector<const Leaf*> leaves) : leaves_(std::move(leaves)) {
    std::sort(leaves_.begin(), leaves_.end(), std::less<>());
  }
  bool has(const Leaf* leaf) const noexcept {
    return std::binary_search(leaves_.begin(), leaves_.end(), leaf, std::less<>());
  }

 private:
  std::vector<const Leaf*> leaves_;  // sorted
};

}  // namespace thimble
