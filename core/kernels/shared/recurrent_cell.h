#pragma once
// The maths of one unit of an LSTM (Hochreiter and Schmidhuber 1997, with Gers et al.'s forget gate) and of a GRU (Cho
// et al. 2014, in PyTorch's form, where r scales the state's product), shared by CPU and CUDA.

#include <thimble/core/config.h>
#include <thimble/core/numbers/math.h>

namespace thimble::kernels {

template <class T>
struct LstmUnit {
  T i, f, g, o;  ///< after the sigmoid or tanh
  THIMBLE_HD LstmUnit(T i_in, T f_in, T g_in, T o_in)
      : i(math::sigmoid(i_in)), f(math::sigmoid(f_in)), g(math::tanh(g_in)), o(math::sigmoid(o_in)) {}
  THIMBLE_HD T cell(T before) const { return f * before + i * g; }
  THIMBLE_HD T state(T cell) const { return o * math::tanh(cell); }

  /// Gradients of the gates' inputs and of the cell before, given the gradients of state and cell.
  struct Gradient {
    T i, f, g, o, before;
  };
  THIMBLE_HD Gradient backward(T before, T cell, T dh, T dc) const {
    const T bent = math::tanh(cell), d = dc + dh * o * (T(1) - bent * bent);
    return {d * g * i * (T(1) - i), d * before * f * (T(1) - f), d * i * (T(1) - g * g), dh * bent * o * (T(1) - o),
            d * f};
  }
};

template <class T>
struct GruUnit {
  T r, z, n;
  THIMBLE_HD GruUnit(T x_r, T x_z, T x_n, T h_r, T h_z, T h_n)
      : r(math::sigmoid(x_r + h_r)), z(math::sigmoid(x_z + h_z)), n(math::tanh(x_n + r * h_n)) {}
  THIMBLE_HD T state(T before) const { return (T(1) - z) * n + z * before; }

  /// Gradients of the gates' inputs: `n` for x_n, r times it for h_n. `before` lacks the path through the gates.
  struct Gradient {
    T r, z, n, h_n, before;
  };
  THIMBLE_HD Gradient backward(T before, T h_n, T dh) const {
    const T dn = dh * (T(1) - z) * (T(1) - n * n);
    return {dn * h_n * r * (T(1) - r), dh * (before - n) * z * (T(1) - z), dn, dn * r, dh * z};
  }
};

}  // namespace thimble::kernels
