#pragma once
// Sequence parallelism as layers that replace a model's own: token-by-token work of transformers on shards of the
// sequence, between sharded layers or with whole ones (dist/sharding/sequence.h). x is (P B, T / t, C), with P of t
// shards on this rank. Gradients of parameters, sums over tokens, are computed shard by shard.

#include <optional>
#include <span>

#include <thimble/autograd/plan.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/dist/sharding/group.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::nn {

/// Makes the norms, dropouts, tables and plain linear layers of a finished module take tokens in shards. Leaves shards,
/// and layers that have a replacement, as they are.
void shard_tokens(Module& module, const dist::ShardGroup& group);

/// linear(x, weight, bias) on tokens in shards, in `compute`.
Tensor linear_tokens(const dist::ShardGroup& group, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     std::optional<DType> compute);
/// (P B, T / t, S C), all heads of this rank's tokens -> (P B, T, S C / t); `projections` (S) tensors lie side by side.
Tensor to_heads(const dist::ShardGroup& group, const Tensor& x, std::int64_t projections);
/// Attention in a group with whole layers. Each of `of_heads` concatenates this rank's shards along axis 0; attend(p,
/// ...) gets shard p of each, (B, T, ...), under the path "0", "1", ..., and returns (B, T, C / t). The result is (P B,
/// T / t, C).
Tensor attend_by_heads(const dist::ShardGroup& group, std::span<const Tensor> of_heads,
                       FunctionRef<Tensor(std::size_t p, std::span<const Tensor> of_shard)> attend);
/// x + bias (C), for tokens in shards.
Tensor add_to_tokens(const dist::ShardGroup& group, const Tensor& x, const Tensor& bias);
/// x + rows (T, C), one row per token.
Tensor add_positions(const dist::ShardGroup& group, const Tensor& x, const Tensor& rows);

/// For a segment (autograd/checkpoint.h) around products that read all tokens: backward gathers the tokens again, and
/// all else is kept as without a segment.
Fate keep_all_but_gathered(const OpType& type);

}  // namespace thimble::nn
