#pragma once
// The scalar twin of FP8 products (core/ops/quant/fp8.h, core/ops/quant/fp8_linear.h): element by element, with sums in
// f64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/fp8.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"

namespace thimble::fp8_test {

/// A matrix on the host.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values;
  float operator()(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * columns + c)]; }
};

inline Matrix host(const Tensor& t) { return {t.size(0), t.size(1), to_host<float>(t)}; }

/// Distinct values in [-high, high].
inline Tensor spread(const Shape& shape, double high, DType dtype, int seed) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double t = static_cast<double>((i * 7919 + static_cast<std::size_t>(seed) * 104729) % 10007) / 10007;
    values[i] = static_cast<float>(high * (2 * t - 1) * (i % 5 == 0 ? 0.01 : 1));
  }
  return to_dtype(from_host(values, shape), dtype);
}

/// A value after rounding under a scale, in f32 like the library.
inline float rounded(float value, float scale, DType dtype) {
  const float scaled = value * (1.0f / scale);
  if (std::isnan(scaled)) return std::numeric_limits<float>::quiet_NaN();
  if (std::isinf(value)) return dtype == DType::f8e4m3 ? std::numeric_limits<float>::quiet_NaN() : value;
  return dtype == DType::f8e4m3 ? static_cast<float>(f8e4m3::saturate(scaled))
                                : static_cast<float>(f8e5m2::saturate(scaled));
}

inline float largest(DType dtype) { return dtype == DType::f8e4m3 ? 448.0f : 57344.0f; }

/// The scale of each element of a matrix: one for all, `given` if not 0, or a power of two per block.
inline Matrix scales_of(const Matrix& m, Fp8Role role, const Fp8Format& format, float given) {
  Matrix scales{m.rows, m.columns, std::vector<float>(m.values.size())};
  const DType dtype = role == Fp8Role::gradient ? format.gradient : format.forward;
  const bool is_block = format.scaling == Fp8Scaling::block;
  const std::int64_t height = !is_block ? m.rows : role == Fp8Role::weight ? 128 : 1;
  const std::int64_t width = is_block ? 128 : m.columns;
  for (std::int64_t r0 = 0; r0 < m.rows; r0 += height) {
    for (std::int64_t c0 = 0; c0 < m.columns; c0 += width) {
      double amax = 0;
      const auto each = [&](auto&& f) {
        for (std::int64_t r = r0; r < std::min(m.rows, r0 + height); ++r) {
          for (std::int64_t c = c0; c < std::min(m.columns, c0 + width); ++c) f(r, c);
        }
      };
      each([&](std::int64_t r, std::int64_t c) { amax = std::max(amax, std::fabs(static_cast<double>(m(r, c)))); });
      double scale = amax == 0 ? 1 : amax / static_cast<double>(largest(dtype)) * std::exp2(format.margin);
      if (is_block) {
        // The quotient is rounded to f32, and then up to a power of two.
        const double quotient = static_cast<double>(static_cast<float>(amax) / largest(dtype));
        scale = amax == 0 ? 1 : std::exp2(std::ceil(std::log2(quotient)));
      } else if (given != 0) {
        scale = static_cast<double>(given);
      }
      each([&](std::int64_t r, std::int64_t c) {
        scales.values[static_cast<std::size_t>(r * m.columns + c)] = static_cast<float>(scale);
      });
    }
  }
  return scales;
}

/// FP8 values times their scales.
inline Matrix through_fp8(const Matrix& m, Fp8Role role, const Fp8Format& format, float given = 0) {
  const Matrix scales = scales_of(m, role, format, given);
  const DType dtype = role == Fp8Role::gradient ? format.gradient : format.forward;
  Matrix result = m;
  for (std::size_t i = 0; i < m.values.size(); ++i) {
    result.values[i] = rounded(m.values[i], scales.values[i], dtype) * scales.values[i];
  }
  return result;
}

/// a b, and the product of magnitudes, which bounds the error of a sum.
struct Product {
  std::vector<double> values, magnitudes;
};
inline Product product(const Matrix& a, bool turns_a, const Matrix& b, bool turns_b) {
  const std::int64_t m = turns_a ? a.columns : a.rows, k = turns_a ? a.rows : a.columns;
  const std::int64_t n = turns_b ? b.rows : b.columns;
  Product p;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t q = 0; q < k; ++q) {
        const double term =
            static_cast<double>(turns_a ? a(q, i) : a(i, q)) * static_cast<double>(turns_b ? b(j, q) : b(q, j));
        sum += term;
        magnitude += std::fabs(term);
      }
      p.values.push_back(sum);
      p.magnitudes.push_back(magnitude);
    }
  }
  return p;
}

/// Checks what fp8_linear keeps for backward; returns the bytes of both.
inline std::vector<std::size_t> check_kept(const Fp8Format& format, kernels::Activation activation,
                                           memory::Device device) {
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope scope(stack.top);
  const auto leaf = [&](const Shape& shape, memory::Category category) {
    Tensor t = zeros(shape, DType::bf16, device, category);
    t.require_grad();
    return t;
  };
  const Tensor x = leaf({6, 10, 64}, memory::Category::input), w = leaf({32, 64}, memory::Category::parameter);
  const Fp8State state = make_fp8_state(4, device);
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = fp8_linear(x, w, {}, format, state, true, activation);
  }
  const std::size_t codes = 60 * 64, scale = format.scaling == Fp8Scaling::block ? 60 : 4;
  const std::size_t scales = format.scaling == Fp8Scaling::delayed ? 12 : 0;
  const std::size_t input = activation == kernels::Activation::none ? 0 : 60 * 32 * 2;
  CHECK(tape.kept_bytes() == codes + scale + scales + input);
  if (!device.is_cuda()) CHECK(stack.ledger->bytes(memory::Category::activation) == tape.kept_bytes());
  tape.backward(y, full(y.shape(), 1, DType::bf16, device));
  CHECK((device.is_cuda() || stack.ledger->bytes(memory::Category::activation) == 0));
  std::vector<std::size_t> figures{stack.arena->statistics().peak_height_bytes};
  for (const memory::Category category :
       {memory::Category::workspace, memory::Category::temporary, memory::Category::gradient}) {
    figures.push_back(stack.ledger->bytes(category));
    figures.push_back(stack.ledger->max_allocated(category));
  }
  return figures;
}

}  // namespace thimble::fp8_test
