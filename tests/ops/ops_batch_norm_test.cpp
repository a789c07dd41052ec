// Batch norm: rows of the operator table, running statistics, and the fused tails.

#include <cmath>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/layers.h>

#include "norm_reference.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::testing;

TEST_CASE("ops_batch_norm: in training") {
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
      {"batch_norm_relu6",
       {{{3, 2, 2, 5}}, {{5}, 5, 9}, {{5}, -0.3, 0.4}},
       [](auto in) { return batch_norm_relu6(in[0], in[1], in[2], {}, {}); },
       batch_reference(5, false, true, 6),
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

TEST_CASE("ops_batch_norm: in evaluation") {
  BatchNormOptions evaluation;
  evaluation.training = false;
  // Operands: x, [residual,] weight, bias, running mean, running variance.
  const auto reference = [](bool has_residual, bool has_relu, double most = INFINITY) {
    return [=](const NormArrays& in) {
      NormValues y;
      const std::size_t w = has_residual ? 2 : 1;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(in[0].values.size()); ++i) {
        const std::int64_t c = i % 5;
        double v = (in[0][i] - in[w + 2][c]) / std::sqrt(in[w + 3][c] + 1e-5) * in[w][c] + in[w + 1][c];
        if (has_residual) v += in[1][i];
        y.push_back(has_relu ? std::min(std::max(v, 0.0), most) : v);
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
      {"batch_norm_relu6_eval",
       {x, {{5}, 5, 9}, bias, mean, var},
       [=](auto in) { return batch_norm_relu6(in[0], in[1], in[2], in[3], in[4], evaluation); },
       reference(false, true, 6),
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
  double scale;  // of weight and bias; if tiny, values round to zeros of both signs
  bool training;
  ops::NormTail tail;
  bool is_fused, dy_is_shared;
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
      y = c.tail == ops::NormTail::relu6 ? relu6(n) : relu(c.tail == ops::NormTail::add_relu ? add(n, in[1]) : n);
    } else if (c.tail == ops::NormTail::add_relu) {
      y = batch_norm_add_relu(in[0], in[1], in[2], in[3], mean, var, options);
    } else if (c.tail == ops::NormTail::relu6) {
      y = batch_norm_relu6(in[0], in[2], in[3], mean, var, options);
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

TEST_CASE("ops_batch_norm: fused tails have the bits of separate operators") {
  const std::vector<std::pair<DType, double>> kinds{
      {DType::f64, 1},      {DType::f32, 1},    {DType::f16, 1},    {DType::bf16, 1},      {DType::f16, 3e-7},
      {DType::bf16, 1e-39}, {DType::f8e4m3, 1}, {DType::f8e5m2, 1}, {DType::f8e4m3, 0.02}, {DType::f32, 1e-44},
      {DType::f8e4m3, 440}, {DType::f64, 8},    {DType::f32, 8},    {DType::f16, 8},       {DType::bf16, 8},
      {DType::f8e4m3, 8},   {DType::f8e5m2, 8}};
  for (const auto& [dtype, scale] : kinds) {
    for (const bool training : {true, false}) {
      for (const auto tail : {ops::NormTail::add_relu, ops::NormTail::relu, ops::NormTail::relu6}) {
        const std::uint32_t all = tail == ops::NormTail::add_relu ? 0b1111u : 0b1101u;
        const std::vector<Tensor> separate = run_fused({dtype, scale, training, tail, false, false, all});
        for (const std::uint32_t leaves : {0b1111u, 0b0001u, 0b0010u, 0b0100u, 0b1000u, 0b1010u}) {
          if ((leaves & all) == 0) continue;
          for (const bool dy_is_shared : {false, true}) {
            INFO(to_string(dtype) << " scale " << scale << " training " << training << " tail "
                                  << static_cast<int>(tail) << " leaves " << leaves << " shared " << dy_is_shared);
            const auto fused = run_fused({dtype, scale, training, tail, true, dy_is_shared, leaves & all});
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

TEST_CASE("ops_batch_norm: relu6's gradient passes below what rounds to 6") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const double step = dtype == DType::f16 ? 0x1p-8 : dtype == DType::bf16 ? 0x1p-5 : 0x1p-21;  // just below 6
    const Tensor one = full({1}, 1, dtype), mean = full({1}, 0, dtype);
    const Tensor bias = full({1}, step / 2, dtype);
    Tensor x = from_host(std::vector<double>{6 - 2 * step, 6 - step, 6, 7, -1, 1}, {6, 1});
    x = to_dtype(x, dtype);
    const auto gradient = [&](bool is_fused) {
      Tensor leaf = clone(x);
      leaf.require_grad();
      Tape tape;
      Tensor y;
      {
        const Recording on(tape);
        const BatchNormOptions fixed{.training = false, .epsilon = 0};
        y = is_fused ? batch_norm_relu6(leaf, one, bias, mean, one, fixed)
                     : relu6(batch_norm(leaf, one, bias, mean, one, fixed));
      }
      tape.backward(y, full({6, 1}, 1, dtype));
      return to_host<double>(leaf.grad());
    };
    INFO(to_string(dtype));
    // The midpoint of 6 - step and 6 rounds to 6, whose last digit is even; in f32 the sum itself rounds so.
    const std::vector<double> expected{1, 0, 0, 0, 0, 1};
    CHECK(gradient(false) == expected);
    CHECK(gradient(true) == expected);
  }
}

TEST_CASE("ops_batch_norm: running statistics") {
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
      const auto statistics = make();
      const Tensor &mean = statistics.first, &var = statistics.second;
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
      tape::Transaction step;
      batch_norm(x, {}, {}, mean, var, options);
      check_values(mean, {1, 1});
    }
    check_values(mean, {1, 1});
    check_values(var, {2, 2});
    {
      tape::Transaction step;
      batch_norm(x, {}, {}, mean, var, options);
      batch_norm(x, {}, {}, mean, var, options);  // sees the first call's change
      CHECK(step.staged_count() == 2);
      step.commit();
    }
    check_values(mean, {0.75 * mean_after[0] + 0.25 * 3, 0.75 * mean_after[1] + 0.25 * 25});
    check_values(var, {0.75 * var_after[0] + 0.25 * 14 / 3, 0.75 * var_after[1] + 0.25 * 500 / 3});
  }
}

TEST_CASE("ops_batch_norm: a layer counts a batch once, also where it is run again, in the dtypes of its statistics") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    nn::BatchNorm2d norm(3, {.dtype = dtype});
    CHECK(norm.running_mean.dtype() == (dtype == DType::f64 ? DType::f64 : DType::f32));
    CHECK(norm.running_var.dtype() == norm.running_mean.dtype());
    const Tensor x = full({2, 2, 2, 3}, 1, dtype).require_grad();
    for (const bool is_training : {true, false}) {
      is_training ? norm.train() : norm.eval();
      Tape tape;
      Tensor loss;
      {
        const Recording on(tape);
        loss = mean(checkpoint([&](const Tensor& t) { return norm(t); }, x));
      }
      tape.backward(loss);
      CHECK(item(norm.num_batches_tracked) == 1);
    }
  }
}

TEST_CASE("ops_batch_norm: backward writes in place") {
  // batch_norm_add_relu: dresidual reuses dy's buffer, and dx reuses x's, which has no other owner.
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
