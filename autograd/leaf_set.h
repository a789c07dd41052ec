#pragma once
// The leaves that a recording trains.

#include <vector>

namespace thimble {

struct Leaf;

/// Leaves by address; they must outlive the set.
class LeafSet {
 public:
  LeafSet() = default;
  explicit LeafSet(std::vector<const Leaf*> leaves);
  bool has(const Leaf* leaf) const noexcept;

 private:
  std::vector<const Leaf*> leaves_;  // sorted
};

}  // namespace thimble
