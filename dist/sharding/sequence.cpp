#include <thimble/dist/sharding/sequence.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/fold.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>

namespace thimble::dist {
namespace {

/// (B, T, C) -> (t B, T / t, C), shard after shard.
Tensor to_shards(const Tensor& x, int shards) {
  const std::int64_t b = x.size(0), each = x.size(1) / shards, c = x.size(2);
  const Tensor cut = view::permute(view::reshape(contiguous(x), {b, shards, each, c}), {1, 0, 2, 3});
  return view::reshape(contiguous(cut), {shards * b, each, c});
}

/// (t B, T / t, C) -> (B, T, C).
Tensor to_whole(const Tensor& x, int shards) {
  const std::int64_t b = x.size(0) / shards, each = x.size(1), c = x.size(2);
  const Tensor whole = view::permute(view::reshape(contiguous(x), {shards, b, each, c}), {1, 0, 2, 3});
  return view::reshape(contiguous(whole), {b, shards * each, c});
}

/// (P B, T / t, C) -> (B, T, C).
Tensor gather(const ShardGroup& group, const Tensor& x) {
  if (group.ranks == nullptr) return to_whole(x, group.shards);
  const Tensor own = contiguous(x.detach());
  const std::int64_t n = own.elements();
  Tensor all;  // shards in order
  {
    const PathScope path = ranks_path();
    all = Tensor::empty({group.shards * x.size(0), x.size(1), x.size(2)}, x.dtype(), x.device(),
                        memory::Category::communication);
  }
  copy_into(window_of(all, group.first() * n, {n}), window_of(own, 0, {n}));
  all_gather(*group.ranks, all);
  if (x.size(0) == 1) all.storage()->set_category(memory::Category::temporary);  // it is the result
  return to_whole(all, group.shards);
}

/// x (B, T, C), this rank's term of a sum (or the sum) -> this rank's shard (P B, T / t, C) of the sum.
Tensor sum_and_cut(const ShardGroup& group, const Tensor& x, bool last_first) {
  const Tensor cut = to_shards(x.detach(), group.shards);
  if (group.ranks == nullptr) return cut;
  return fold_share(*group.ranks, cut, {x.size(0), x.size(1) / group.shards, x.size(2)}, last_first);
}

}  // namespace

Tensor AllGather::forward(const Tensor& x, ops::Needs, Saved&) const {
  if (x.rank() != 3 || x.size(0) % group.count() != 0) {
    throw ShapeError(std::string(name) + ": " + describe(x) + "; expected (P B, T / t, C) of P " +
                     std::to_string(group.count()) + " shards");
  }
  return gather(group, x);
}

ops::Gradients AllGather::backward(Saved, Tensor dy, ops::Needs) const {
  return {sum_and_cut(group, std::exchange(dy, Tensor()), true)};
}

Tensor ReduceScatter::forward(std::span<const Tensor> terms, ops::Needs, Saved&) const {
  check_terms(terms);
  if (terms[0].rank() != 3 || terms[0].size(1) % group.shards != 0) {
    throw ShapeError(std::string(name) + ": terms " + describe(terms[0]) + " in " + std::to_string(group.shards) +
                     " shards; expected (B, T, C) whose T they divide");
  }
  return sum_and_cut(group, group.ranks != nullptr ? terms[0] : sum_here(terms), false);
}

ops::Gradients ReduceScatter::backward(Saved, Tensor dy, ops::Needs needs) const {
  const Tensor whole = gather(group, std::exchange(dy, Tensor()));
  ops::Gradients gradients;
  for (int i = 0; needs.bits() >> i != 0; ++i) gradients.push_back(needs[i] ? whole : Tensor());
  return gradients;
}

namespace {

/// All-to-all of `shards`, which has an equal range for each rank of the group.
Tensor exchange(const ShardGroup& group, const Tensor& shards) {
  if (group.ranks == nullptr) return shards;
  const std::int64_t n = shards.elements() / group.shards;
  Tensor all;
  {
    const PathScope path = ranks_path();
    all = Tensor::empty(shards.shape(), shards.dtype(), shards.device(), memory::Category::communication);
  }
  copy_into(window_of(all, group.first() * n, {n}), window_of(shards, group.first() * n, {n}));
  Transit transit;
  for (int r = 0; r < group.shards; ++r) {
    if (r == group.first()) continue;
    transit.send(r, window_of(shards, r * n, {n}));
    transit.receive(r, window_of(all, r * n, {n}));
  }
  transit.begin(*group.ranks);
  transit.wait();
  return all;
}

/// x as a dense tensor of `shape`, not booked as `communication`.
Tensor result_of(const Tensor& x, const Shape& shape) {
  const Tensor dense = contiguous(x);
  if (dense.storage() && dense.storage()->category() == memory::Category::communication) {
    dense.storage()->set_category(memory::Category::temporary);
  }
  return view::reshape(dense, shape);
}

}  // namespace

Tensor ExchangeHeads::forward(const Tensor& x, ops::Needs, Saved&) const {
  const std::int64_t t = group.shards, count = group.count();
  const std::int64_t of_heads = is_to_heads ? projections * t : projections, of_tokens = is_to_heads ? 1 : t;
  if (x.rank() != 3 || x.size(0) % count != 0 || x.size(1) % of_tokens != 0 || x.size(2) % of_heads != 0) {
    throw ShapeError(std::string(name) + ": " + describe(x) + " in " + std::to_string(t) + " shards; expected " +
                     (is_to_heads ? "(P B, T / t, S C) whose C" : "(P B, T, S C / t) whose T") + " they divide");
  }
  const std::int64_t b = x.size(0) / count, tokens = x.size(1) / of_tokens, width = x.size(2) / of_heads;
  const Tensor own = contiguous(x.detach());
  if (is_to_heads) {
    // (P, B, T / t, S, t, C / t) -> (t, P, B, T / t, S, C / t): on one rank the shards' heads, on several the
    // destination ranks.
    const Tensor cut = view::permute(view::reshape(own, {count, b, tokens, projections, t, width}), {4, 0, 1, 2, 3, 5});
    const Tensor shards = exchange(group, contiguous(cut));
    // Now (heads of P, tokens of t, B, T / t, S, C / t), where one of the two is whole.
    const Tensor by_shard = view::reshape(shards, {count, t, b, tokens, projections * width});
    return result_of(view::permute(by_shard, {0, 2, 1, 3, 4}), {count * b, t * tokens, projections * width});
  }
  // (P, B, t, T / t, S C / t) -> (t, P, B, T / t, S C / t): the shards' tokens.
  const Tensor cut = view::permute(view::reshape(own, {count, b, t, tokens, projections * width}), {2, 0, 1, 3, 4});
  const Tensor shards = exchange(group, contiguous(cut));
  // (tokens of P, heads of t, B, T / t, S, C / t)
  const Tensor by_shard = view::reshape(shards, {count, t, b, tokens, projections, width});
  return result_of(view::permute(by_shard, {0, 2, 3, 4, 1, 5}), {count * b, tokens, projections * t * width});
}

ops::Gradients ExchangeHeads::backward(Saved, Tensor dy, ops::Needs) const {
  SavesNothing nothing;
  return {ExchangeHeads{group, projections, !is_to_heads}.forward(std::exchange(dy, Tensor()), ops::Needs(), nothing)};
}

}  // namespace thimble::dist
