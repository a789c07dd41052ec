#pragma once
// What transformers do between their layers in parts, token by token, where the sequence is cut, too (dist/sequence.h):
// x is (P B, T / t, C) there, of P of t parts, and the gradients of parameters, sums over tokens, are made part by
// part. Without a cut these are the plain functions.

#include <thimble/autograd/plan.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/dist/team.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// norm(x).
Tensor norm_tokens(const dist::Team& team, nn::LayerNorm& norm, const Tensor& x);
Tensor norm_tokens(const dist::Team& team, nn::RmsNorm& norm, const Tensor& x);
/// layer(x), which has no adapter and is neither in FP8 nor quantized.
Tensor linear_tokens(const dist::Team& team, nn::Linear& layer, const Tensor& x);
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
