// Layer, RMS, group and batch norm: rows of the operator table, and what only they do (running statistics, fused
// tails).

#include <cmath>
#include <cstring>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/copy.h>
#include <thimble/core/kernels/isa.h>
#include <thimble/core/transaction.h>
#include <thimble/memory/stack.h>

#include "catch.h"
#include "operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using NormValues = std::vector<double>;
using NormArrays = std::vector<HostArray>;

double weight_of(const NormArrays& in, std::size_t which, std::int64_t i) {
  return which < in.size() ? in[which][i] : which == 1 ? 1 : 0;
}

// (x - mean) / sqrt(variance + epsilon) weight + bias; `statistic(i)` says which mean element i belongs to,
// `parameter(i)` which weight.
template <class S, class P>
NormValues normalized(const NormArrays& in, S statistic, P parameter, bool is_centred, double epsilon) {
  const NormValues& x = in[0].values;
  std::vector<double> count, mean, variance;
  const auto n = static_cast<std::int64_t>(x.size());
  const auto at = [](std::vector<double>& v, std::int64_t i) -> double& {
    if (static_cast<std::size_t>(i) >= v.size()) v.resize(static_cast<std::size_t>(i) + 1);
    return v[static_cast<std::size_t>(i)];
  };
  for (std::int64_t i = 0; i < n; ++i) {
    at(count, statistic(i)) += 1;
    at(mean, statistic(i)) += in[0][i];
    at(variance, statistic(i)) += 0;
  }
  for (std::size_t s = 0; s < mean.size(); ++s) mean[s] = is_centred ? mean[s] / count[s] : 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = in[0][i] - at(mean, statistic(i));
    at(variance, statistic(i)) += d * d / at(count, statistic(i));
  }
  NormValues y;
  for (std::int64_t i = 0; i < n; ++i) {
    const double xhat = (in[0][i] - at(mean, statistic(i))) / std::sqrt(at(variance, statistic(i)) + epsilon);
    y.push_back(xhat * weight_of(in, 1, parameter(i)) + weight_of(in, 2, parameter(i)));
  }
  return y;
}

auto row_reference(std::int64_t length, bool is_centred, double epsilon) {
  return [=](const NormArrays& in) {
    return normalized(
        in, [=](std::int64_t i) { return i / length; }, [=](std::int64_t i) { return i % length; }, is_centred,
        epsilon);
  };
}

auto group_reference(std::int64_t rows, std::int64_t channels, std::int64_t groups) {
  return [=](const NormArrays& in) {
    const auto statistic = [=](std::int64_t i) {
      return i / (rows * channels) * groups + i % channels / (channels / groups);
    };
    return normalized(
        in, statistic, [=](std::int64_t i) { return i % channels; }, true, 1e-5);
  };
}

// Batch norm of (rows, channels) with operands x, [residual,] weight, bias.
auto batch_reference(std::int64_t channels, bool has_residual, bool has_relu) {
  return [=](const NormArrays& in) {
    NormArrays plain = in;
    if (has_residual) plain.erase(plain.begin() + 1);
    const auto channel = [=](std::int64_t i) { return i % channels; };
    NormValues y = normalized(plain, channel, channel, true, 1e-5);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (has_residual) y[i] += in[1].values[i];
      if (has_relu) y[i] = std::max(y[i], 0.0);
    }
    return y;
  };
}

// The same bits, shape and dtype.
bool is_same(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor da = contiguous(a.detach()), db = contiguous(b.detach());
  return std::memcmp(Pin(da).data(), Pin(db).data(), da.bytes()) == 0;
}

// Values spread over [low, high] without a pattern.
Tensor spread(const Shape& shape, DType dtype, double low, double high, double start) {
  std::vector<double> values(static_cast<std::size_t>(shape.elements()));
  for (double& v : values) {
    start = std::fmod(start + 0.6180339887498949, 1.0);
    v = low + (high - low) * start;
  }
  return to_dtype(from_host(values, shape), dtype);
}

const std::string too_large = "larger than central differences are worth; the same code is checked by the smaller rows";

}  // namespace

