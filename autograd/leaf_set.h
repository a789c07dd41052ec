#pragma once
// Which leaves a recording trains.

#include <vector>

namespace thimble {

struct Leaf;

/// Leaves by address. Who makes one sees to it that they live as long.
class LeafSet {
 public:
  LeafSet() = default;
  explicit LeafSet(std::vector<const Leaf*> leaves);
  bool has(const Leaf* leaf) const noexcept;

 private:
  std::vector<const Leaf*> leaves_;  // sorted
};

}  // namespace thimble
