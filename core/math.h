#pragma once
#include <thimble/core/config.h>
#include <cmath>
namespace thimble::math {
template <class T>
T exp(T x) {
  return std::exp(x);
}
template <class T>
T log(T x) {
  return std::log(x);
}
template <class T>
T tanh(T x) {
  return std::tanh(x);
}
template <class T>
T erf(T x) {
  return std::erf(x);
}
template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}
}  // namespace thimble::math
