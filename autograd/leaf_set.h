#pragma once
// The leaves that a recording trains.

#include <vector>

namespace thimble {

namespace tape {
struct Leaf;
}  // namespace tape

/// Leaves by address; they must outlive the set.
class LeafSet {
 public:
  LeafSet() = default;
  explicit LeafSet(std::vector<const tape::Leaf*> leaves);
  bool has(const tape::Leaf* leaf) const noexcept;

 private:
  std::vector<const tape::Leaf*> leaves_;  // sorted
};

}  // namespace thimble
