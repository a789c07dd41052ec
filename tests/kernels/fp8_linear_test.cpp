// FP8 products: codes bit by bit, results against the scalar twin, kept bytes, and refusals.

#include "support/fp8_twin.h"

#include <cmath>
#include <limits>
#include <string>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/near.h"

using namespace thimble;
using namespace thimble::fp8_test;
using kernels::Activation;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();

std::vector<Fp8Format> formats() {
  return {{Fp8Scaling::current, DType::f8e4m3, DType::f8e5m2, 0},
          {Fp8Scaling::current, DType::f8e4m3, DType::f8e4m3, 2},
          {Fp8Scaling::delayed, DType::f8e4m3, DType::f8e5m2, 0},
          {Fp8Scaling::block, DType::f8e4m3, DType::f8e4m3, 0},
          {Fp8Scaling::block, DType::f8e4m3, DType::f8e5m2, 0}};
}

Tensor leaf(Tensor t) {
  t.require_grad();
  return t;
}

struct Passed {
  Tensor y, dx, dweight, dbias;
};

/// fp8_linear and its gradients from `dy`.
Passed pass(const Fp8Format& format, const Fp8State& state, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& dy, Activation activation, bool is_in_out) {
  Tape tape;
  const Tensor lx = leaf(x.detach()), lw = leaf(weight.detach()), lb = leaf(bias.detach());
  Passed p;
  {
    const Recording on(tape);
    p.y = fp8_linear(lx, lw, lb, format, state, true, activation, is_in_out);
  }
  tape.backward(p.y, dy);
  p.dx = lx.grad(), p.dweight = lw.grad(), p.dbias = lb.grad();
  return p;
}

void check_near(const Tensor& got, const Product& expected, double of_magnitude, double of_value) {
  const std::vector<double> values = to_host<double>(got);
  REQUIRE(values.size() == expected.values.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double allowed = of_magnitude * expected.magnitudes[i] + of_value * std::fabs(expected.values[i]) + 1e-30;
    worst = thimble_test::worse(worst, std::fabs(values[i] - expected.values[i]) / allowed);
  }
  CHECK(worst <= 1);
}

/// Calls f with bf16 products on every unit of this machine, and with their conversion to f32.
template <class F>
void on_every_unit(F&& f) {
  std::vector<std::optional<kernels::DotUnit>> ways{std::nullopt};
  for (const kernels::DotUnit unit : kernel_test::supported_units(DType::bf16)) ways.emplace_back(unit);
  for (const auto& way : ways) {
    const kernel_test::Bf16On forced(way);
    INFO("bf16 " << (way ? to_string(*way) : "converted"));
    f();
  }
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  const memory::Pin pin(t);
  const auto* const first = static_cast<const std::byte*>(pin.data());
  return {first, first + t.bytes()};
}

}  // namespace

TEST_CASE("fp8: the scale of an amax", "[fp8]") {
  CHECK(kernels::fp8_scale_from(448, DType::f8e4m3, 0) == 1.0f);
  CHECK(kernels::fp8_scale_from(7, DType::f8e4m3, 0) == 0x1p-6f);
  CHECK(kernels::fp8_scale_from(7, DType::f8e4m3, 3) == 0x1p-3f);
  CHECK(kernels::fp8_scale_from(7, DType::f8e5m2, 0) == 0x1p-13f);
  CHECK(kernels::fp8_scale_from(1, DType::f8e4m3, 0) == static_cast<float>(1.0 / 448));
  CHECK(kernels::fp8_scale_from(0, DType::f8e4m3, 5) == 1.0f);
  CHECK(kernels::fp8_scale_from(1e-38f, DType::f8e5m2, 0) == 0x1p-60f);
  CHECK(kernels::fp8_scale_from(3e38f, DType::f8e4m3, 16) == 0x1p100f);
  CHECK(std::isnan(kernels::fp8_scale_from(infinity, DType::f8e4m3, 0)));
  CHECK(std::isnan(kernels::fp8_scale_from(not_a_number, DType::f8e4m3, 0)));
}

