#pragma once
// The options of a chain's stages, as minimum cuts (memory/remat/select.h), found once for equal blocks.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/graph.h>

namespace thimble::nn {

/// The options of blocks; those of equal blocks are found once.
class OptionCache {
 public:
  struct Entry {
    remat::Selection selection;
    remat::Option option;
  };

  /// At most `limit`, by falling bytes, that keep none of the tensors `inner`. An option that keeps one of them is no
  /// better than two, one up to it and one from it on.
  const std::vector<Entry>& options(const remat::Graph& block, const std::vector<std::uint32_t>& inner,
                                    std::size_t limit);

 private:
  using Numbers = std::vector<std::int64_t>;

  static Numbers numbers_of(const remat::Graph& block, const std::vector<std::uint32_t>& inner);
  static std::vector<Entry> find(const remat::Graph& block, const std::vector<std::uint32_t>& inner, std::size_t limit);

  std::map<Numbers, std::vector<Entry>> known_;
};

}  // namespace thimble::nn
