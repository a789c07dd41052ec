#pragma once
// What the closed forms of all models are made of: named terms, and the bytes that do not depend on the batch.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/tensor/dtype.h>
#include <thimble/core/tensor/resource.h>

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

/// The dtype of statistics and log-sum-exps beside activations of `dtype`: f32, f64 for f64.
constexpr DType statistic_of(DType dtype) noexcept { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// A list of what is kept for each sample, as activations of `dtype` unless said otherwise.
class TermList {
 public:
  explicit TermList(DType dtype) : dtype_(dtype) {}
  void values(const char* name, std::int64_t per_sample) { add(name, Category::activation, dtype_, per_sample); }
  void statistics(const char* name, std::int64_t per_sample) {
    add(name, Category::activation, statistic_of(dtype_), per_sample);
  }
  void mask(const char* name, std::int64_t per_sample) { add(name, Category::activation, DType::u8, per_sample); }
  /// Class numbers or token ids of the batch.
  void ids(const char* name, std::int64_t per_sample) { add(name, Category::input, DType::i64, per_sample); }
  /// Images of the batch.
  void images(const char* name, std::int64_t per_sample) { add(name, Category::input, dtype_, per_sample); }

  std::vector<Term> terms;

 private:
  void add(const char* name, Category category, DType dtype, std::int64_t per_sample) {
    terms.push_back({name, category, dtype, per_sample, 0});
  }
  DType dtype_;
};

/// Bytes that do not depend on the batch.
struct ModelState {
  std::int64_t parameter_elements = 0;
  std::int64_t parameters = 0;  ///< bytes in the parameters' dtype
  std::int64_t buffers = 0;     ///< running mean and variance, and an i64 count for each batch norm
  std::int64_t gradients = 0;   ///< as the parameters
  std::int64_t optimizer = 0;   ///< `moments` numbers for each parameter, in f32 (f64 for f64)

  std::int64_t total() const noexcept { return parameters + buffers + gradients + optimizer; }
};

/// The state of a model with `elements` numbers in its parameters, batch norms over `norm_channels` channels in all,
/// `norms` of them, and `moments` numbers of optimizer state for each parameter (0: plain SGD, 1: with momentum, 2:
/// Adam). Throws ValueError, naming `model`, for negative moments.
ModelState state_of(const char* model, std::int64_t elements, std::int64_t moments, DType dtype,
                    std::int64_t norm_channels = 0, std::int64_t norms = 0);

}  // namespace thimble::models::theory
