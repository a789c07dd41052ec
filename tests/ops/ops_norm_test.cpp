// Layer, RMS and group norm: rows of the operator table; properties of all normalisations.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/kernels/cpu/base/isa.h>

#include "norm_reference.h"
#include "support/catch.h"
#include "support/kernel_data.h"

using namespace thimble;
using namespace thimble::testing;

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
      {"instance_norm: group_norm of a channel each, without weight",
       {{{2, 7, 5}}},
       [](auto in) { return instance_norm(in[0]); },
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
  const kernel_test::Settings settings;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    kernels::set_isa(kernels::Isa::generic);
    const std::vector<Tensor> generic = run(dtype);
    for (const kernels::Isa isa : kernel_test::supported()) {
      INFO(kernels::to_string(isa) << " " << to_string(dtype));
      kernels::set_isa(isa);
      const std::vector<Tensor> other = run(dtype);
      for (std::size_t i = 0; i < generic.size(); ++i) CHECK(is_same(generic[i], other[i]));
    }
  }
}

// Values whose squares overflow f32, up to the largest f32, and values whose squares have few digits in f32: compared
// with f64, whose kernels the operator table compares with a reference.
TEST_CASE("ops_norm: squares beyond the range of f32") {
  struct Case {
    const char* name;
    Shape shape;
    std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon)> call;
    bool has_gradient_on_cuda = true;  // for the part of dx through the statistics
  };
  const Case cases[] = {
      {"layer_norm", {3, 10}, [](auto& x, auto& w, auto& b, double e) { return layer_norm(x, w, b, e); }},
      {"long rows", {2, 5000}, [](auto& x, auto& w, auto& b, double e) { return layer_norm(x, w, b, e); }},
      {"without weight", {70, 33}, [](auto& x, auto&, auto&, double e) { return layer_norm(x, {}, {}, e); }},
      {"rms_norm", {3, 40}, [](auto& x, auto& w, auto&, double e) { return rms_norm(x, w, e); }},
      {"group_norm", {2, 70, 8}, [](auto& x, auto& w, auto& b, double e) { return group_norm(x, 2, w, b, e); }, false},
      {"batch_norm",
       {150, 16},
       [](auto& x, auto& w, auto& b, double e) {
         return batch_norm(x, w, b, {}, {}, {true, 0.1, e});
       },
       false},
      {"batch_norm of 5 channels",
       {2100, 5},
       [](auto& x, auto& w, auto& b, double e) {
         return batch_norm_relu(x, w, b, {}, {}, {true, 0.1, e});
       },
       false},
      {"batch_norm_add_relu",
       {9, 3},
       [](auto& x, auto& w, auto& b, double e) {
         const Tensor residual = to_device(spread(x.shape(), x.dtype(), -1, 1, 0.7), x.device());
         return batch_norm_add_relu(x, residual, w, b, {}, {}, {true, 0.1, e});
       },
       false},
  };
  const kernel_test::Settings settings;
  for (const Case& row : cases) {
    for (const float scale : {1e-36f, 1e-30f, 1e-20f, 1.0f, 1e18f, 1e19f, 3e22f, 1e30f, 1e38f, 3.4e38f}) {
      const double epsilon = scale < 1 ? 0 : 1e-5;
      const std::int64_t channels = row.shape.back();
      // Each channel or row has both signs, and a mean.
      std::vector<double> values = to_host<double>(spread(row.shape, DType::f64, -0.5, 1, 0.1));
      if (scale == 3.4e38f) values[0] = -1, values[static_cast<std::size_t>(channels)] = 1;
      std::vector<float> narrow;
      for (const double v : values) narrow.push_back(static_cast<float>(v) * scale);
      const auto run = [&](DType dtype, memory::Device device) {
        const std::vector<double> wide(narrow.begin(), narrow.end());
        Tensor x = to_device(to_dtype(from_host(wide, row.shape), dtype), device);
        Tensor weight = to_device(to_dtype(spread({channels}, DType::f64, 0.5, 1.5, 0.2), dtype), device);
        Tensor bias = to_device(to_dtype(spread({channels}, DType::f64, -1, 1, 0.3), dtype), device);
        for (Tensor* t : {&x, &weight, &bias}) t->require_grad();
        Tape tape;
        Tensor y;
        {
          const Recording on(tape);
          y = row.call(x, weight, bias, epsilon);
        }
        tape.backward(y, to_device(to_dtype(spread(row.shape, DType::f64, -1, 1, 0.5), dtype), device));
        std::vector<Tensor> results{y, x.grad()};
        for (Tensor* t : {&weight, &bias}) {
          if (t->grad().defined()) results.push_back(t->grad());
        }
        for (Tensor& t : results) t = to_device(t, cpu);
        return results;
      };
      const std::vector<Tensor> right = run(DType::f64, cpu);
      const auto check = [&](const std::vector<Tensor>& got, bool has_gradient) {
        for (std::size_t i = 0; i < right.size(); ++i) {
          if (i == 1 && !has_gradient) continue;
          const std::vector<double> a = to_host<double>(got[i]), b = to_host<double>(right[i]);
          double largest = 0, off = 0;
          for (std::size_t k = 0; k < b.size(); ++k) {
            largest = std::max(largest, std::abs(b[k]));
            off = std::max(off, std::isfinite(a[k]) ? std::abs(a[k] - b[k]) : 1e300);
          }
          INFO(row.name << ", values of " << scale << ", result " << i);
          CHECK(off <= 2e-5 * largest + 4e-45);
        }
      };
      for (const kernels::Isa isa : kernel_test::supported()) {
        kernels::set_isa(isa);
        check(run(DType::f32, cpu), true);
      }
      if (has_cuda() && scale < 1e38f) check(run(DType::f32, cuda(0)), row.has_gradient_on_cuda || scale == 1);
    }
  }
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
