#include <thimble/autograd/functions/fp8.h>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/matmul/fp8_linear.h>
#include <thimble/core/tensor/copy.h>

namespace thimble {

Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Fp8Format& format,
                  const Fp8State& state, bool records, kernels::Activation activation, bool weight_is_in_out) {
  const bool is_delayed = format.scaling == Fp8Scaling::delayed;
  if (is_delayed && !state.defined()) throw ValueError("fp8_linear: delayed scaling needs a state, which is undefined");
  Tensor scales;
  if (is_delayed) {
    // Outside a transaction this call overwrites the scales before backward reads them.
    scales = context().transaction == nullptr && context().tape != nullptr ? clone(state.scale) : state.scale;
  }
  Fp8Use use{format, is_delayed ? state : Fp8State{}, 0, records};
  if (records) use.step = static_cast<std::int64_t>(current_generator().step());
  return apply(ops::Fp8Linear{use, activation, weight_is_in_out}, x, weight, bias, scales);
}

}  // namespace thimble
