#include <thimble/autograd/functions/dropout.h>

#include <thimble/autograd/apply.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/random/random.h>

namespace thimble {

namespace dropout_functions_detail {

// The operator refuses a probability out of range, in evaluation too.
bool drops(double p) { return p != 0 && !(is_evaluating() && p > 0 && p < 1); }

}  // namespace dropout_functions_detail

// Without dropping the operator is skipped, but its site is taken: later calls' numbers do not depend on it.
Tensor dropout(const Tensor& x, double p) {
  const RandomSite site = next_random_site();
  return dropout_functions_detail::drops(p) ? apply(ops::Dropout{p, site}, x) : x;
}

Tensor dropout_textbook(const Tensor& x, double p) {
  const RandomSite site = next_random_site();
  return dropout_functions_detail::drops(p) ? apply(ops::DropoutTextbook{p, site}, x) : x;
}

}  // namespace thimble
