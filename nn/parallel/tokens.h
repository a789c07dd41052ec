#pragma once
// Sequence parallelism as layers in the place of a model's own: token-by-token work of transformers where the sequence
// is cut, between sharded layers (dist/parts/sequence.h) or with whole ones (dist/parts/sequence.h). x is (P B, T / t,
// C) there, of P of t shards, and the gradients of parameters, sums over tokens, are made shard by shard.

#include <optional>
#include <span>

#include <thimble/autograd/plan.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/dist/parts/team.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::nn {

/// Has the norms, dropouts, tables and plain linear layers of a finished module take tokens in shards. Layers that have
/// a replacement stay as they are, and so do shards.
void shard_tokens(Module& module, const dist::Team& group);

/// linear(x, weight, bias) in `compute`.
Tensor linear_tokens(const dist::Team& group, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     std::optional<DType> compute);
/// Of x, (P B, T / t, S C) of all heads' tokens: (P B, T, S C / t), `stretches` (S) tensors side by side.
Tensor to_heads(const dist::Team& group, const Tensor& x, std::int64_t stretches);
/// The result of attention where a group has whole layers: `of_heads` have this rank's shards one behind the other, and
/// attend(p, ...) gets the ones of shard p, (B, T, ...), under the path "0", "1", ..., and gives (B, T, C / t).
/// Result (P B, T / t, C).
Tensor attend_by_heads(const dist::Team& group, std::span<const Tensor> of_heads,
                       FunctionRef<Tensor(std::size_t p, std::span<const Tensor> of_shard)> attend);
/// x + bias (C).
Tensor add_to_tokens(const dist::Team& group, const Tensor& x, const Tensor& bias);
/// x + rows (T, C), of which each token has its own.
Tensor add_positions(const dist::Team& group, const Tensor& x, const Tensor& rows);

/// Of a segment (autograd/checkpoint.h) around products that read all tokens: these are gathered again in backward, and
/// all else is kept as without a segment.
Fate keep_all_but_gathered(const OpType& type);

}  // namespace thimble::nn
