#pragma once
// Two operators that the library lacks, written as in a prototype: in a separate file, without editing the library.
// examples/own_operator.cpp uses them.

#include <cmath>
#include <cstdint>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/functor.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/math.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/op.h>
#include <thimble/core/threads/parallel.h>

namespace own {

using namespace thimble;

/// An elementwise operator is a functor: y = x tanh(ln(1 + e^x)) (Misra 2019, arXiv:1908.08681, equation 2). The
/// library adds broadcasting, dtypes, threads and vector code. As `bwd` takes In, backward keeps only the input.
struct Mish {
  static constexpr const char* name = "mish";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x * gate(x);
  }
  template <class T>
  THIMBLE_HD T bwd(functor::In<T> x, T dy) const {
    const T t = gate(x.value);
    return dy * (t + x * (T(1) - t * t) * math::sigmoid(x.value));
  }

 private:
  // tanh(ln(1 + u)) = n / (n + 2) with u = e^x, n = u (u + 2); rounds to 1 from x = 20 on.
  template <class T>
  THIMBLE_HD static T gate(T x) {
    const T u = math::exp(x < T(20) ? x : T(20)), n = u * (u + T(2));
    return n / (n + T(2));
  }
};

/// A structured operator has a forward and a backward over whole tensors. This one divides every row of x (..., C) by
/// its length: y = x / sqrt(sum x^2 + epsilon), in any floating dtype. Backward: dx = (dy - y (dy . y)) / sqrt(...).
/// Keeps y and one number per row. Throws ShapeError (a scalar), DTypeError, DeviceError (it has no CUDA kernel).
struct NormalizeRows {
  static constexpr const char* name = "normalize_rows";
  static constexpr ops::Cost cost = ops::Cost::reduction;  // for recomputation policies
  double epsilon = 1e-12;
  struct Saved {
    Tensor y;        // (..., C), the result itself, not a copy
    Tensor inverse;  // (rows), 1 / length: extra bytes
  };

  Tensor forward(const Tensor& input, ops::Needs needs, Saved& saved) const {
    if (!input.device().is_cpu()) throw DeviceError(std::string(name) + ": no kernel for " + describe(input));
    if (!is_floating(input.dtype())) throw DTypeError(std::string(name) + ": " + describe(input) + " is not floating");
    if (input.rank() == 0) throw ShapeError(std::string(name) + ": " + describe(input) + " has no rows");
    const Tensor x = contiguous(input);      // (..., C)
    const Tensor y = Tensor::empty_like(x);  // (..., C)
    const std::int64_t columns = x.shape().back(), rows = columns == 0 ? 0 : x.elements() / columns;
    const DType exact = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Tensor inverse = Tensor::empty({rows}, exact, x.device());
    // Allocate everything before `launch`: its body gets raw addresses and must not allocate. On a dry device the body
    // does not run.
    launch(x.device(), [&](const Addresses& at) {
      visit(x.dtype(), [&]<class T>() {
        const T* const from = at.as<T>(x);
        T* const to = at.as<T>(y);
        parallel_for(rows, rows_per_task, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            double sum = epsilon;
            for (std::int64_t c = 0; c < columns; ++c) sum += square(convert_value<double>(from[r * columns + c]));
            const double scale = 1 / std::sqrt(sum);
            write(at(inverse), exact, r, scale);
            for (std::int64_t c = r * columns; c < (r + 1) * columns; ++c) {
              to[c] = convert_value<T>(scale * convert_value<double>(from[c]));
            }
          }
        });
      });
    });
    if (needs[0]) saved = {y, inverse};
    return y;
  }

  ops::Gradients backward(Saved saved, Tensor gradient, ops::Needs) const {
    const Tensor &y = saved.y, dy = contiguous(gradient);  // (..., C)
    const Tensor dx = Tensor::empty_like(y);               // (..., C)
    const std::int64_t columns = y.shape().back(), rows = saved.inverse.elements();
    launch(y.device(), [&](const Addresses& at) {
      visit(y.dtype(), [&]<class T>() {
        const T *const result = at.as<T>(y), *const incoming = at.as<T>(dy);
        T* const to = at.as<T>(dx);
        parallel_for(rows, rows_per_task, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            const double scale = read(at(saved.inverse), saved.inverse.dtype(), r);
            double along = 0;
            for (std::int64_t c = r * columns; c < (r + 1) * columns; ++c) {
              along += convert_value<double>(result[c]) * convert_value<double>(incoming[c]);
            }
            for (std::int64_t c = r * columns; c < (r + 1) * columns; ++c) {
              const double across = convert_value<double>(incoming[c]) - along * convert_value<double>(result[c]);
              to[c] = convert_value<T>(scale * across);
            }
          }
        });
      });
    });
    return {dx};
  }

 private:
  static constexpr std::int64_t rows_per_task = 16;  // one thread per row: the thread count does not change the bits

  static double square(double value) { return value * value; }
  static void write(void* data, DType dtype, std::int64_t i, double value) {
    if (dtype == DType::f64) static_cast<double*>(data)[i] = value;
    if (dtype == DType::f32) static_cast<float*>(data)[i] = static_cast<float>(value);
  }
  static double read(const void* data, DType dtype, std::int64_t i) {
    return dtype == DType::f64 ? static_cast<const double*>(data)[i]
                               : static_cast<double>(static_cast<const float*>(data)[i]);
  }
};

}  // namespace own
