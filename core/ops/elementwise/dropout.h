#pragma once
// Dropout (Srivastava et al. 2014, section 4), inverted: training scales the kept values, evaluation does nothing.

#include <thimble/core/ops/op.h>
#include <thimble/core/tensor/generator.h>

namespace thimble::ops {

/// For a tensor (groups n, ...) of n samples in shards of m elements: row g n + s has the elements of sample s from
/// (first + g) m on. By default samples are whole.
struct SampleParts {
  std::int64_t groups = 1, first = 0;
};

/// y = keep x / (1 - p), keep = 0 with probability p in [0, 1), accurate to 2^-32, independently per element; any
/// floating dtype and shape. A dropped value is 0 even if x is NaN or infinite. The mask is a function of (site, global
/// sample index, element within the sample), with samples along axis 0. Keeps nothing; backward recomputes the mask.
/// With `parts`, elements are numbered as in the whole samples, and each part has a multiple of 4 elements. Throws
/// DTypeError, ValueError.
struct Dropout {
  static constexpr const char* name = "dropout";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  double p = 0.5;
  RandomSite site;
  SampleParts parts = {};

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// The textbook form: Dropout's values for the same site, but keeps the mask, one byte per element.
struct DropoutTextbook {
  static constexpr const char* name = "dropout_textbook";
  static constexpr Cost cost = Cost::elementwise;
  struct Saved {
    Tensor mask;
  };
  double p = 0.5;
  RandomSite site;
  SampleParts parts = {};

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
