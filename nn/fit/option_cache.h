#pragma once
// The options of a chain's stages, as minimum cuts (memory/remat/select.h), computed once for equal blocks.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/graph.h>

namespace thimble::nn {

class OptionCache {
 public:
  struct Entry {
    remat::Selection selection;
    remat::Option option;
  };

  /// At most `limit` options, by falling bytes, that keep none of the tensors `inner`. An option that keeps one is no
  /// better than two options, one that ends at the tensor and one that begins there.
  const std::vector<Entry>& options(const remat::Graph& block, const std::vector<std::uint32_t>& inner,
                                    std::size_t limit);

 private:
  using Numbers = std::vector<std::int64_t>;

  static Numbers numbers_of(const remat::Graph& block, const std::vector<std::uint32_t>& inner);
  static std::vector<Entry> find(const remat::Graph& block, const std::vector<std::uint32_t>& inner, std::size_t limit);

  std::map<Numbers, std::vector<Entry>> known_;
};

}  // namespace thimble::nn