TEST_CASE("fp8: codes, bit by bit", "[fp8]") {
  for (const DType source : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType code : {DType::f8e4m3, DType::f8e5m2}) {
      for (const float known : {0.0f, 0.03125f, 0.0123f}) {  // the smaller ones saturate
        INFO(to_string(source) << " to " << to_string(code) << ", known scale " << known);
        Fp8Use use{{Fp8Scaling::delayed, code, code, 1}, {}, 0, false};
        const Tensor x = spread({37, 48}, 30, source, 1);
        const Tensor scales = from_host(std::vector<float>{known, known, known}, {3});
        const Fp8Operand codes = fp8_encode(x, Fp8Role::gradient, use, scales);
        const Matrix m = host(to_dtype(x, DType::f32));
        const Matrix scale = scales_of(m, Fp8Role::gradient, use.format, known);
        CHECK(to_host<float>(codes.scale)[0] == scale.values[0]);
        const Fp8Operand values = fp8_round(clone(x), Fp8Role::gradient, use, scales);
        CHECK(values.values.dtype() == DType::bf16);
        const Tensor window = Tensor::empty({5, 33}, DType::bf16);
        fp8_decode_into(window, codes, 7, 11);
        const std::vector<float> of_codes = to_host<float>(to_dtype(codes.values, DType::f32));
        const std::vector<float> of_values = to_host<float>(to_dtype(values.values, DType::f32));
        const Matrix of_window = host(to_dtype(window, DType::f32));
        std::size_t wrong = 0, saturated = 0;
        for (std::size_t i = 0; i < m.values.size(); ++i) {
          const float expected = rounded(m.values[i], scale.values[i], code);
          wrong += of_codes[i] != expected;
          wrong += of_values[i] != expected;
          saturated += std::fabs(expected) == largest(code);
        }
        for (std::int64_t r = 0; r < 5; ++r) {
          for (std::int64_t c = 0; c < 33; ++c) {
            wrong += of_window(r, c) != of_codes[static_cast<std::size_t>((r + 7) * 48 + c + 11)];
          }
        }
        CHECK(wrong == 0);
        if (code == DType::f8e4m3) CHECK((saturated > 0) == (known != 0));
      }
    }
  }
}

TEST_CASE("fp8: what is not finite", "[fp8]") {
  const std::vector<float> values{1, -2, infinity, -infinity, not_a_number, 3e38f, 0, -0.0f};
  const Tensor x = from_host(values, {1, 8});
  const Tensor known = from_host(std::vector<float>{1, 1, 1}, {3}), none;
  for (const DType code : {DType::f8e4m3, DType::f8e5m2}) {
    const Fp8Use use{{Fp8Scaling::delayed, code, code, 0}, {}, 0, false};
    const std::vector<float> got = to_host<float>(to_dtype(fp8_encode(x, Fp8Role::x, use, known).values, DType::f32));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = rounded(values[i], 1, code);
      INFO(to_string(code) << ", " << values[i]);
      CHECK(std::isnan(got[i]) == std::isnan(expected));
      if (!std::isnan(expected)) CHECK(got[i] == expected);
    }
    CHECK(std::isnan(got[2]) == (code == DType::f8e4m3));
    CHECK(got[5] == largest(code));  // finite, so it saturates
    // A scale from such values makes every code NaN: none passes as a number.
    for (const float v : to_host<float>(to_dtype(fp8_encode(x, Fp8Role::x, use, none).values, DType::f32))) {
      CHECK(std::isnan(v));
    }
  }
  // With block scales, only the block.
  Tensor wide = zeros({2, 256}, DType::f32);
  {
    const memory::WritePin pin(wide);
    for (std::int64_t i = 0; i < 512; ++i) pin.as<float>()[i] = static_cast<float>(i % 9);
    pin.as<float>()[130] = infinity;
  }
  const Fp8Use use{{Fp8Scaling::block, DType::f8e4m3, DType::f8e4m3, 0}, {}, 0, false};
  const std::vector<float> got = to_host<float>(to_dtype(fp8_round(wide, Fp8Role::x, use, none).values, DType::f32));
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::isnan(got[i]) == (i >= 128 && i < 256));
  CHECK(got[5] == 5.0f);
}

TEST_CASE("fp8_linear: where nothing is rounded it is linear(), bit by bit", "[fp8]") {
  // Integers up to 7, with 7 among them, are exact in FP8 under every resulting scale, and so are their sums.
  const auto integers = [](const Shape& shape, int seed) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < shape.elements(); ++i)
      values.push_back(static_cast<float>((i * 5 + i / 7 + seed) % 15 - 7));
    return from_host(values, shape);
  };
  for (const Fp8Format& format : formats()) {
    for (const bool is_in_out : {false, true}) {
      for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
        INFO("format " << static_cast<int>(format.scaling) << ", in-out " << is_in_out);
        const Tensor x = integers({5, 3, 32}, 1), weight = integers(is_in_out ? Shape{32, 48} : Shape{48, 32}, 2);
        const Tensor bias = integers({48}, 3), dy = integers({5, 3, 48}, 4);
        Tape tape;
        const Tensor lx = leaf(x.detach()), lw = leaf(weight.detach()), lb = leaf(bias.detach());
        Tensor y;
        {
          const Recording on(tape);
          y = linear(lx, lw, lb, activation, is_in_out);
        }
        tape.backward(y, dy);
        on_every_unit([&] {
          const Passed got = pass(format, make_fp8_state(4, cpu), x, weight, bias, dy, activation, is_in_out);
          CHECK(bytes_of(got.y) == bytes_of(y));
          CHECK(bytes_of(got.dbias) == bytes_of(lb.grad()));
          if (activation == Activation::gelu_tanh) return;  // its gradient is no integer
          CHECK(bytes_of(got.dx) == bytes_of(lx.grad()));
          CHECK(bytes_of(got.dweight) == bytes_of(lw.grad()));
        });
      }
    }
  }
}

