#include <thimble/nn/step/read.h>

namespace thimble::nn {

double read_value(const Tensor& t) {
  if (!t.device().is_dry) return item(t);
  if (t.elements() != 1) throw ShapeError("read_value: " + describe(t) + " has not exactly one element");
  return read_values<double>(t)[0];
}

}  // namespace thimble::nn
