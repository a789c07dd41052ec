#pragma once
// The bytes that training the network of shared kernels, or its plain twin, needs, from its sizes alone: no model is
// built and no tape is read. Tests hold these against what the ledger books, as integers.
//
// Both twins keep the same for backward, what models/resnet/theory.h counts for a residual network: basis and
// coefficients are parameters, and expanded kernels are not kept. What differs is the state: of a 3x3 convolution from
// `in` to `out` channels 9 in out numbers, or in r and its share of a stage's 9 r out.

#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>

namespace thimble::models::theory {

/// What the textbook build keeps for backward: "images" and "targets" (input), "conv outputs", "relu outputs",
/// "batch-norm mean", "batch-norm rstd", "fc input", "logits", "logsumexp". `dtype`: of images and activations
/// (statistics are f32, f64 for f64). Throws ValueError as models::sharedconv_options does.
std::vector<Term> sharedconv_kept(const ModelOptions& options = {}, DType dtype = DType::f32);

/// Moments: 0 for plain SGD, 1 with momentum, 2 for Adam. Throws ValueError as models::sharedconv_options does, and for
/// negative moments.
ModelState sharedconv_state(const ModelOptions& options = {}, std::int64_t moments = 1, DType dtype = DType::f32);

}  // namespace thimble::models::theory
