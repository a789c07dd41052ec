// Attention on tensor cores (f16, bf16) against its definition in double. On a GPU where there is one; in a build without
// CUDA on the device that tests/emulated makes of the host.
//
// Tolerances are bounds, element by element: a probability and a score's gradient are rounded to the operands' type, so
// each of their products with a value may be off by `unit` of itself, and the result is rounded once more. The rest, in
// f32, is far below.

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/random_bits.h>
#include <thimble/core/launch.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/random.h>
#include <thimble/core/view.h>
#include <thimble/memory/stack.h>

#include "catch.h"
#include "operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace {

using Values = std::vector<double>;

constexpr RandomSite site{11, 3, 5, 0x5eed5eedu};

struct Sizes {
  std::int64_t batch, queries, keys, heads, width;
  bool is_causal;
  double p = 0;
};

std::string describe(const Sizes& n, DType dtype) {
  return std::string(to_string(dtype)) + " B " + std::to_string(n.batch) + " T " + std::to_string(n.queries) + " S " +
         std::to_string(n.keys) + " H " + std::to_string(n.heads) + " D " + std::to_string(n.width) +
         (n.is_causal ? " causal" : "") + " p " + std::to_string(n.p);
}

/// A value, and the sum of the magnitudes that it was summed from.
struct Bounded {
  Values value, magnitude;
  explicit Bounded(std::size_t count) : value(count), magnitude(count) {}
  void add(std::size_t i, double term) { value[i] += term, magnitude[i] += std::abs(term); }
};

struct Reference {
  Bounded out, dq, dk, dv;
  Values lse;
};

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The definition. `given` is the result that backward reads.
Reference reference(const Sizes& n, double scale, const Values& q, const Values& k, const Values& v, const Values& dy,
                    const Values& given) {
  Reference all{Bounded(q.size()), Bounded(q.size()), Bounded(k.size()), Bounded(v.size()), {}};
  const auto at = [&](std::int64_t length, std::int64_t b, std::int64_t t, std::int64_t h) {
    return index(((b * length + t) * n.heads + h) * n.width);
  };
  const auto dot = [&](const Values& x, std::size_t i, const Values& y, std::size_t j) {
    double sum = 0;
    for (std::size_t d = 0; d < index(n.width); ++d) sum += x[i + d] * y[j + d];
    return sum;
  };
  Values score(index(n.keys));
  for (std::int64_t b = 0; b < n.batch; ++b) {
    for (std::int64_t h = 0; h < n.heads; ++h) {
      for (std::int64_t t = 0; t < n.queries; ++t) {
        const std::size_t row = at(n.queries, b, t, h);
        const std::int64_t seen = n.is_causal ? t + 1 + n.keys - n.queries : n.keys;
        double largest = -INFINITY, total = 0;
        for (std::int64_t s = 0; s < seen; ++s) {
          score[index(s)] = scale * dot(q, row, k, at(n.keys, b, s, h));
          largest = std::max(largest, score[index(s)]);
        }
        for (std::int64_t s = 0; s < seen; ++s) total += std::exp(score[index(s)] - largest);
        all.lse.push_back(largest + std::log(total));
        const double delta = dot(given, row, dy, row);
        for (std::int64_t s = 0; s < seen; ++s) {
          const std::size_t key = at(n.keys, b, s, h);
          const std::int64_t i = (h * n.queries + t) * n.keys + s;
          const PhiloxBlock block = kernels::random_block(site, static_cast<std::uint32_t>(i / 4),
                                                          static_cast<std::uint32_t>(site.first_sample + b));
          const double kept = n.p == 0 ? 1 : block.word[i % 4] < n.p * 0x1p32 ? 0 : 1 / (1 - n.p);
          const double chance = std::exp(score[index(s)] - largest) / total;
          const double gradient = scale * chance * (kept * dot(dy, row, v, key) - delta);
          for (std::size_t d = 0; d < index(n.width); ++d) {
            all.out.add(row + d, chance * kept * v[key + d]);
            all.dv.add(key + d, chance * kept * dy[row + d]);
            all.dq.add(row + d, gradient * k[key + d]);
            all.dk.add(key + d, gradient * q[row + d]);
          }
        }
      }
    }
  }
  return all;
}

