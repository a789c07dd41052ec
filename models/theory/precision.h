#pragma once
// The bytes of training under a precision policy (nn/precision/precision.h): of one parameter, of a model's state, and
// of what backward keeps. The forms of a single dtype (models/gpt/theory.h, resnet.h) hold for every policy whose
// products compute in the parameters' dtype; under O1 products keep casts, of activations and of weights.

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>
#include <thimble/nn/precision/precision.h>

namespace thimble::models::theory {

/// Bytes of one parameter.
struct ParameterBytes {
  std::int64_t parameter = 0, gradient = 0;
  std::int64_t moments = 0;  ///< f32
  std::int64_t extra = 0;    ///< its f32 master copy, or what Kahan's sum keeps
  std::int64_t total() const noexcept { return parameter + gradient + moments + extra; }
};

/// With Adam (`moments` 2), of weights and of norms' parameters (`is_norm`):
///
///   O0, O1           4 + 4 + 8      16     4 + 4 + 8      16
///   O2, bf16         2 + 2 + 8 + 4  16     4 + 4 + 8      16
///   O3               2 + 2 + 8      12     2 + 2 + 8      12
///   bf16-stochastic  2 + 2 + 8      12     2 + 2 + 8      12
///   bf16-kahan       2 + 2 + 8 + 2  14     2 + 2 + 8 + 2  14
///   fp8 (all three)  as bf16
ParameterBytes parameter_bytes(const nn::Precision& precision, std::int64_t moments, bool is_norm = false);

/// The state of a model of so many numbers in norms' parameters and in all others; batch norms as in state_of.
ModelState state_under(const nn::Precision& precision, std::int64_t elements, std::int64_t norm_elements,
                       std::int64_t moments, std::int64_t norm_channels = 0, std::int64_t norms = 0);

/// The state of one linear layer in FP8, in its buffers: with delayed scaling an amax for each of 3 operands and each
/// step of the history, 3 scales (f32), and 2 counts for each operand (i64); else 0.
std::int64_t fp8_state_bytes(const nn::Fp8Recipe& recipe);

/// Whether the linear layers of a transformer's blocks run in FP8: 16 divides the width.
bool has_fp8_layers(const nn::Precision& precision, const ModelOptions& sizes);

/// A transformer layer's terms with the inputs of its products, `inputs` and the result of attention, as codes of one
/// byte; and "scales of codes". `readers` products read the layer's input, and each keeps codes of its own: 1 where
/// query, key and value are one product.
std::vector<Term> with_fp8_codes(std::vector<Term> terms, std::initializer_list<const char*> inputs,
                                 const nn::Precision& precision, const ModelOptions& sizes, std::int64_t readers = 1);

/// gpt_state, gpt_layer_kept, gpt_outside_kept and gpt_kept_bytes under a policy. Where products compute in a dtype of
/// their own, a layer keeps the terms of that dtype but for "residual" and "layer output", which are of the
/// parameters', and besides "weight casts", 12 h^2 numbers whatever the batch; outside, "embedding output" is of the
/// parameters' dtype, and "token table cast" are V h numbers.
///
/// Under FP8 the inputs of a layer's four products are kept as codes, one byte a number, with their scales: one for
/// each product, or a byte for each row's 128 numbers. Attention in its fused form keeps its result in bf16 besides.
/// Where 16 does not divide h all is as under bf16. A step keeps this; a recording without a Transaction keeps also the
/// scales it began with, 12 bytes for a product with delayed scaling.
ModelState gpt_state(std::string_view name, const ModelOptions& options, std::int64_t moments,
                     const nn::Precision& precision);
std::vector<Term> gpt_layer_kept(std::string_view name, const ModelOptions& options, const nn::Precision& precision);
std::vector<Term> gpt_outside_kept(std::string_view name, const ModelOptions& options, const nn::Precision& precision);
std::int64_t gpt_kept_bytes(std::string_view name, const ModelOptions& options, const nn::Precision& precision,
                            Category category, std::int64_t batch);

/// resnet_state and resnet_kept (the textbook build) under a policy. Where products compute in a dtype of their own,
/// everything that they make is of it; the images are of the parameters' dtype, and "input cast" is what is kept of
/// them. "weight casts": of all convolutions but the first, which needs no gradient of its input, and of the head.
ModelState resnet_state(std::string_view name, const ModelOptions& options, std::int64_t moments,
                        const nn::Precision& precision);
std::vector<Term> resnet_kept(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models::theory
