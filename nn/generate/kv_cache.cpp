#include <thimble/nn/generate/kv_cache.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>

namespace thimble::nn {
namespace {

bool is_allowed(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::i8:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return true;
    default:
      return false;
  }
}

// Positions [begin, end) of a layer, (L, B, G, S, ...) -> (B, end - begin, G, ...): a view.
Tensor positions(const Tensor& all, std::int64_t layer, std::int64_t begin, std::int64_t end) {
  const Tensor one = view::squeeze(view::slice(all, 0, layer, layer + 1), 0);  // (B, G, S, ...)
  return view::transpose(view::slice(one, 2, begin, end), 1, 2);
}

}  // namespace

std::size_t KvCacheSizes::bytes_per_token() const noexcept {
  const auto rows = static_cast<std::size_t>(2 * layers * heads);
  return rows * (static_cast<std::size_t>(width) * size_of(dtype) + (has_scales() ? sizeof(float) : 0));
}

std::size_t KvCacheSizes::bytes() const noexcept {
  return static_cast<std::size_t>(batch * context) * bytes_per_token();
}

KvCache::KvCache(const KvCacheSizes& sizes, memory::Device device) : sizes_(sizes) {
  const std::pair<const char*, std::int64_t> numbers[] = {{"layers", sizes.layers},
                                                          {"batch", sizes.batch},
                                                          {"heads", sizes.heads},
                                                          {"width", sizes.width},
                                                          {"context", sizes.context}};
  for (const auto& [name, number] : numbers) {
    if (number < 1) {
      throw ValueError(std::string("kv cache: ") + name + " " + std::to_string(number) + "; expected at least 1");
    }
  }
  if (!is_allowed(sizes.dtype)) {
    throw DTypeError("kv cache: " + std::string(to_string(sizes.dtype)) +
                     " is not one of f64, f32, f16, bf16, i8, f8e4m3, f8e5m2");
  }
  const PathScope scope("cache");
  keys_ = make_side(device);
  values_ = make_side(device);
}

KvCache::Side KvCache::make_side(memory::Device device) const {
  const KvCacheSizes& s = sizes_;
  Side side;
  side.values =
      Tensor::empty({s.layers, s.batch, s.heads, s.context, s.width}, s.dtype, device, memory::Category::activation);
  if (s.has_scales()) {
    side.scales =
        Tensor::empty({s.layers, s.batch, s.heads, s.context}, DType::f32, device, memory::Category::activation);
  }
  return side;
}

void KvCache::require_room(std::int64_t count) const {
  if (count <= sizes_.context - length_) return;
  throw ValueError("kv cache: " + std::to_string(count) + " positions after " + std::to_string(length_) +
                   "; the context of " + std::to_string(sizes_.context) + " has room for " +
                   std::to_string(sizes_.context - length_));
}

void KvCache::check(std::int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) const {
  if (context().tape != nullptr) {
    throw AutogradError("kv cache: a tape records, and what is kept here would have no gradient; expected NoGrad");
  }
  if (layer < 0 || layer >= sizes_.layers) {
    throw ValueError("kv cache: layer " + std::to_string(layer) + " of " + std::to_string(sizes_.layers));
  }
  if (q.rank() != 4 || k.rank() != 4 || q.shape()[1] != k.shape()[1] || k.shape() != v.shape() ||
      k.shape() != Shape{sizes_.batch, q.shape()[1], sizes_.heads, sizes_.width}) {
    throw ShapeError("kv cache: q " + describe(q) + ", k " + describe(k) + ", v " + describe(v) +
                     "; expected (B, T, H, D), (B, T, G, D), (B, T, G, D) with B " + std::to_string(sizes_.batch) +
                     ", G " + std::to_string(sizes_.heads) + ", D " + std::to_string(sizes_.width));
  }
  require_room(k.size(1));
}

void KvCache::keep(const Side& side, std::int64_t layer, const Tensor& rows) const {
  const std::int64_t end = length_ + rows.size(1);
  const Tensor to = positions(side.values, layer, length_, end);  // (B, T, G, D)
  if (!side.scales.defined()) return copy_into(to, rows);
  const Tensor codes = quantize(rows, {sizes_.dtype, ScaleBlocks::per_row_block(sizes_.width), DType::f32, true});
  copy_into(to, codes);
  copy_into(positions(side.scales, layer, length_, end),
            view::reshape(*codes.scale(), {rows.size(0), rows.size(1), rows.size(2)}));
}

CachedRows KvCache::seen(const Side& side, std::int64_t layer, std::int64_t end) const {
  const auto of = [&](const Tensor& all) { return all.defined() ? positions(all, layer, 0, end) : Tensor(); };
  return {of(side.values), of(side.scales)};
}

Tensor KvCache::attend(std::int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t window) {
  check(layer, q, k, v);
  keep(keys_, layer, k);
  keep(values_, layer, v);
  const std::int64_t end = length_ + k.size(1);
  return ops::cached_attention(q, seen(keys_, layer, end), seen(values_, layer, end), window);
}

std::size_t KvCache::step_workspace_bytes(std::int64_t heads, DType dtype) const {
  require_room(1);
  const Tensor q = Tensor::empty({sizes_.batch, 1, heads, sizes_.width}, dtype, dry(keys_.values.device()));
  return ops::cached_attention_workspace(q, seen(keys_, 0, length_ + 1));
}

void KvCache::advance(std::int64_t count) {
  require_room(count);
  length_ += count;
}

}  // namespace thimble::nn
