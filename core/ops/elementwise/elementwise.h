#pragma once
// Elementwise<F>: a functor (core/kernels/functors/functor.h) as an operator with broadcasting, dtype rules and
// declared bytes.

#include <thimble/core/kernels/cpu/elementwise/elementwise_chunk.h>
#include <thimble/core/kernels/elementwise.h>
#include <thimble/core/kernels/functors/elementwise_list.h>
#include <thimble/core/kernels/functors/functor.h>
#include <thimble/core/ops/op.h>
#include <thimble/core/ops/reduce.h>
#include <thimble/core/ops/reuse.h>

namespace thimble {
namespace elementwise_detail {

/// Checks that the operands share a dtype (except a bool condition) and a device, and returns the common shape.
Shape common_shape(const char* name, std::initializer_list<const Tensor*> operands);
void check_dtype(const char* name, DType dtype, bool allows_integers);

/// Runs a kernel: out = f(in...) over `shape`; the kernel copies `functor`. `index` is the functor's index among the
/// built-in ones, or -1; `operand` is -1 for forward. Throws DeviceError if the device has no kernel for it.
void run(const char* name, const kernels::ElementwiseFunction& function, int index, int operand, const void* functor,
         const Shape& shape, std::initializer_list<const Tensor*> in, const Tensor& out);

/// Runs a built-in functor's forward into an existing tensor, which may be an operand.
template <class F>
void run(const char* name, const F& f, std::initializer_list<const Tensor*> in, const Tensor& out) {
  constexpr int index = ops::builtin_index<F>;
  static_assert(index >= 0);
  run(name, kernels::elementwise_cpu_table[index].forward, index, -1, &f, out.shape(), in, out);
}

}  // namespace elementwise_detail

template <class F>
struct Elementwise {
  static_assert(std::is_trivially_copyable_v<F>, "a functor's attributes must be trivially copyable");
  static constexpr int operands = functor::operands<F>;
  static constexpr const char* name = F::name;
  static constexpr ops::Cost cost = ops::Cost::elementwise;

  F f;

  /// Tensors that the used gradient functions keep, and the operands' shapes.
  struct Saved {
    Tensor lhs, rhs, third, out;
    Shape lhs_shape, rhs_shape;
  };

  // The tensors that the gradients in `needs` keep: bits 0..2 are operands, bit 3 the output.
  static constexpr unsigned keeps(ops::Needs needs) {
    constexpr int of_operand[] = {functor::keeps<F, 0>, functor::keeps<F, 1>, functor::keeps<F, 2>};  // -1: no gradient
    unsigned bits = 0;
    for (int i = 0; i < 3; ++i) {
      if (needs[i] && of_operand[i] > 0) bits |= static_cast<unsigned>(of_operand[i]);
    }
    return bits;
  }
  /// The operands with a gradient function.
  static constexpr ops::Needs differentiable{(functor::keeps<F, 0> >= 0 ? 1u : 0u) |
                                             (functor::keeps<F, 1> >= 0 ? 2u : 0u) |
                                             (functor::keeps<F, 2> >= 0 ? 4u : 0u)};

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const requires(operands == 1) {
    return evaluate(x, Tensor(), Tensor(), needs, saved);
  }
  Tensor forward(const Tensor& lhs, const Tensor& rhs, ops::Needs needs, Saved& saved) const requires(operands == 2) {
    return evaluate(lhs, rhs, Tensor(), needs, saved);
  }
  Tensor forward(const Tensor& lhs, const Tensor& rhs, const Tensor& third, ops::Needs needs, Saved& saved) const
      requires(operands == 3) {
    return evaluate(lhs, rhs, third, needs, saved);
  }

  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    ops::Gradients gradients;
    gradients.push_back(gradient<0>(saved, dy, needs, needs[1] || needs[2]));
    if constexpr (operands > 1) gradients.push_back(gradient<1>(saved, dy, needs, needs[2]));
    if constexpr (operands > 2) gradients.push_back(gradient<2>(saved, dy, needs, false));
    return gradients;
  }

 private:
  static constexpr int index = ops::builtin_index<F>;

  static const kernels::ElementwiseEntry& entry() {
    if constexpr (index >= 0) {
      return kernels::elementwise_cpu_table[index];
    } else {
      return kernels::elementwise_entry<F>;
    }
  }

  Tensor evaluate(const Tensor& lhs, const Tensor& rhs, const Tensor& third, ops::Needs needs, Saved& saved) const {
    const Shape shape = elementwise_detail::common_shape(name, {&lhs, &rhs, &third});
    elementwise_detail::check_dtype(name, lhs.dtype(), functor::is_integral<F>);
    const DType dtype = functor::yields_bool<F> ? DType::boolean : lhs.dtype();
    const Tensor out = Tensor::empty(shape, dtype, lhs.device());
    elementwise_detail::run(name, entry().forward, index, -1, &f, shape, {&lhs, &rhs, &third}, out);
    if (needs.any()) {
      const unsigned kept = keeps(needs);
      if (kept & 1u) saved.lhs = lhs;
      if (kept & 2u) saved.rhs = rhs;
      if (kept & 4u) saved.third = third;
      if (kept & 8u) saved.out = out;
      saved.lhs_shape = lhs.shape();
      if constexpr (operands > 1) saved.rhs_shape = rhs.shape();
    }
    return out;
  }

  // Writes in dy's buffer if it is reusable and no later operand needs it.
  template <int W>
  Tensor gradient(Saved& saved, Tensor& dy, ops::Needs needs, bool dy_is_needed_later) const {
    if constexpr (functor::keeps<F, W> < 0) {
      return {};
    } else {
      if (!needs[W]) return {};
      if constexpr (functor::passes<F, W>) return sum_to(dy, W == 0 ? saved.lhs_shape : saved.rhs_shape);
      constexpr auto kept = static_cast<unsigned>(functor::keeps<F, W>);
      const Tensor dx = dy_is_needed_later ? Tensor::empty_like(dy) : reused_or_new(dy);
      const Tensor none;
      elementwise_detail::run(name, entry().backward[W], index, W, &f, dy.shape(),
                              {(kept & 1u) ? &saved.lhs : &none, (kept & 2u) ? &saved.rhs : &none,
                               (kept & 4u) ? &saved.third : &none, (kept & 8u) ? &saved.out : &none, &dy},
                              dx);
      if constexpr (W == 0) {
        return sum_to(dx, saved.lhs_shape);
      } else if constexpr (W == 1) {
        return sum_to(dx, saved.rhs_shape);
      } else {
        return dx;
      }
    }
  }
};

}  // namespace thimble
