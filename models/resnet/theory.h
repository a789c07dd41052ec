#pragma once
// The bytes that training a ResNet needs, from the table of the architecture alone: no model is built and no tape is
// read. Tests hold these against what the ledger books, as integers.
//
// Counted is the textbook build (convolution, batch norm, relu as separate operators; He et al. 2015, section 3.4):
// - a convolution keeps its input for the weight's gradient: the batch's images, a relu's result or the pool's
// - a batch norm keeps its input, a convolution's result, and per channel mean and 1 / deviation
// - a relu keeps its result, which the next convolution, the addition or the max pool reads as well: once
// - the addition and the global average keep nothing
// - weights and biases are kept by reference: they belong to the model's state
// - the head keeps its input, the class scores, one log-sum-exp per sample, and the targets
// Every term is linear in the batch: bytes = per_sample x N + constant.

#include <string_view>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>

namespace thimble::models::theory {

/// What the textbook build keeps for backward, in the order that a forward makes it: "input", "conv outputs",
/// "batch-norm mean", "batch-norm rstd", "relu outputs", "pool output" (with the large stem), "fc input", "logits",
/// "logsumexp", "targets". `dtype`: of images and activations (statistics and log-sum-exp are f32, f64 for f64). Input,
/// conv outputs, relu outputs, pool output and fc input are the literature's saved set: 21,075,968 elements for
/// resnet50 at 224. Throws ValueError as models::resnet_options does.
std::vector<Term> resnet_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32);

/// Moments: 0 for plain SGD, 1 with momentum, 2 for Adam. Throws ValueError as models::resnet_options does, and for
/// negative moments.
ModelState resnet_state(std::string_view name, const ModelOptions& options = {}, std::int64_t moments = 1,
                        DType dtype = DType::f32);

/// Parameters of the net in 8 bits (nn/quant/quantized_model.h) as inference on the CPU holds them, batch norms folded:
/// of each filter its codes, padded to what the kernels read (core/kernels/quant_conv.h), a scale, a bias and a factor.
std::int64_t resnet_int8_bytes(std::string_view name, const ModelOptions& options = {});

}  // namespace thimble::models::theory