/// The largest error in units of what is allowed: 1 is the bound.
double worst(const Bounded& expected, const Tensor& got, DType dtype) {
  const double unit = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  const Values values = to_host<double>(got);
  REQUIRE(values.size() == expected.value.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double allowed = unit * (expected.magnitude[i] + std::abs(expected.value[i])) * 1.01 + 3e-6;
    const double error = std::abs(values[i] - expected.value[i]) / allowed;
    if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
  }
  return worst;
}

[[maybe_unused]] bool same_bits(const Tensor& a, const Tensor& b) {
  return to_host<double>(a) == to_host<double>(b);  // no NaN here
}

Tensor noise(const Shape& shape, DType dtype, unsigned number) {
  return to_device(to_dtype(normal(shape, 0, 1, DType::f32, cpu, {7, 0, 0, number}), dtype), cuda());
}

struct Run {
  Tensor q, k, v, dy, out, lse;
  Gradients gradients;
};

// `view`: how each operand is laid out.
Run run(const Sizes& n, DType dtype, double scale, const std::function<Tensor(const Tensor&)>& view) {
  const Shape queries{n.batch, n.queries, n.heads, n.width}, keys{n.batch, n.keys, n.heads, n.width};
  Run r{noise(queries, dtype, 1), noise(keys, dtype, 2), noise(keys, dtype, 3), noise(queries, dtype, 4), {}, {}, {}};
  const ops::ScaledDotProductAttention op{n.is_causal, scale, n.p, site};
  ops::ScaledDotProductAttention::Saved saved;
  r.out = op.forward(view(r.q), view(r.k), view(r.v), Needs(7), saved);
  r.lse = saved.lse;
  r.gradients = op.backward(std::move(saved), view(r.dy), Needs(7));
  return r;
}

void check(const Sizes& n, DType dtype) {
  INFO(describe(n, dtype));
  const double scale = 1.5 / std::sqrt(static_cast<double>(n.width));
  const auto stack = memory::make_resource(cuda(), {.arena = {.poison = true}});
  const ResourceScope scope(stack.top);
  Run r = run(n, dtype, scale, [](const Tensor& x) { return x; });
  const Reference expected = reference(n, scale, to_host<double>(r.q), to_host<double>(r.k), to_host<double>(r.v),
                                       to_host<double>(r.dy), to_host<double>(r.out));
  UNSCOPED_INFO("worst " << worst(expected.out, r.out, dtype) << " " << worst(expected.dq, r.gradients[0], dtype) << " " << worst(expected.dk, r.gradients[1], dtype) << " " << worst(expected.dv, r.gradients[2], dtype));
  CHECK(worst(expected.out, r.out, dtype) <= 1);
  CHECK(worst(expected.dq, r.gradients[0], dtype) <= 1);
  CHECK(worst(expected.dk, r.gradients[1], dtype) <= 1);
  CHECK(worst(expected.dv, r.gradients[2], dtype) <= 1);
  const Values lse = to_host<double>(r.lse);
  for (std::size_t i = 0; i < lse.size(); ++i) REQUIRE(lse[i] == Approx(expected.lse[i]).epsilon(1e-5).margin(1e-5));
}

}  // namespace

TEST_CASE("attention on tensor cores: the definition's values, for every width of a tile", "[attention][cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t width : {16, 32, 64, 80, 96, 128, 144, 256}) {
      check({1, 70, 70, 2, width, true}, dtype);
      check({1, 17, 37, 1, width, false, 0.25}, dtype);
    }
  }
}
