#pragma once
// What transformers do token by token where the sequence is cut: between their layers in parts (dist/parts/sequence.h),
// or in layers that are whole (dist/parts/heads.h). x is (P B, T / t, C) there, of P of t parts, and the gradients of
// parameters, sums over tokens, are made part by part. Without a cut these are the plain functions.

#include <optional>
#include <span>

#include <thimble/autograd/plan.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/dist/parts/team.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// norm(x).
Tensor norm_tokens(const dist::Team& team, nn::LayerNorm& norm, const Tensor& x);
Tensor norm_tokens(const dist::Team& team, nn::RmsNorm& norm, const Tensor& x);
/// layer(x), which has no adapter and is neither in FP8 nor quantized.
Tensor linear_tokens(const dist::Team& team, nn::Linear& layer, const Tensor& x);
/// layer(ids) of ids (B, T) of all tokens, for the tokens of this rank's parts.
Tensor look_up_tokens(const dist::Team& team, nn::Embedding& table, const Tensor& ids);
/// linear(x, weight, bias) in `compute`.
Tensor linear_tokens(const dist::Team& team, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     std::optional<DType> compute);
/// What attention gives where a team has whole layers. Of each of `in`, (P B, T / t, S C), attend(p, ...) gets those of
/// part p, (B, T, S C / t), `stretches` tensors of them side by side, and gives (B, T, C / t). Result (P B, T / t, C).
Tensor attend_by_heads(const dist::Team& team, std::span<const Tensor> in, std::int64_t stretches,
                       FunctionRef<Tensor(std::size_t p, std::span<const Tensor> of_part)> attend);
/// dropout(x): each token draws what it draws in the whole sequence.
Tensor drop_tokens(const dist::Team& team, nn::Dropout& dropout, const Tensor& x);
/// x + bias (C).
Tensor add_to_tokens(const dist::Team& team, const Tensor& x, const Tensor& bias);
/// x + rows (T, C), of which each token has its own.
Tensor add_positions(const dist::Team& team, const Tensor& x, const Tensor& rows);

/// Of a segment (autograd/checkpoint.h) around products that read all tokens: these are gathered again in backward, and
/// all else is kept as without a segment.
Fate keep_all_but_gathered(const OpType& type);

}  // namespace thimble::models
