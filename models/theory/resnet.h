#pragma once
// The bytes that training a ResNet needs, from the table of the architecture alone: no model is built and no tape is
// read. Tests hold these against what the ledger books, as integers.
//
// Counted is the textbook build (convolution, batch norm, relu as separate operators; He et al. 2015, section 3.4):
// - a convolution keeps its input for the weight's gradient: the batch's images, a relu's result or the pool's
// - a batch norm keeps its input, a convolution's result, and per channel mean and 1 / deviation
// - a relu keeps its result, which the next convolution, the addition or the max pool reads as well: once
// - the addition and the global average keep nothing
// - the head keeps its input, the class scores, one log-sum-exp per sample, and the targets
// Every term is linear in the batch: bytes = per_sample x N + constant.

#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/resource.h>
#include <thimble/models/model.h>

namespace thimble::models::theory {

/// One kind of tensor that backward needs.
struct Term {
  std::string name;
  Category category = Category::activation;  ///< that the ledger books it under
  DType dtype = DType::f32;
  std::int64_t per_sample = 0;  ///< elements for each sample
  std::int64_t constant = 0;    ///< elements whatever the batch

  std::int64_t elements(std::int64_t batch) const noexcept { return per_sample * batch + constant; }
  std::int64_t bytes(std::int64_t batch) const noexcept {
    return elements(batch) * static_cast<std::int64_t>(size_of(dtype));
  }
};

/// Bytes of all terms of a category.
std::int64_t bytes_of(const std::vector<Term>& terms, Category category, std::int64_t batch);

/// What the textbook build keeps for backward, in the order that a forward makes it: "input", "conv outputs",
/// "batch-norm mean", "batch-norm rstd", "relu outputs", "pool output" (with the large stem), "fc input", "logits",
/// "logsumexp", "targets". `dtype`: of images and activations (statistics and log-sum-exp are f32, f64 for f64). The
/// first five that count images, input, conv outputs, relu outputs, pool output and fc input, are the literature's
/// saved set: 21,075,968 elements for resnet50 at 224. Throws ValueError as models::resnet_options does.
std::vector<Term> resnet_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32);

/// Bytes that do not depend on the batch.
struct ModelState {
  std::int64_t parameter_elements = 0;
  std::int64_t parameters = 0;  ///< bytes in the parameters' dtype
  std::int64_t buffers = 0;     ///< running mean and variance, and an i64 count for each batch norm
  std::int64_t gradients = 0;   ///< as the parameters
  std::int64_t optimizer = 0;   ///< `moments` numbers for each parameter, in f32 (f64 for f64)

  std::int64_t total() const noexcept { return parameters + buffers + gradients + optimizer; }
};

/// Moments: 0 for plain SGD, 1 with momentum, 2 for Adam. Throws ValueError as models::resnet_options does, and for
/// negative moments.
ModelState resnet_state(std::string_view name, const ModelOptions& options = {}, std::int64_t moments = 1,
                        DType dtype = DType::f32);

}  // namespace thimble::models::theory