TEST_CASE("fp8_linear: values and gradients against the scalar twin", "[fp8]") {
  // In f32 the error of a sum of k products; in bf16 plus half a unit in the result's last place.
  for (const Fp8Format& format : formats()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool is_in_out : {false, true}) {
        INFO("format " << static_cast<int>(format.scaling) << ", " << to_string(dtype) << ", in-out " << is_in_out);
        constexpr std::int64_t rows = 75, in = 160, out = 144;  // incomplete blocks
        const Tensor x = spread({rows, in}, 3, dtype, 1), dy = spread({rows, out}, 1e-3, dtype, 4);
        const Tensor weight = spread(is_in_out ? Shape{in, out} : Shape{out, in}, 0.1, dtype, 2);
        const Tensor bias = zeros({out}, dtype);
        const auto as_f32 = [](const Tensor& t) { return host(to_dtype(t, DType::f32)); };
        const Matrix x8 = through_fp8(as_f32(x), Fp8Role::x, format);
        const Matrix w8 = through_fp8(as_f32(weight), Fp8Role::weight, format);
        const Matrix d8 = through_fp8(as_f32(dy), Fp8Role::gradient, format);
        const double last_place = dtype == DType::bf16 ? 0x1p-8 : 0x1p-22, sum = 200 * 0x1p-24;
        const Product y = product(x8, false, w8, !is_in_out), dx = product(d8, false, w8, is_in_out);
        const Product dweight = is_in_out ? product(x8, true, d8, false) : product(d8, true, x8, false);
        on_every_unit([&] {
          const Passed got = pass(format, make_fp8_state(4, cpu), x, weight, bias, dy, Activation::none, is_in_out);
          check_near(got.y, y, sum, last_place);
          check_near(got.dx, dx, sum, last_place);
          check_near(got.dweight, dweight, sum, last_place);
          CHECK(got.dweight.dtype() == dtype);
          CHECK(got.dx.dtype() == dtype);
        });
      }
    }
  }
}

TEST_CASE("fp8_linear: windows and threads change no bit", "[fp8]") {
  // 4 MiB hold 2048 rows of 1024 columns: two windows forward, and four of columns for the weight's gradient.
  for (const Fp8Format& format : {formats()[0], formats()[3]}) {
    const Tensor x = spread({2100, 1024}, 3, DType::bf16, 1), dy = spread({2100, 16}, 1e-3, DType::bf16, 4);
    const Tensor weight = spread({16, 1024}, 0.1, DType::bf16, 2), bias = zeros({16}, DType::bf16);
    const int before = thread_count();
    set_thread_count(1);
    const Passed one = pass(format, {}, x, weight, bias, dy, Activation::none, false);
    set_thread_count(3);
    const Passed three = pass(format, {}, x, weight, bias, dy, Activation::none, false);
    set_thread_count(before);
    CHECK(bytes_of(one.y) == bytes_of(three.y));
    CHECK(bytes_of(one.dx) == bytes_of(three.dx));
    CHECK(bytes_of(one.dweight) == bytes_of(three.dweight));
    // The second window's rows equal a separate call's, unless a common scale joins them with other rows.
    if (format.scaling != Fp8Scaling::block) continue;
    const NoGrad off;
    const Tensor part = from_host(
        [&] {
          const std::vector<float> all = to_host<float>(to_dtype(x, DType::f32));
          return std::vector<float>(all.end() - 20 * 1024, all.end());
        }(),
        {20, 1024});
    const Tensor own = fp8_linear(to_dtype(part, DType::bf16), weight, bias, format);
    const std::vector<std::byte> all = bytes_of(one.y), last = bytes_of(own);
    CHECK(std::equal(last.begin(), last.end(), all.end() - static_cast<std::ptrdiff_t>(last.size())));
  }
}

TEST_CASE("fp8_linear: what is kept, and what a dry run says of it", "[fp8]") {
  for (const Fp8Format& format : formats()) {
    for (const Activation activation : {Activation::none, Activation::gelu_erf}) {
      CHECK(check_kept(format, activation, cpu) == check_kept(format, activation, dry(cpu)));
    }
  }
}

