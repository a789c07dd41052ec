#include <thimble/autograd/leaf_set.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace thimble {

LeafSet::LeafSet(std::vector<const tape::Leaf*> leaves) : leaves_(std::move(leaves)) {
  std::sort(leaves_.begin(), leaves_.end(), std::less<>());
}

bool LeafSet::has(const tape::Leaf* leaf) const noexcept {
  return std::binary_search(leaves_.begin(), leaves_.end(), leaf, std::less<>());
}

}  // namespace thimble
