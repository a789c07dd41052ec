#include <thimble/autograd/functions/dropout.h>

#include <thimble/autograd/apply.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/random/random.h>

namespace thimble {

// p = 0 skips the operator, but takes its site: the numbers of later calls do not depend on it.
Tensor dropout(const Tensor& x, double p) {
  const RandomSite site = next_random_site();
  return p == 0 ? x : apply(ops::Dropout{p, site}, x);
}

Tensor dropout_textbook(const Tensor& x, double p) {
  const RandomSite site = next_random_site();
  return p == 0 ? x : apply(ops::DropoutTextbook{p, site}, x);
}

}  // namespace thimble