TEST_CASE("ops_norm: layer norm") {
  const auto call = [](auto in) { return layer_norm(in[0], in[1], in[2]); };
  const std::vector<OperatorCase> rows{
      {"layer_norm",
       {{{3, 4, 10}}, {{10}}, {{10}}},
       call,
       row_reference(10, true, 1e-5),
       [](auto e, auto s) { return (120 + 10) * e + 2 * 12 * s; }},
      {"layer_norm without weight and bias",
       {{{5, 6}}},
       [](auto in) { return layer_norm(in[0]); },
       row_reference(6, true, 1e-5),
       [](auto e, auto s) { return 30 * e + 2 * 5 * s; }},
      {"layer_norm of two axes, without bias",
       {{{4, 3, 5}}, {{3, 5}}},
       [](auto in) { return layer_norm(in[0], in[1], {}, 1e-3, 2); },
       row_reference(15, true, 1e-3),
       [](auto e, auto s) { return (60 + 15) * e + 2 * 4 * s; }},
      {"layer_norm with bias alone",
       {{{4, 7}}, {{7}}},
       [](auto in) { return layer_norm(in[0], {}, in[1]); },
       [](const NormArrays& in) {
         const HostArray ones{{7}, NormValues(7, 1.0)};
         return row_reference(7, true, 1e-5)({in[0], ones, in[1]});
       },
       [](auto e, auto s) { return 28 * e + 2 * 4 * s; }},
      {"layer_norm of more rows than a block", {{{260, 5}}, {{5}}, {{5}}}, call, row_reference(5, true, 1e-5)},
      {"layer_norm of rows longer than the buffer",
       {{{1, 4100}}, constant({4100}), constant({4100})},
       call,
       row_reference(4100, true, 1e-5)},
      {"layer_norm of a transposed tensor",
       {{{6, 5}}, {{6}}, {{6}}},
       [](auto in) { return layer_norm(transpose(in[0]), in[1], in[2]); },
       {},
       [](auto e, auto s) { return (30 + 6) * e + 2 * 5 * s; }},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops_norm: RMS norm") {
  const std::vector<OperatorCase> rows{
      {"rms_norm",
       {{{3, 4, 10}}, {{10}}},
       [](auto in) { return rms_norm(in[0], in[1]); },
       row_reference(10, false, 1e-6),
       [](auto e, auto s) { return (120 + 10) * e + 12 * s; }},
      {"rms_norm without weight",
       {{{3, 70}}},
       [](auto in) { return rms_norm(in[0], {}, 1e-2); },
       row_reference(70, false, 1e-2),
       [](auto e, auto s) { return 210 * e + 3 * s; }},
      {"rms_norm of rows longer than the buffer",
       {{{1, 4100}}, constant({4100})},
       [](auto in) { return rms_norm(in[0], in[1]); },
       row_reference(4100, false, 1e-6)},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops_norm: group norm") {
  const std::vector<OperatorCase> rows{
      {"group_norm",
       {{{3, 2, 5, 8}}, {{8}}, {{8}}},
       [](auto in) { return group_norm(in[0], 4, in[1], in[2]); },
       group_reference(10, 8, 4),
       [](auto e, auto s) { return (240 + 8) * e + 2 * 12 * s; }},
      {"group_norm of one group (layer norm of images)",
       {{{2, 3, 3, 4}}, {{4}}, {{4}}},
       [](auto in) { return group_norm(in[0], 1, in[1], in[2]); },
       group_reference(9, 4, 1),
       [](auto e, auto s) { return (72 + 4) * e + 2 * 2 * s; }},
      {"group_norm of a channel each (instance norm), without weight",
       {{{2, 7, 5}}},
       [](auto in) { return group_norm(in[0], 5); },
       group_reference(7, 5, 5),
       [](auto e, auto s) { return 70 * e + 2 * 10 * s; }},
      {"group_norm of several stretches",
       {{{2, 2060, 6}}, {{6}}, {{6}}},
       [](auto in) { return group_norm(in[0], 2, in[1], in[2]); },
       group_reference(2060, 6, 2),
       {},
       1,
       true,
       true,
       false,
       too_large},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops_norm: batch norm in training") {
  const auto plain = [](auto in) { return batch_norm(in[0], in[1], in[2], {}, {}); };
  const auto relu_tail = [](auto in) { return batch_norm_relu(in[0], in[1], in[2], {}, {}); };
  const auto add_relu_tail = [](auto in) { return batch_norm_add_relu(in[0], in[1], in[2], in[3], {}, {}); };
  const std::vector<OperatorCase> rows{
      {"batch_norm",
       {{{3, 2, 2, 5}}, {{5}}, {{5}}},
       plain,
       batch_reference(5, false, false),
       [](auto e, auto s) { return (60 + 5) * e + 2 * 5 * s; }},
      {"batch_norm without weight and bias",
       {{{9, 3}}},
       [](auto in) { return batch_norm(in[0], {}, {}, {}, {}); },
       batch_reference(3, false, false),
       [](auto e, auto s) { return 27 * e + 2 * 3 * s; }},
      {"batch_norm_relu",
       {{{3, 2, 2, 5}}, {{5}, 0.5, 1.5}, {{5}, -0.3, 0.4}},
       relu_tail,
       batch_reference(5, false, true),
       [](auto e, auto s) { return (60 + 5 + 5) * e + 2 * 5 * s; }},
      {"batch_norm_add_relu",
       {{{3, 3, 5}}, {{3, 3, 5}}, {{5}, 0.5, 1.5}, {{5}, -0.3, 0.4}},
       add_relu_tail,
       batch_reference(5, true, true),
       [](auto e, auto s) { return (45 + 5) * e + 2 * 5 * s + 6; }},
      {"batch_norm of several stretches", {{{2060, 1}}, {{1}}, {{1}}}, plain, batch_reference(1, false, false)},
      {"batch_norm of more channels than a tile",
       {{{130, 300}}, {{300}}, {{300}}},
       plain,
       batch_reference(300, false, false),
       {},
       1,
       true,
       true,
       false,
       too_large},
      {"batch_norm_relu of several stretches",
       {{{2060, 21}}, {{21}}, {{21}}},
       relu_tail,
       batch_reference(21, false, true),
       {},
       1,
       true,
       true,
       false,
       too_large},
      {"batch_norm_add_relu of several stretches and tiles",
       {{{2060, 259}}, {{2060, 259}}, {{259}}, {{259}}},
       add_relu_tail,
       batch_reference(259, true, true),
       [](auto e, auto s) { return (2060 * 259 + 259) * e + 2 * 259 * s + (2060 * 259 + 7) / 8; },
       1,
       true,
       true,
       false,
       too_large},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops_norm: batch norm in evaluation") {
  BatchNormOptions evaluation;
  evaluation.training = false;
  // Operands: x, [residual,] weight, bias, running mean, running variance.
  const auto reference = [](bool has_residual, bool has_relu) {
    return [=](const NormArrays& in) {
      NormValues y;
      const std::size_t w = has_residual ? 2 : 1;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(in[0].values.size()); ++i) {
        const std::int64_t c = i % 5;
        double v = (in[0][i] - in[w + 2][c]) / std::sqrt(in[w + 3][c] + 1e-5) * in[w][c] + in[w + 1][c];
        if (has_residual) v += in[1][i];
        y.push_back(has_relu ? std::max(v, 0.0) : v);
      }
      return y;
    };
  };
  const Operand x{{4, 3, 5}}, weight{{5}, 0.5, 1.5}, bias{{5}, -0.3, 0.4}, mean = constant({5}),
                                                                           var = constant({5}, 0.5, 2);
  const std::vector<OperatorCase> rows{
      {"batch_norm_eval",
       {x, weight, bias, mean, var},
       [=](auto in) { return batch_norm(in[0], in[1], in[2], in[3], in[4], evaluation); },
       reference(false, false),
       [](auto e, auto) { return (60 + 5 + 5 + 5) * e; }},
      {"batch_norm_relu_eval",
       {x, weight, bias, mean, var},
       [=](auto in) { return batch_norm_relu(in[0], in[1], in[2], in[3], in[4], evaluation); },
       reference(false, true),
       [](auto e, auto) { return (60 + 5 + 5 + 5 + 5) * e; }},
      {"batch_norm_add_relu_eval",
       {x, {{4, 3, 5}}, weight, bias, mean, var},
       [=](auto in) { return batch_norm_add_relu(in[0], in[1], in[2], in[3], in[4], in[5], evaluation); },
       reference(true, true),
       [](auto e, auto) { return (60 + 5 + 5 + 5) * e + 8; }},
      {"batch_norm_eval of x alone keeps no x",
       {x, constant({5}), constant({5}), mean, var},
       [=](auto in) { return batch_norm(in[0], in[1], in[2], in[3], in[4], evaluation); },
       reference(false, false),
       [](auto e, auto) { return (5 + 5 + 5) * e; }},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

namespace {

struct FusedCase {
  DType dtype;
  double scale;  // of weight and bias; tiny: values that round to zero of either sign
  bool training, has_residual, is_fused, dy_is_shared;
  std::uint32_t leaves;  // bit i: operand i of (x, residual, weight, bias)
};

// The result, the gradients of the operands, and the running statistics.
std::vector<Tensor> run_fused(const FusedCase& c) {
  BatchNormOptions options;
  options.training = c.training;
  const Shape shape{7, 5, 37};
  std::vector<Tensor> in{spread(shape, c.dtype, -2, 2, 0.1), spread(shape, c.dtype, -c.scale, c.scale, 0.2),
                         spread({37}, c.dtype, -c.scale, c.scale, 0.3),
                         spread({37}, c.dtype, -c.scale / 2, c.scale / 2, 0.4)};
  const Tensor mean = spread({37}, c.dtype, -0.2, 0.2, 0.5), var = spread({37}, c.dtype, 0.5, 2, 0.6);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if ((c.leaves >> i) & 1u) in[i].require_grad();
  }
  Tensor other = spread(shape, c.dtype, -1, 1, 0.8);
  other.require_grad();
  Tape tape;
  Tensor y, loss;
  {
    const Recording on(tape);
    if (!c.is_fused) {
      const Tensor n = batch_norm(in[0], in[2], in[3], mean, var, options);
      y = relu(c.has_residual ? add(n, in[1]) : n);
    } else if (c.has_residual) {
      y = batch_norm_add_relu(in[0], in[1], in[2], in[3], mean, var, options);
    } else {
      y = batch_norm_relu(in[0], in[2], in[3], mean, var, options);
    }
    loss = c.dy_is_shared ? add(y, other) : y;  // add hands the same dy to both operands
  }
  tape.backward(loss, spread(shape, c.dtype, -1, 1, 0.7));
  std::vector<Tensor> results{y};
  for (const Tensor& t : in) results.push_back(t.requires_grad() ? t.grad() : Tensor());
  results.push_back(mean);
  results.push_back(var);
  return results;
}

}  // namespace

TEST_CASE("ops_norm: fused tails have the bits of separate operators") {
  const std::vector<std::pair<DType, double>> kinds{{DType::f64, 1},     {DType::f32, 1},     {DType::f16, 1},
                                                    {DType::bf16, 1},    {DType::f16, 3e-7},  {DType::bf16, 1e-39},
                                                    {DType::f8e4m3, 1},  {DType::f8e5m2, 1},  {DType::f8e4m3, 0.02},
                                                    {DType::f32, 1e-44}, {DType::f8e4m3, 440}};
  for (const auto& [dtype, scale] : kinds) {
    for (const bool training : {true, false}) {
      for (const bool has_residual : {true, false}) {
        const std::uint32_t all = has_residual ? 0b1111u : 0b1101u;
        const std::vector<Tensor> separate = run_fused({dtype, scale, training, has_residual, false, false, all});
        for (const std::uint32_t leaves : {0b1111u, 0b0001u, 0b0010u, 0b0100u, 0b1000u, 0b1010u}) {
          if ((leaves & all) == 0) continue;
          for (const bool dy_is_shared : {false, true}) {
            INFO(to_string(dtype) << " scale " << scale << " training " << training << " residual " << has_residual
                                  << " leaves " << leaves << " shared " << dy_is_shared);
            const auto fused = run_fused({dtype, scale, training, has_residual, true, dy_is_shared, leaves & all});
            for (std::size_t i = 0; i < fused.size(); ++i) {
              const bool is_asked_for = i == 0 || i > 4 || ((leaves & all) >> (i - 1)) & 1u;
              INFO("result " << i);
              if (is_asked_for) CHECK(is_same(fused[i], separate[i]));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("ops_norm: running statistics") {
  const std::vector<double> values{1, 10, 2, 20, 3, 30, 6, 40};  // (4, 2)
  const Tensor x = from_host(values, {4, 2});
  BatchNormOptions options;
  options.momentum = 0.25;
  const auto make = [] { return std::pair(full({2}, 1, DType::f64), full({2}, 2, DType::f64)); };
  // mean 3 and 25; sums of squared deviations 14 and 500; unbiased over 3.
  const std::vector<double> mean_after{0.75 * 1 + 0.25 * 3, 0.75 * 1 + 0.25 * 25};
  const std::vector<double> var_after{0.75 * 2 + 0.25 * 14 / 3, 0.75 * 2 + 0.25 * 500 / 3};
  const auto check_values = [](const Tensor& t, const std::vector<double>& expected) {
    const std::vector<double> got = to_host<double>(t);
    for (std::size_t i = 0; i < 2; ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-14));
  };

  SECTION("take in the batch's, the variance unbiased") {
    const auto [mean, var] = make();
    batch_norm(x, {}, {}, mean, var, options);
    check_values(mean, mean_after);
    check_values(var, var_after);
  }
  SECTION("are left alone in evaluation, and are what it uses") {
    const auto [mean, var] = make();
    BatchNormOptions evaluation = options;
    evaluation.training = false;
    evaluation.epsilon = 0;
    const Tensor y = batch_norm(x, {}, {}, mean, var, evaluation);
    check_values(mean, {1, 1});
    check_values(var, {2, 2});
    CHECK(to_host<double>(y)[3] == Approx(19 / std::sqrt(2.0)));
  }
  SECTION("are updated exactly once under checkpointing, with the same gradients") {
    const auto run = [&](bool in_segment) {
      const auto [mean, var] = make();
      Tensor leaf = clone(x);
      leaf.require_grad();
      Tape tape;
      Tensor loss;
      {
        const Recording on(tape);
        const auto block = [&](const Tensor& t) {
          return batch_norm_relu(batch_norm(square(t), {}, {}, mean, var, options), {}, {}, {}, {}, options);
        };
        loss = square(in_segment ? checkpoint(block, leaf) : block(leaf));
      }
      const std::vector<Tensor> before{clone(mean), clone(var)};
      tape.backward(loss, full(loss.shape(), 1, DType::f64));
      CHECK(is_same(mean, before[0]));
      CHECK(is_same(var, before[1]));
      return std::vector<Tensor>{mean, var, leaf.grad()};
    };
    const std::vector<Tensor> plain = run(false), recomputed = run(true);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(is_same(plain[i], recomputed[i]));
    CHECK(to_host<double>(plain[0])[0] != 1);
  }
  SECTION("change when a transaction is committed, and not otherwise") {
    const auto [mean, var] = make();
    {
      Transaction step;
      batch_norm(x, {}, {}, mean, var, options);
      check_values(mean, {1, 1});
    }
    check_values(mean, {1, 1});
    check_values(var, {2, 2});
    {
      Transaction step;
      batch_norm(x, {}, {}, mean, var, options);
      batch_norm(x, {}, {}, mean, var, options);  // sees the first one's change
      CHECK(step.staged_count() == 2);
      step.commit();
    }
    check_values(mean, {0.75 * mean_after[0] + 0.25 * 3, 0.75 * mean_after[1] + 0.25 * 25});
    check_values(var, {0.75 * var_after[0] + 0.25 * 14 / 3, 0.75 * var_after[1] + 0.25 * 500 / 3});
  }
}

TEST_CASE("ops_norm: variance is stable far from zero") {
  // Mean 4096, deviations of +-1/4 and +-1/2: exact in f32, so the variance is known.
  std::vector<float> values;
  for (int i = 0; i < 6000; ++i) values.push_back(4096.0f + (i % 2 ? 0.25f : -0.25f) * (i % 4 < 2 ? 1.0f : 2.0f));
  const double variance = (0.0625 + 0.25) / 2;
  const auto check_spread = [&](const Tensor& y) {
    const std::vector<double> got = to_host<double>(y);
    for (std::size_t i = 0; i < 8; ++i) {
      CHECK(got[i] == Approx((static_cast<double>(values[i]) - 4096) / std::sqrt(variance)).epsilon(1e-6));
    }
  };
  check_spread(layer_norm(from_host(values, {1, 6000}), {}, {}, 0));
  check_spread(batch_norm(from_host(values, {6000, 1}), {}, {}, {}, {}, {true, 0.1, 0}));
  check_spread(group_norm(from_host(values, {1, 3000, 2}), 1, {}, {}, 0));
}

TEST_CASE("ops_norm: parameters may be f32 where x is narrower") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor x = spread({6, 4, 8}, dtype, -2, 2, 0.1);
    Tensor weight = spread({8}, DType::f32, 0.5, 1.5, 0.2), bias = spread({8}, DType::f32, -1, 1, 0.3);
    const Tensor mean = full({8}, 0), var = full({8}, 1);
    for (Tensor* t : {&x, &weight, &bias}) t->require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = group_norm(batch_norm_relu(layer_norm(x, weight, bias), weight, bias, mean, var), 2, weight, bias);
    }
    tape.backward(y, spread({6, 4, 8}, dtype, -1, 1, 0.5));
    CHECK(y.dtype() == dtype);
    CHECK(x.grad().dtype() == dtype);
    CHECK(weight.grad().dtype() == DType::f32);
    CHECK(bias.grad().dtype() == DType::f32);
    CHECK(to_host<double>(mean)[0] != 0);
  }
}

TEST_CASE("ops_norm: instruction sets give the same bits") {
  const auto run = [](DType dtype) {
    std::vector<Tensor> results;
    Tensor x = spread({67, 130}, dtype, -2, 2, 0.1), residual = spread({67, 130}, dtype, -2, 2, 0.6);
    Tensor weight = spread({130}, dtype, -1, 1, 0.2), bias = spread({130}, dtype, -1, 1, 0.3);
    for (Tensor* t : {&x, &residual, &weight, &bias}) t->require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = batch_norm_add_relu(layer_norm(x, weight, bias), residual, weight, bias, {}, {});
      y = batch_norm_relu(group_norm(rms_norm(y, weight), 13, weight, bias), weight, bias, {}, {});
    }
    tape.backward(y, spread({67, 130}, dtype, -1, 1, 0.5));
    return std::vector<Tensor>{y, x.grad(), residual.grad(), weight.grad(), bias.grad()};
  };
  const kernels::Isa before = kernels::isa();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    kernels::set_isa(kernels::Isa::generic);
    const std::vector<Tensor> generic = run(dtype);
    for (const kernels::Isa isa : {kernels::Isa::avx2, kernels::Isa::avx512}) {
      if (!kernels::is_supported(isa)) continue;
      INFO(kernels::to_string(isa) << " " << to_string(dtype));
      kernels::set_isa(isa);
      const std::vector<Tensor> other = run(dtype);
      for (std::size_t i = 0; i < generic.size(); ++i) CHECK(is_same(generic[i], other[i]));
    }
  }
  kernels::set_isa(before);
}

TEST_CASE("ops_norm: backward writes in place") {
  // batch_norm_add_relu: with dy in hand, dresidual takes dy's buffer and dx takes x's, which nobody else holds.
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const Shape shape{64, 16, 32};
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * 4;
  Tensor leaf = spread(shape, DType::f32, -2, 2, 0.1), residual = spread(shape, DType::f32, -2, 2, 0.2);
  leaf.require_grad();
  residual.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = batch_norm_add_relu(mul(leaf, 2.0), residual, {}, {}, {}, {});
  }
  Tensor seed = full(shape, 0.5);
  const std::size_t before = stack.ledger->bytes();
  stack.ledger->reset_peak();
  tape.backward(y, std::move(seed));
  CHECK(stack.ledger->max_allocated() - before < bytes);
}

TEST_CASE("ops_norm: an empty batch") {
  Tensor x = Tensor::empty({0, 4, 6});
  Tensor weight = full({6}, 1), bias = full({6}, 1);
  x.require_grad();
  weight.require_grad();
  bias.require_grad();
  for (int which = 0; which < 3; ++which) {
    weight.grad() = Tensor();
    bias.grad() = Tensor();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = which == 0   ? layer_norm(x, weight, bias)
          : which == 1 ? group_norm(x, 2, weight, bias)
                       : batch_norm_relu(x, weight, bias, full({6}, 0), full({6}, 1), {false});
    }
    tape.backward(y, Tensor::empty({0, 4, 6}));
    CHECK(y.shape() == Shape{0, 4, 6});
    CHECK(to_host<double>(weight.grad()) == std::vector<double>(6, 0.0));
    CHECK(to_host<double>(bias.grad()) == std::vector<double>(6, 0.0));
  }
}

TEST_CASE("ops_norm: errors name the operator and the shapes") {
  const Tensor x = zeros({4, 3, 6}), w = zeros({6}), half = zeros({6}, DType::f16), none;
  const Tensor x64 = zeros({4, 6}, DType::f64), ids = zeros({4, 6}, DType::i64);
  CHECK_THROWS_AS(layer_norm(ids), DTypeError);
  CHECK_THROWS_AS(layer_norm(none), DTypeError);
  CHECK_THROWS_AS(layer_norm(x, zeros({5})), ShapeError);
  CHECK_THROWS_WITH(layer_norm(x, zeros({5})),
                    "layer_norm: weight is f32 (5) on cpu, x is f32 (4, 3, 6) on cpu: weight must have shape (6)");
  CHECK_THROWS_AS(layer_norm(x, half), DTypeError);
  CHECK_THROWS_AS(layer_norm(x64, w), DTypeError);
  CHECK_THROWS_AS(layer_norm(zeros({4, 6}, DType::f16), w, half), DTypeError);
  CHECK_THROWS_AS(layer_norm(x, w, w, -1), ValueError);
  CHECK_THROWS_AS(layer_norm(x, none, none, 1e-5, 4), ValueError);
  CHECK_THROWS_AS(layer_norm(x, zeros({6}, DType::f32, dry(cpu))), DeviceError);
  CHECK_THROWS_AS(rms_norm(x, zeros({3, 6})), ShapeError);
  CHECK_THROWS_AS(group_norm(x, 4), ValueError);
  CHECK_THROWS_AS(group_norm(x, 0), ValueError);
  CHECK_THROWS_AS(group_norm(w, 1), ShapeError);
  CHECK_THROWS_AS(batch_norm(zeros({1, 6}), w, w, none, none), ShapeError);
  CHECK_THROWS_AS(batch_norm(zeros({0, 6}), w, w, none, none), ShapeError);
  CHECK_THROWS_AS(batch_norm(zeros({6, 0}), none, none, none, none), ShapeError);
  CHECK_THROWS_AS(batch_norm(x, w, w, w, none), ValueError);
  CHECK_THROWS_AS(batch_norm(x, w, w, none, none, {false}), ValueError);
  CHECK_THROWS_AS(batch_norm(x, w, w, none, none, {true, 1.5}), ValueError);
  CHECK_THROWS_AS(batch_norm(x, w, w, zeros({3}), zeros({3})), ShapeError);
  CHECK_THROWS_AS(batch_norm_add_relu(x, none, w, w, none, none), ValueError);
  CHECK_THROWS_AS(batch_norm_add_relu(x, zeros({4, 6}), w, w, none, none), ShapeError);
  CHECK_THROWS_AS(batch_norm_add_relu(x, zeros({4, 3, 6}, DType::f64), w, w, none, none), DTypeError);
}
