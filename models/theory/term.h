#pragma once
// What the closed forms of all models are made of: named terms, and the bytes that do not depend on the batch.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/resource.h>

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

/// Bytes that do not depend on the batch.
struct ModelState {
  std::int64_t parameter_elements = 0;
  std::int64_t parameters = 0;  ///< bytes in the parameters' dtype
  std::int64_t buffers = 0;     ///< running mean and variance, and an i64 count for each batch norm; GPT has none
  std::int64_t gradients = 0;   ///< as the parameters
  std::int64_t optimizer = 0;   ///< `moments` numbers for each parameter, in f32 (f64 for f64)

  std::int64_t total() const noexcept { return parameters + buffers + gradients + optimizer; }
};

}  // namespace thimble::models::theory
