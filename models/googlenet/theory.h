#pragma once
// The bytes that training GoogLeNet needs, from the table of its blocks alone: no model is built and no tape is read.
// Tests hold these against what the ledger books, as integers.
//
// A block over an image of m pixels with I channels, whose six convolutions have C results in all, R of them the two
// reductions', and O at the block's end, keeps for each sample (e bytes for an element)
//   textbook   e m (C + C + I + O): convolution outputs, relu outputs, the pool's result, the joined branches
//   fused      e m (C + R + I + O): of the relu outputs only those that a convolution reads
// and, whatever the batch, mean and 1 / deviation of C channels. Its input belongs to what comes before it. The fused
// build keeps no O where a pool follows (one byte for each of its results instead), and neither build keeps the last O,
// of which only the mean is taken.

#include <cstddef>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>

namespace thimble::models::theory {

/// What block `index` (0: inception3a, ... 8: inception5b) keeps, booked at and below `googlenet.inception3a`: "conv
/// outputs", "relu outputs", "pool output", "batch-norm mean", "batch-norm rstd", and where it is kept "block output".
/// `dtype`: of images and activations (statistics are f32, f64 for f64). Throws ValueError as models::googlenet_options
/// does, std::out_of_range for another index.
std::vector<Term> googlenet_block_kept(std::size_t index, const ModelOptions& options = {}, DType dtype = DType::f32);

/// What is kept outside of the blocks: "images" and "targets" (input), the stem's "conv outputs", "relu outputs",
/// "batch-norm mean", "batch-norm rstd", "pool outputs" and, fused, "pool taps" of all pools outside of blocks, "fc
/// input", "logits", "logsumexp"; textbook, with dropout: "dropout mask".
std::vector<Term> googlenet_outside_kept(const ModelOptions& options = {}, DType dtype = DType::f32);

/// Bytes of a category that the whole model keeps for backward with a batch of `batch`.
std::int64_t googlenet_kept_bytes(const ModelOptions& options, DType dtype, Category category, std::int64_t batch);

/// Moments: 0 for plain SGD, 1 with momentum, 2 for Adam. Throws ValueError as models::googlenet_options does, and for
/// negative moments.
ModelState googlenet_state(const ModelOptions& options = {}, std::int64_t moments = 1, DType dtype = DType::f32);

}  // namespace thimble::models::theory
