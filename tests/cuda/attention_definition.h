#pragma once
// The definition of attention in double, with bounds for the rounding on tensor cores (cuda/attention/attention.h), and
// a comparison of the kernels' values with it.
//
// Tolerances are bounds, element by element. A rounding to n significant bits moves a value by at most u = 2^-n of it
// (f16 and TF32 have 11, bf16 8), in TF32 also each operand in memory: w = (1 + u)^2 - 1 for a product of two. Products
// of f16 and bf16 are exact: w = 0. With these
// - a score is off by at most e_s = w scale sum_d |q_d k_d|, so a probability P_s is multiplied by exp(d_s) / sum_r P_r
//   exp(d_r) with |d_s| <= e_s: off by at most r_s = max(exp(e_s) / sum_r P_r exp(-e_r) - 1,
//   1 - exp(-e_s) / sum_r P_r exp(e_r)) of itself, and lse by the logarithm of one of these sums;
// - dP = dout . v is off by at most w sum_d |dout_d v_d|, and dS = P (dP - delta) by that and by r (delta is in f32);
// - a term P v, P dout, dS k or dS q has the error of its first factor, plus its rounding: u, and in TF32 another u;
// - results are rounded to f16 or bf16, or are f32. Errors of f32 are far below: `rest`.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"

namespace thimble_test::attention_definition {

using namespace thimble;

using Values = std::vector<double>;

inline constexpr RandomSite site{11, 3, 5, 0x5eed5eedu};

struct Sizes {
  std::int64_t batch, queries, keys, heads, width;
  bool is_causal;
  double p = 0;
  std::int64_t group = 1;
  std::int64_t window = 0;
  Tensor mask = {};  ///< in one of the three forms of ops::Attention; on the CPU
  const char* mask_name = "no mask";
};

inline std::string describe(const Sizes& n, DType dtype) {
  return std::string(to_string(dtype)) + " B " + std::to_string(n.batch) + " T " + std::to_string(n.queries) + " S " +
         std::to_string(n.keys) + " H " + std::to_string(n.heads) + " by " + std::to_string(n.group) + " D " +
         std::to_string(n.width) + (n.is_causal ? " causal" : "") + " p " + std::to_string(n.p) + " window " +
         std::to_string(n.window) + ", " + n.mask_name;
}

/// Values and their allowed errors.
struct Bounded {
  Values value, allowed;
  explicit Bounded(std::size_t count = 0) : value(count), allowed(count) {}
  void add(std::size_t i, double term, double off) { value[i] += term, allowed[i] += off; }
  void add_last(double term, double off) { value.push_back(term), allowed.push_back(off); }
};

struct Reference {
  Bounded out, dq, dk, dv, lse;
};

struct Units {
  double factor;  ///< the rounding of P and dS
  double memory;  ///< of an operand in memory
  double result;
  explicit Units(DType dtype)
      : factor(dtype == DType::bf16 ? 0x1p-8 : 0x1p-11),
        memory(dtype == DType::f32 ? 0x1p-11 : 0),
        result(dtype == DType::f32 ? 0 : factor) {}
};

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The mask as a term of the scores, (B, H, T, S): -infinity where a query does not see a key.
inline Values added_to_scores(const Sizes& n) {
  Values all;
  const bool has_documents = n.mask.defined() && n.mask.dtype() == DType::i32;
  Values mask;
  if (n.mask.defined()) mask = to_host<double>(to_dtype(n.mask, DType::f64));
  for (std::int64_t row = 0; row < n.batch * n.heads * n.queries; ++row) {
    const std::int64_t b = row / n.queries / n.heads, h = row / n.queries % n.heads, t = row % n.queries;
    const std::int64_t own = t + n.keys - n.queries;
    for (std::int64_t s = 0; s < n.keys; ++s) {
      bool is_seen = !n.is_causal || s <= own;
      if (n.window > 0) is_seen = is_seen && std::abs(s - own) < n.window;
      double value = 0;
      if (has_documents) {
        is_seen = is_seen && mask[index(b * n.keys + s)] == mask[index(b * n.keys + own)];
      } else if (n.mask.defined()) {
        const std::int64_t place[] = {b, h, t, s};
        std::int64_t i = 0;
        for (int axis = 0; axis < n.mask.rank(); ++axis) {
          const std::int64_t size = n.mask.size(axis);
          i = i * size + (size == 1 ? 0 : place[4 - n.mask.rank() + axis]);
        }
        value = n.mask.dtype() != DType::boolean ? mask[index(i)] : mask[index(i)] != 0 ? 0 : -INFINITY;
      }
      all.push_back(is_seen ? value : -INFINITY);
    }
  }
  return all;
}

/// The definition. `given`: the result that backward reads.
inline Reference reference(const Sizes& n, DType dtype, double scale, const Values& q, const Values& k, const Values& v,
                           const Values& dy, const Values& given) {
  Reference all{Bounded(q.size()), Bounded(q.size()), Bounded(k.size()), Bounded(v.size()), Bounded()};
  const Units unit(dtype);
  const double both = (1 + unit.memory) * (1 + unit.memory) - 1;
  const double factor = (1 + unit.factor) * (1 + unit.memory);
  const auto at = [&](std::int64_t length, std::int64_t b, std::int64_t t, std::int64_t h) {
    return index(((b * length + t) * n.heads + h) * n.width);
  };
  const auto key_at = [&](std::int64_t b, std::int64_t s, std::int64_t h) {
    return index(((b * n.keys + s) * (n.heads / n.group) + h / n.group) * n.width);
  };
  const auto dot = [&](const Values& x, std::size_t i, const Values& y, std::size_t j) {
    double sum = 0;
    for (std::size_t d = 0; d < index(n.width); ++d) sum += x[i + d] * y[j + d];
    return sum;
  };
  const auto magnitude = [&](const Values& x, std::size_t i, const Values& y, std::size_t j) {
    double sum = 0;
    for (std::size_t d = 0; d < index(n.width); ++d) sum += std::abs(x[i + d] * y[j + d]);
    return sum;
  };
  const Values added = added_to_scores(n);
  Values score(index(n.keys)), off(index(n.keys));
  for (std::int64_t b = 0; b < n.batch; ++b) {
    for (std::int64_t h = 0; h < n.heads; ++h) {
      for (std::int64_t t = 0; t < n.queries; ++t) {
        const std::size_t row = at(n.queries, b, t, h), of_row = index(((b * n.heads + h) * n.queries + t) * n.keys);
        std::vector<std::int64_t> seen;
        for (std::int64_t s = 0; s < n.keys; ++s) {
          if (added[of_row + index(s)] != -INFINITY) seen.push_back(s);
        }
        if (seen.empty()) {  // all are 0, exactly
          all.lse.add_last(0, 0);
          continue;
        }
        double largest = -INFINITY, total = 0;
        for (const std::int64_t s : seen) {
          score[index(s)] = scale * dot(q, row, k, key_at(b, s, h)) + added[of_row + index(s)];
          off[index(s)] = both * std::abs(scale) * magnitude(q, row, k, key_at(b, s, h));
          largest = std::max(largest, score[index(s)]);
        }
        for (const std::int64_t s : seen) total += std::exp(score[index(s)] - largest);
        double less = 0, more = 0;
        for (const std::int64_t s : seen) {
          const double chance = std::exp(score[index(s)] - largest) / total;
          less += chance * std::exp(-off[index(s)]), more += chance * std::exp(off[index(s)]);
        }
        all.lse.add_last(largest + std::log(total), std::max(std::log(more), -std::log(less)));
        const double delta = dot(given, row, dy, row);
        for (const std::int64_t s : seen) {
          const std::size_t key = key_at(b, s, h);
          const std::int64_t i = (h * n.queries + t) * n.keys + s;
          const PhiloxBlock block = kernels::random_block(site, static_cast<std::uint32_t>(i / 4),
                                                          static_cast<std::uint32_t>(site.first_sample + b));
          const double kept = n.p == 0 ? 1 : block.word[i % 4] < n.p * 0x1p32 ? 0 : 1 / (1 - n.p);
          const double chance = std::exp(score[index(s)] - largest) / total;
          const double change = kept * dot(dy, row, v, key) - delta, gradient = scale * chance * change;
          const double r = std::max(std::exp(off[index(s)]) / less - 1, 1 - std::exp(-off[index(s)]) / more);
          const double chance_off = chance * kept * ((1 + r) * factor - 1);
          const double change_most = std::abs(change) + kept * both * magnitude(dy, row, v, key);
          const double gradient_off = std::abs(scale) * chance * (1 + r) * factor * change_most - std::abs(gradient);
          for (std::size_t d = 0; d < index(n.width); ++d) {
            all.out.add(row + d, chance * kept * v[key + d], chance_off * std::abs(v[key + d]));
            all.dv.add(key + d, chance * kept * dy[row + d], chance_off * std::abs(dy[row + d]));
            all.dq.add(row + d, gradient * k[key + d], gradient_off * std::abs(k[key + d]));
            all.dk.add(key + d, gradient * q[row + d], gradient_off * std::abs(q[row + d]));
          }
        }
      }
    }
  }
  return all;
}

/// The largest error relative to the allowed one: at most 1.
inline double worst(const Bounded& expected, const Tensor& got, DType dtype) {
  const double unit = Units(dtype).result, rest = 3e-6;
  const Values values = to_host<double>(got);
  REQUIRE(values.size() == expected.value.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double allowed = (expected.allowed[i] + unit * std::abs(expected.value[i])) * 1.01 + rest;
    const double error = std::abs(values[i] - expected.value[i]) / allowed;
    if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
  }
  return worst;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return to_host<double>(a) == to_host<double>(b);  // no NaN here
}

inline Tensor noise(const Shape& shape, DType dtype, unsigned number) {
  return to_device(to_dtype(normal(shape, 0, 1, DType::f32, cpu, {7, 0, 0, number}), dtype), cuda());
}

struct Run {
  Tensor q, k, v, dy, out, lse;
  ops::Gradients gradients;
};

// `view` lays out each operand.
inline Run run(const Sizes& n, DType dtype, double scale, const std::function<Tensor(const Tensor&)>& view) {
  const Shape queries{n.batch, n.queries, n.heads, n.width}, keys{n.batch, n.keys, n.heads / n.group, n.width};
  Run r{noise(queries, dtype, 1), noise(keys, dtype, 2), noise(keys, dtype, 3), noise(queries, dtype, 4), {}, {}, {}};
  const ops::ScaledDotProductAttention op{n.is_causal, scale, n.p, site, n.window};
  ops::ScaledDotProductAttention::Saved saved;
  const Tensor mask = n.mask.defined() ? to_device(n.mask, cuda()) : Tensor();
  r.out = op.forward(view(r.q), view(r.k), view(r.v), mask, ops::Needs(7), saved);
  r.lse = saved.lse;
  r.gradients = op.backward(std::move(saved), view(r.dy), ops::Needs(7));
  return r;
}

/// Checks values against their bounds; the scale is `times` / sqrt(D).
inline void check(const Sizes& n, DType dtype, double times = 1.5) {
  INFO(describe(n, dtype) << ", scale times " << times);
  const double scale = times / std::sqrt(static_cast<double>(n.width));
  const auto stack = memory::make_resource(cuda(), {.arena = {.poison = true}});
  const ResourceScope scope(stack.top);
  Run r = run(n, dtype, scale, [](const Tensor& x) { return x; });
  const Reference expected = reference(n, dtype, scale, to_host<double>(r.q), to_host<double>(r.k),
                                       to_host<double>(r.v), to_host<double>(r.dy), to_host<double>(r.out));
  CHECK(worst(expected.out, r.out, dtype) <= 1);
  CHECK(worst(expected.dq, r.gradients[0], dtype) <= 1);
  CHECK(worst(expected.dk, r.gradients[1], dtype) <= 1);
  CHECK(worst(expected.dv, r.gradients[2], dtype) <= 1);
  const Values lse = to_host<double>(r.lse);
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const double value = expected.lse.value[i], rest = 1e-5 * (1 + std::abs(value));
    REQUIRE(std::abs(lse[i] - value) <= expected.lse.allowed[i] + rest);
  }
}

inline bool has_kernels(DType dtype, std::int64_t width) {
  return width <= kernels::widest_tensor_core_attention(dtype);
}

inline constexpr DType dtypes[] = {DType::bf16, DType::f16, DType::f32};

}  // namespace thimble_test::attention_definition
