#pragma once
// Reads values in programs that also run dry. `to_host` and `item` throw on a dry device, which has no values. A
// program that checks for a dry device instead allocates differently from the real one: its steps leave their plans.

#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>

namespace thimble::nn {

/// to_host<T>(t); on a dry device makes its allocations and returns zeros.
template <class T>
std::vector<T> read_values(const Tensor& t) {
  if (!t.device().is_dry) return to_host<T>(t);
  contiguous(to_dtype(t, dtype_of<T>));
  return std::vector<T>(static_cast<std::size_t>(t.elements()));
}

/// item(t); on a dry device makes its allocations and returns 0. Throws ShapeError.
inline double read_value(const Tensor& t) {
  if (!t.device().is_dry) return item(t);
  if (t.elements() != 1) throw ShapeError("read_value: " + describe(t) + " has not exactly one element");
  return read_values<double>(t)[0];
}

}  // namespace thimble::nn