TEST_CASE("fp8_linear: each operand alone gets the gradient it gets among the others", "[fp8]") {
  for (const Fp8Format& format : formats()) {
    const Tensor x = spread({20, 32}, 2, DType::bf16, 1), w = spread({48, 32}, 1, DType::bf16, 2);
    const Tensor b = spread({48}, 1, DType::bf16, 3), dy = spread({20, 48}, 1, DType::bf16, 4);
    const Passed all = pass(format, make_fp8_state(4, cpu), x, w, b, dy, Activation::gelu_tanh, false);
    const Tensor expected[] = {all.dx, all.dweight, all.dbias};
    for (int i = 0; i < 3; ++i) {
      Tensor in[] = {x.detach(), w.detach(), b.detach()};
      in[i].require_grad();
      Tape tape;
      Tensor y;
      {
        const Recording on(tape);
        y = fp8_linear(in[0], in[1], in[2], format, make_fp8_state(4, cpu), true, Activation::gelu_tanh);
      }
      CHECK(bytes_of(y) == bytes_of(all.y));
      tape.backward(y, dy);
      CHECK(bytes_of(in[i].grad()) == bytes_of(expected[i]));
    }
  }
}

TEST_CASE("fp8_linear: no rows", "[fp8]") {
  for (const Fp8Format& format : formats()) {
    const Passed got = pass(format, make_fp8_state(4, cpu), zeros({0, 32}, DType::bf16), zeros({16, 32}, DType::bf16),
                            zeros({16}, DType::bf16), zeros({0, 16}, DType::bf16), Activation::none, false);
    CHECK(got.y.shape() == Shape{0, 16});
    for (const float v : to_host<float>(to_dtype(got.dweight, DType::f32))) CHECK(v == 0);
  }
}

TEST_CASE("fp8_linear: what is refused", "[fp8]") {
  const Fp8Format current = formats()[0], delayed = formats()[2];
  const Tensor x = zeros({4, 32}, DType::bf16), w = zeros({16, 32}, DType::bf16), b = zeros({16}, DType::bf16);
  const auto text = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THROWS_AS(fp8_linear(x, zeros({16, 48}, DType::bf16), b, current), ShapeError);
  CHECK_THROWS_AS(fp8_linear(x, w, zeros({32}, DType::bf16), current), ShapeError);
  CHECK_THROWS_AS(fp8_linear(x, zeros({16, 32}, DType::f32), b, current), DTypeError);
  CHECK_THROWS_AS(fp8_linear(x, w, zeros({16}, DType::f32), current), DTypeError);
  CHECK_THROWS_AS(fp8_linear(zeros({4, 32}, DType::f64), zeros({16, 32}, DType::f64), {}, current), DTypeError);
  CHECK_THROWS_AS(fp8_linear(x, w, b, {Fp8Scaling::current, DType::i8, DType::f8e5m2, 0}), DTypeError);
  CHECK_THROWS_AS(fp8_linear(x, w, b, delayed), ValueError);
  CHECK(text([&] { fp8_linear(x, w, b, delayed); }) == "fp8_linear: delayed scaling needs a state, which is undefined");
  CHECK(text([&] {
          fp8_linear(x, zeros({16, 48}, DType::bf16), b, current);
        }) == "fp8_linear: input (4, 32) does not fit weight (16, 48) (out, in)");
  const Fp8Use use{current, {}, 0, false};
  CHECK_THROWS_AS(fp8_encode(zeros({32}, DType::bf16), Fp8Role::x, use, {}), ShapeError);
  const Fp8Operand codes = fp8_encode(x, Fp8Role::x, use, {});
  CHECK_THROWS_AS(fp8_decode_into(zeros({4, 32}, DType::bf16), codes, 1, 0), ShapeError);
  CHECK_THROWS_AS(fp8_decode_into(zeros({4, 32}, DType::f32), codes, 0, 0), ShapeError);
  CHECK_THROWS_AS(make_fp8_state(0, cpu), ValueError);
  CHECK(text([&] { make_fp8_state(1025, cpu); }) == "fp8: a history of 1025 steps; expected 1 to 1024");
  const memory::Device gpu = dry(cuda());
  CHECK(text([&] {
          fp8_linear(zeros({4, 32}, DType::bf16, gpu), zeros({16, 32}, DType::bf16, gpu), {}, current);
        }).empty());
  CHECK_THROWS_AS(fp8_linear(x, zeros({16, 32}, DType::bf16, gpu), {}, current), DeviceError);
}
