#pragma once
// Shared by the readable reference kernels: widening of a stored value, and activations from the standard library.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/tensor/dtype.h>

namespace thimble::kernels {

/// Element `at` behind `base`, stored as S.
template <class T, class S>
T reference_value(const void* base, std::int64_t at) noexcept {
  const S value = static_cast<const S*>(base)[at];
  if constexpr (std::is_arithmetic_v<S>) {
    return static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

/// act(x); integers support none and relu.
template <class T>
T reference_activation(Activation activation, T x) noexcept {
  if (activation == Activation::relu) return x < T{0} ? T{0} : x;
  if constexpr (std::is_floating_point_v<T>) {
    if (activation == Activation::gelu_tanh) {
      return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
    if (activation == Activation::gelu_erf) return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
  }
  return x;
}

}  // namespace thimble::kernels
