#include <thimble/models/transformer/decoder.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::models {

nn::KvCacheSizes Decoder::cache_sizes() const {
  const DType rows = compute_.value_or(table_dtype());
  return {.layers = options_.layers,
          .heads = options_.key_heads > 0 ? options_.key_heads : options_.heads,
          .width = options_.width / options_.heads,
          .dtype = size_of(rows) == 1 ? DType::f16 : rows};  // which has all values of 8-bit floats
}

Tensor Decoder::extend(const Tensor& ids, nn::KvCache& cache) {
  check_extension(ids, cache);
  const PathScope scope(path());
  Tensor x = embed(ids, cache.length());  // (B, T, C)
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const nn::CachedLayer past{cache, static_cast<std::int64_t>(i)};
    x = (*blocks_[i])(x, {.past = &past});
  }
  cache.advance(ids.size(1));
  return logits(finish(contiguous(view::slice(x, 1, x.size(1) - 1, x.size(1)))));
}

void Decoder::check_extension(const Tensor& ids, const nn::KvCache& cache) const {
  const std::string name(path_name(path()));
  if (options_.team.parts > 1) {
    throw ValueError(name + ": a cache with blocks in parts; expected whole blocks");
  }
  const nn::KvCacheSizes own = cache_sizes();
  const nn::KvCacheSizes& other = cache.sizes();
  if (other.layers != own.layers || other.heads != own.heads || other.width != own.width) {
    throw ShapeError(name + ": a cache of " + std::to_string(other.layers) + " layers, " + std::to_string(other.heads) +
                     " heads of " + std::to_string(other.width) + "; expected " + std::to_string(own.layers) + ", " +
                     std::to_string(own.heads) + " of " + std::to_string(own.width));
  }
  if (ids.rank() != 2 || ids.size(0) != other.batch || ids.size(1) < 1) {
    throw ShapeError(name + ": ids " + to_string(ids.shape()) + "; expected (B, T) with B " +
                     std::to_string(other.batch) + ", as the cache has, and T >= 1");
  }
  const std::int64_t most = std::min(most_positions(), other.context), end = cache.length() + ids.size(1);
  if (end > most) {
    throw ValueError(name + ": position " + std::to_string(end - 1) + "; expected those below " + std::to_string(most));
  }
}

}  // namespace thimble::models
