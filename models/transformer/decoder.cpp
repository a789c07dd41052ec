#include <thimble/models/transformer/decoder.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::models {

std::int64_t Decoder::check_extension(const char* name, const Tensor& ids, const nn::KvCache& cache) const {
  if (options_.team.parts > 1) {
    throw ValueError(std::string(name) + ": a cache with blocks in parts; whole blocks are allowed");
  }
  const nn::KvCacheSizes own = cache_sizes();
  const nn::KvCacheSizes& other = cache.sizes();
  if (other.layers != own.layers || other.heads != own.heads || other.width != own.width) {
    throw ShapeError(std::string(name) + ": a cache of " + std::to_string(other.layers) + " layers, " +
                     std::to_string(other.heads) + " heads of " + std::to_string(other.width) + "; " +
                     std::to_string(own.layers) + ", " + std::to_string(own.heads) + " of " +
                     std::to_string(own.width) + " is allowed");
  }
  if (ids.rank() != 2 || ids.size(0) != other.batch || ids.size(1) < 1) {
    throw ShapeError(std::string(name) + ": ids " + to_string(ids.shape()) + "; (B, T) with B " +
                     std::to_string(other.batch) + ", as the cache has, and T >= 1 is allowed");
  }
  const std::int64_t most = std::min(most_positions(), other.context), end = cache.length() + ids.size(1);
  if (end > most) {
    throw ValueError(std::string(name) + ": position " + std::to_string(end - 1) + "; those below " +
                     std::to_string(most) + " are allowed");
  }
  return end;
}

Tensor last_position(const Tensor& x) { return contiguous(view::slice(x, 1, x.size(1) - 1, x.size(1))); }

}  // namespace thimble::models
