// Attention on tensor cores (f16, bf16, and f32 in TF32) against its definition in double. On a GPU where there is one;
// in a build without CUDA on the device that tests/emulated makes of the host.
//
// Tolerances are bounds, element by element. A rounding to n significant bits moves a value by at most u = 2^-n of it
// (f16 and TF32 have 11, bf16 8), in TF32 each operand in memory too: w = (1 + u)^2 - 1 for a product of two, and w = 0
// for the products of f16 and bf16, which are exact. With them
// - a score is off by at most e_s = w scale sum_d |q_d k_d|, so a probability P_s is multiplied by exp(d_s) / sum_r P_r
//   exp(d_r) with |d_s| <= e_s: off by at most r_s = max(exp(e_s) / sum_r P_r exp(-e_r) - 1,
//   1 - exp(-e_s) / sum_r P_r exp(e_r)) of itself, and lse by the logarithm of one of those sums;
// - dP = dout . v is off by at most w sum_d |dout_d v_d|, and dS = P (dP - delta) by that and by r (delta is in f32);
// - a term P v, P dout, dS k or dS q is off by what its first factor is, and by its rounding: u, and in TF32 another u;
// - results are rounded to f16 or bf16, and are f32 else. All that is in f32 is far below: `rest`.

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/launch/tf32.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace {

using Values = std::vector<double>;

constexpr RandomSite site{11, 3, 5, 0x5eed5eedu};

struct Sizes {
  std::int64_t batch, queries, keys, heads, width;
  bool is_causal;
  double p = 0;
  std::int64_t group = 1;
  std::int64_t window = 0;
};

std::string describe(const Sizes& n, DType dtype) {
  return std::string(to_string(dtype)) + " B " + std::to_string(n.batch) + " T " + std::to_string(n.queries) + " S " +
         std::to_string(n.keys) + " H " + std::to_string(n.heads) + " by " + std::to_string(n.group) + " D " +
         std::to_string(n.width) + (n.is_causal ? " causal" : "") + " p " + std::to_string(n.p) + " window " +
         std::to_string(n.window);
}

/// Values, and how far off they may be.
struct Bounded {
  Values value, allowed;
  explicit Bounded(std::size_t count = 0) : value(count), allowed(count) {}
  void add(std::size_t i, double term, double off) { value[i] += term, allowed[i] += off; }
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

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The definition. `given` is the result that backward reads.
Reference reference(const Sizes& n, DType dtype, double scale, const Values& q, const Values& k, const Values& v,
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
  Values score(index(n.keys)), off(index(n.keys));
  for (std::int64_t b = 0; b < n.batch; ++b) {
    for (std::int64_t h = 0; h < n.heads; ++h) {
      for (std::int64_t t = 0; t < n.queries; ++t) {
        const std::size_t row = at(n.queries, b, t, h);
        const std::int64_t own = t + n.keys - n.queries, window = n.window > 0 ? n.window : n.keys + n.queries;
        const std::int64_t first = std::max<std::int64_t>(0, own - window + 1);
        const std::int64_t seen = std::min({n.is_causal ? own + 1 : n.keys, own + window, n.keys});
        double largest = -INFINITY, total = 0;
        for (std::int64_t s = first; s < seen; ++s) {
          score[index(s)] = scale * dot(q, row, k, key_at(b, s, h));
          off[index(s)] = both * scale * magnitude(q, row, k, key_at(b, s, h));
          largest = std::max(largest, score[index(s)]);
        }
        for (std::int64_t s = first; s < seen; ++s) total += std::exp(score[index(s)] - largest);
        double less = 0, more = 0;
        for (std::int64_t s = first; s < seen; ++s) {
          const double chance = std::exp(score[index(s)] - largest) / total;
          less += chance * std::exp(-off[index(s)]), more += chance * std::exp(off[index(s)]);
        }
        all.lse.value.push_back(largest + std::log(total));
        all.lse.allowed.push_back(std::max(std::log(more), -std::log(less)));
        const double delta = dot(given, row, dy, row);
        for (std::int64_t s = first; s < seen; ++s) {
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
          const double gradient_off = scale * chance * (1 + r) * factor * change_most - std::abs(gradient);
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

/// The largest error in units of what is allowed: 1 is the bound.
double worst(const Bounded& expected, const Tensor& got, DType dtype) {
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

bool same_bits(const Tensor& a, const Tensor& b) {
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
  const Shape queries{n.batch, n.queries, n.heads, n.width}, keys{n.batch, n.keys, n.heads / n.group, n.width};
  Run r{noise(queries, dtype, 1), noise(keys, dtype, 2), noise(keys, dtype, 3), noise(queries, dtype, 4), {}, {}, {}};
  const ops::ScaledDotProductAttention op{n.is_causal, scale, n.p, site, n.window};
  ops::ScaledDotProductAttention::Saved saved;
  r.out = op.forward(view(r.q), view(r.k), view(r.v), {}, Needs(7), saved);
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

bool has_kernels(DType dtype, std::int64_t width) { return width <= kernels::widest_tensor_core_attention(dtype); }

constexpr DType dtypes[] = {DType::bf16, DType::f16, DType::f32};

}  // namespace

TEST_CASE("attention on tensor cores: the definition's values, for every width of a tile", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  for (const DType dtype : dtypes) {
    for (const std::int64_t width : {16, 32, 64, 80, 96, 128, 144, 256}) {
      if (!has_kernels(dtype, width)) continue;
      check({1, 70, 70, 2, width, true}, dtype);
      check({1, 17, 37, 1, width, false, 0.25}, dtype);
    }
  }
}

TEST_CASE("attention on tensor cores: lengths around the tiles, masks and dropout", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Sizes cases[] = {
      {1, 1, 1, 1, 16, true},
      {1, 1, 150, 1, 32, true},          // one query, as in generation
      {2, 64, 64, 2, 64, true},          // whole tiles
      {1, 129, 129, 1, 64, true, 0.3},   // one past two tiles
      {1, 33, 161, 2, 64, true, 0.1},    // the last queries of more keys, whose mask's rows begin between random words
      {1, 97, 30, 1, 80, false, 0.5},    // more queries than keys
      {2, 40, 132, 2, 128, false, 0.2},  // a mask's rows that lanes share
      {1, 72, 72, 1, 256, true, 0.2},
      {3, 20, 24, 1, 48, true, 0.4},
      {2, 70, 70, 4, 64, true, 0, 2},  // heads that share keys and values
      {1, 70, 129, 6, 32, true, 0.2, 3},
      {1, 33, 40, 2, 144, false, 0, 2},
      {1, 150, 150, 1, 32, true, 0, 1, 1},  // windows: of one key, within a tile, over several, on both sides
      {2, 200, 200, 2, 64, true, 0.2, 2, 20},
      {1, 260, 260, 1, 64, true, 0, 1, 150},
      {1, 70, 201, 1, 32, true, 0, 1, 90},
      {1, 150, 150, 1, 80, false, 0.1, 1, 33},
      {1, 150, 210, 1, 32, false, 0, 1, 70},
      {1, 100, 100, 1, 144, true, 0, 1, 40},
  };
  const Tf32Scope allowed(true);
  for (const DType dtype : dtypes) {
    for (const Sizes& n : cases) {
      if (has_kernels(dtype, n.width)) check(n, dtype);
    }
    // Every place of the mask's edge in a block.
    for (std::int64_t more = 0; more <= 33; ++more) check({1, 34, 34 + more, 1, 32, true}, dtype);
    for (std::int64_t window = 1; window <= 33; ++window) check({1, 100, 100, 1, 32, true, 0, 1, window}, dtype);
  }
}

TEST_CASE("attention on tensor cores: the same bits every time, in every layout", "[attention][cuda]") {
  if (!has_cuda()) return;
  const auto in_place = [](const Tensor& x) { return x; };
  // Rows of an odd number of elements, the first of them at an odd address: nothing can be read by chunks.
  const auto odd = [](const Tensor& x) {
    const Tensor wide = zeros({x.size(0), x.size(1), x.size(2), x.size(3) + 3}, x.dtype(), x.device());
    const Tensor part = view::slice(wide, 3, 1, 1 + x.size(3));
    copy_into(part, x);
    return part;
  };
  // Heads before rows.
  const auto turned = [](const Tensor& x) {
    return view::permute(contiguous(view::permute(x, {0, 2, 1, 3})), {0, 2, 1, 3});
  };
  const Tf32Scope allowed(true);
  for (const auto& [dtype, width] :
       {std::pair(DType::bf16, 48), std::pair(DType::bf16, 80), std::pair(DType::bf16, 144), std::pair(DType::f32, 48),
        std::pair(DType::f32, 80), std::pair(DType::f32, 112)}) {
    const Sizes n{2, 70, 77, 2, width, true, 0.2};
    Run first = run(n, dtype, 0.2, in_place);
    for (const auto& view : {std::function<Tensor(const Tensor&)>(in_place), std::function<Tensor(const Tensor&)>(odd),
                             std::function<Tensor(const Tensor&)>(turned)}) {
      Run other = run(n, dtype, 0.2, view);
      CHECK(same_bits(other.out, first.out));
      CHECK(same_bits(other.lse, first.lse));
      for (int i = 0; i < 3; ++i) CHECK(same_bits(other.gradients[i], first.gradients[i]));
    }
  }
}

TEST_CASE("attention on tensor cores: a packed gradient where its operand lay", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  for (const auto& [dtype, width] :
       {std::pair(DType::bf16, 32), std::pair(DType::bf16, 128), std::pair(DType::bf16, 160), std::pair(DType::f32, 64),
        std::pair(DType::f32, 128)}) {
    const Tensor qkv = noise({2, 70, 3 * 2 * width}, dtype, 1), dy = noise({2, 70, 2 * width}, dtype, 2);
    ops::Attention op;
    op.heads = 2, op.is_causal = true, op.p = 0.1, op.site = site;
    ops::Attention::Saved saved;
    op.forward(qkv, {}, Needs(1), saved);
    const Tensor expected = op.backward(saved, clone(dy), Needs(1))[0];
    CHECK(expected.storage() != qkv.storage());
    saved.qkv = clone(qkv);
    const auto* const storage = saved.qkv.storage().get();
    const Tensor in_place = op.backward(std::move(saved), dy, Needs(1))[0];
    CHECK(in_place.storage().get() == storage);
    CHECK(same_bits(in_place, expected));
  }
}

TEST_CASE("attention on tensor cores: results that are not wanted are not written", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const Sizes n{1, 40, 70, 2, 32, true};
  Run whole = run(n, dtype, 0.3, [](const Tensor& x) { return x; });
  const ops::ScaledDotProductAttention op{true, 0.3, 0, site};
  ops::ScaledDotProductAttention::Saved saved;
  CHECK(same_bits(op.forward(whole.q, whole.k, whole.v, {}, Needs(0), saved), whole.out));  // no lse
  CHECK(!saved.lse.defined());
  for (int wanted = 0; wanted < 3; ++wanted) {
    saved = {whole.q, whole.k, whole.v, {}, whole.out, whole.lse};
    Gradients alone = op.backward(std::move(saved), whole.dy, Needs(1u << wanted));
    for (int i = 0; i < 3; ++i) CHECK(alone[i].defined() == (i == wanted));
    CHECK(same_bits(alone[wanted], whole.gradients[wanted]));
  }
  // The logarithms alone.
  const Tensor lse = zeros(whole.lse.shape(), DType::f32, cuda());
  launch(cuda(), [&](const Addresses& at) {
    kernels::AttentionArgs args;
    args.dtype = dtype, args.allows_tf32 = true, args.batch = 1, args.heads = 2, args.queries = 40, args.keys = 70,
    args.width = 32;
    args.is_causal = true, args.scale = 0.3;
    args.q = {at(whole.q), 40 * 64, 64, 32}, args.k = {at(whole.k), 70 * 64, 64, 32};
    args.v = {at(whole.v), 70 * 64, 64, 32}, args.lse = at(lse);
    kernels::attention_kernels(cuda()).forward(args, nullptr, 1);
  });
  CHECK(same_bits(lse, whole.lse));
}

TEST_CASE("attention on tensor cores: NaN and infinite scores reach the result", "[attention][cuda]") {
  if (!has_cuda()) return;
  const std::int64_t queries = 40, keys = 70, width = 16;
  const Tf32Scope allowed(true);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    const Tensor q = noise({1, queries, 1, width}, dtype, 1), k = noise({1, keys, 1, width}, dtype, 2);
    fill(view::slice(view::slice(k, 1, 50, 51), 3, 0, 1), bad);
    AttentionOptions options;
    options.causal = true;
    const Values out = to_host<double>(attention(q, k, noise({1, keys, 1, width}, dtype, 3), options));
    const Values query = to_host<double>(q);
    for (std::size_t t = 0; t < index(queries); ++t) {
      const bool is_seen = t + 30 >= 50 && !(std::isinf(bad) && query[16 * t] < 0);  // -infinity counts for nothing
      for (std::size_t d = 0; d < index(width); ++d) REQUIRE(std::isnan(out[16 * t + d]) == is_seen);
    }
  }
}

TEST_CASE("attention on tensor cores: which kernel it is", "[attention][cuda]") {
  kernels::AttentionProblem p;
  p.batch = 2, p.heads = 3, p.queries = 5, p.keys = 7;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t width : {1, 8, 15, 16, 20, 48, 64, 128, 144, 250, 256, 272}) {
      for (const bool allows_tf32 : {false, true}) {
        INFO(to_string(dtype) << " " << width << (allows_tf32 ? " TF32" : ""));
        p.dtype = dtype, p.width = width, p.allows_tf32 = allows_tf32;
        const bool is_half = dtype == DType::f16 || dtype == DType::bf16, is_full = dtype == DType::f32;
        const bool is_fitting = width % 16 == 0 && ((is_half && width <= 256) || (is_full && width <= 128));
        CHECK(kernels::is_tensor_core_attention(p) == (is_fitting && (is_half || allows_tf32)));
        const std::size_t elements = 2 * 3 * 5 * index(width), rows = 2 * 3 * 5;
        CHECK(kernels::cuda_attention_backward_bytes(p, 1) ==
              (is_fitting ? (4 * rows + 63) / 64 * 64 : 0) +
                  elements * size_of(dtype) * (is_half && !is_fitting ? 2 : 1));
      }
    }
  }
  if (!has_cuda()) return;
  // Two keys, with the probabilities 1 and c over their sum. Values -(c rounded) and 1: the sum is zero when c was
  // rounded on its way, and only then.
  const Tf32Scope allowed(true);
  for (const DType dtype : dtypes) {
    const double rounded_c = dtype == DType::f32 ? 0x1.368p-1 : std::exp(-0.5);  // c to 11 bits
    for (const std::int64_t width : {16, 64, 96, 144, 200, 256, 20}) {
      INFO(to_string(dtype) << " " << width);
      const Tensor q = full({1, 1, 1, width}, 0, dtype, cuda()), k = full({1, 2, 1, width}, 0, dtype, cuda());
      const Tensor v = full({1, 2, 1, width}, 1, dtype, cuda());
      fill(view::slice(q, 3, 0, 1), 1);
      fill(view::slice(view::slice(k, 1, 1, 2), 3, 0, 1), -0.5);
      fill(view::slice(v, 1, 0, 1), -rounded_c);
      AttentionOptions options;
      options.causal = false, options.scale = 1;
      const bool is_rounded = width % 16 == 0 && has_kernels(dtype, width);
      for (const double y : to_host<double>(attention(q, k, v, options))) CHECK((y == 0) == is_rounded);
    }
  }
}
