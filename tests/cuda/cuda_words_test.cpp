// Kernels that read words of 16 bytes: equal bits wherever operands begin, and the CPU's where promised. And the
// results of number-converting instructions, by their definition.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/numbers/math.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace cuda_words_test {

/// Numbers of a shape on a device, beginning `askew` elements after an aligned address.
Tensor operand(const Shape& shape, DType dtype, memory::Device device, std::int64_t askew, std::uint32_t number) {
  const std::int64_t n = shape.elements();
  Tensor all = zeros({n + askew}, dtype, cpu);
  copy_into(view::slice(all, 0, askew, n + askew),
            to_dtype(normal({n}, 0.2, 1, DType::f32, cpu, {5, 0, 0, number}), dtype));
  Tensor t = view::reshape(view::slice(to_device(all, device), 0, askew, n + askew), shape);
  t.require_grad();
  return t;
}

using Values = std::vector<std::vector<double>>;

template <class F>
Values with_gradients(const std::vector<Tensor>& leaves, const F& f) {
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = f(leaves);
  }
  tape.backward(y, to_device(to_dtype(normal(y.shape(), 0, 1, DType::f32, cpu, {5, 0, 0, 77}), y.dtype()), y.device()));
  Values all{to_host<double>(y)};
  for (const Tensor& leaf : leaves) all.push_back(to_host<double>(leaf.grad()));
  return all;
}

bool same(const Values& a, const Values& b) {
  const auto bits = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), bits);
  });
}

/// The result of cvt.rn.satfinite by the PTX ISA: the nearest code, ties to the even one; the largest finite code
/// beyond it, and 0x7F for NaN.
template <class F>
std::uint8_t converted(float x, const std::vector<double>& magnitudes) {
  if (std::isnan(x)) return 0x7F;
  const double magnitude = std::fabs(static_cast<double>(x));
  const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
  std::size_t code = 0;
  if (above == magnitudes.end()) {
    code = magnitudes.size() - 1;
  } else {
    code = static_cast<std::size_t>(above - magnitudes.begin());
    if (code > 0) {
      const double down = magnitude - magnitudes[code - 1], up = magnitudes[code] - magnitude;
      if (down < up || (down == up && code % 2 == 1)) --code;
    }
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80u : 0u));
}

template <class F>
void check_codes() {
  std::vector<double> magnitudes;  // of the finite codes
  for (unsigned code = 0; code <= F::Format::max_code; ++code) {
    magnitudes.push_back(static_cast<double>(static_cast<float>(F::from_bits(static_cast<std::uint8_t>(code)))));
  }
  std::uint64_t differences = 0;
  const auto compare = [&](float x) {
    if (std::isinf(x)) return;  // the kernel returns the code of infinity instead
    differences += kernels::fp8_code<quant::Float8Code<F>>(x, 1.0f) != converted<F>(x, magnitudes) ? 1 : 0;
  };
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    compare(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (std::size_t code = 1; code < magnitudes.size(); ++code) {  // both sides of every boundary
    const float middle = static_cast<float>((magnitudes[code - 1] + magnitudes[code]) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e30f)}) compare(x), compare(-x);
  }
  for (const float x : {0.0f, -0.0f, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(),
                        std::numeric_limits<float>::quiet_NaN()}) {
    compare(x);
  }
  CHECK(differences == 0);
}

}  // namespace cuda_words_test

using namespace cuda_words_test;

TEST_CASE("cuda_words: rows have the same bits wherever they begin", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t length : {5, 33, 40, 1300, 2600, 17'003}) {  // a team per row in long ones
      INFO(to_string(dtype) << ", rows of " << length);
      const auto run = [&](std::int64_t askew) {
        const auto make = [&](const Shape& shape, std::uint32_t n) { return operand(shape, dtype, cuda(), askew, n); };
        Values all;
        const auto add = [&](const Values& more) { all.insert(all.end(), more.begin(), more.end()); };
        add(with_gradients({make({5, length}, 1), make({length}, 2), make({length}, 3)},
                           [](const auto& x) { return layer_norm(x[0], x[1], x[2]); }));
        add(with_gradients({make({5, length}, 1)}, [](const auto& x) { return softmax(x[0], -1); }));
        add(with_gradients({make({5, length}, 1)}, [](const auto& x) { return log_softmax(x[0], -1); }));
        const Tensor targets = from_host(std::vector<std::int64_t>{0, 4, 1, -100, 3}, {5}, cuda());
        add(with_gradients({make({5, length}, 1)}, [&](const auto& x) { return cross_entropy(x[0], targets); }));
        return all;
      };
      const Values aligned = run(0);
      for (const std::int64_t askew : {1, 2, 3, 4, 5, 7}) CHECK(same(run(askew), aligned));
    }
  }
}

TEST_CASE("cuda_words: rows of any length have the CPU's values, and the same bits with their elements apart",
          "[cuda]") {
  if (!has_cuda()) return;
  for (const auto& [dtype, unit] :
       {std::pair{DType::f32, 0x1p-24}, {DType::bf16, 0x1p-9}, {DType::f16, 0x1p-12}, {DType::f64, 0x1p-48}}) {
    for (const std::int64_t length : {1, 300, 2600, 17'003}) {  // for a warp, for a team in registers, longer
      for (const bool is_log : {false, true}) {
        INFO(to_string(dtype) << ", rows of " << length << (is_log ? ", log" : ""));
        const auto run = [&](const Tensor& x, int axis) { return is_log ? log_softmax(x, axis) : softmax(x, axis); };
        const auto of = [&](memory::Device device) {
          const auto rows = [&](const auto& x) { return run(x[0], -1); };
          return with_gradients({operand({3, length}, dtype, device, 0, 1)}, rows);
        };
        const Values here = of(cpu), there = of(cuda());
        // In gradients the cancelling terms are as large as the sum of dy over the length.
        for (std::size_t k = 0; k < here.size(); ++k) {
          const double floor = (k == 0 ? 1.0 : 100.0) / static_cast<double>(length);
          for (std::size_t i = 0; i < here[k].size(); ++i) {
            REQUIRE(std::fabs(there[k][i] - here[k][i]) <= 128 * unit * (std::fabs(here[k][i]) + floor));
          }
        }
        const Tensor x = operand({3, length}, dtype, cuda(), 0, 1);
        const Tensor apart = run(contiguous(view::transpose(x.detach(), 0, 1)), 0);
        CHECK(same({to_host<double>(contiguous(view::transpose(apart, 0, 1)))}, {there[0]}));
      }
    }
  }
}

TEST_CASE("cuda_words: sums, pools and updates have the CPU's bits wherever they begin", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    INFO(to_string(dtype));
    const auto run = [&](memory::Device device, std::int64_t askew) {
      const auto make = [&](const Shape& shape, std::uint32_t n) { return operand(shape, dtype, device, askew, n); };
      Values all;
      for (const Shape& shape : {Shape{700, 24}, Shape{9, 40}, Shape{300, 7}, Shape{3, 2056}}) {
        all.push_back(to_host<double>(column_sum(make(shape, 1))));
        all.push_back(to_host<double>(sum(make(shape, 1), 0)));
        all.push_back(to_host<double>(sum(make(shape, 1), 1)));
      }
      for (const std::int64_t channels : {16, 12}) {
        const Values pooled = with_gradients({make({2, 9, 7, channels}, 1)}, [](const auto& x) {
          return max_pool2d(x[0], {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
        });
        all.insert(all.end(), pooled.begin(), pooled.end());
      }
      for (const std::int64_t n : {5, 16, 4100}) {
        for (const DType moments : {DType::f32, DType::u8}) {
          Tensor p = make({n}, 1);
          p.grad() = make({n}, 2).detach();
          optim::AdamOptions options;
          options.moments = {moments, 1, {}};
          optim::Adam optimizer({{"p", p}}, options);
          optimizer.step();
          optimizer.step();
          all.push_back(to_host<double>(p));
          if (moments == DType::u8) continue;
          for (const optim::Named& state : optimizer.state()) all.push_back(to_host<double>(state.tensor));
        }
      }
      for (const Shape& shape : {Shape{4100}, Shape{40, 264}, Shape{9, 30}}) {
        Tensor p = make(shape, 1);
        p.grad() = make(shape, 2).detach();
        optim::Adafactor optimizer({{"p", p}}, {.rate = 0.05, .beta1 = 0.5});
        optimizer.step();
        optimizer.step();
        all.push_back(to_host<double>(p));
        for (const optim::Named& state : optimizer.state()) all.push_back(to_host<double>(state.tensor));
      }
      return all;
    };
    const Values here = run(cpu, 0);
    for (const std::int64_t askew : {0, 1, 4}) {
      INFO("askew by " << askew);
      CHECK(same(run(cuda(), askew), here));
    }
  }
}

TEST_CASE("cuda_words: sigmoid without a division has the bits of the one with it", "[cuda]") {
  std::uint64_t differences = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 3001) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const float e = math::detail::exp_of_negative(math::detail::magnitude_of(x)), exact = 1.0f / (1.0f + e);
    const std::uint32_t expected = std::bit_cast<std::uint32_t>(math::sigmoid(x));
    for (const int off : {-2, -1, 0, 1, 2}) {
      const float near = std::bit_cast<float>(std::bit_cast<std::uint32_t>(exact) + static_cast<std::uint32_t>(off));
      differences += std::bit_cast<std::uint32_t>(math::detail::sigmoid_by(x, near)) != expected ? 1 : 0;
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("cuda_words: FP8 codes are those that the instruction of a GPU gives", "[cuda][fp8]") {
  check_codes<f8e4m3>();
  check_codes<f8e5m2>();
}

TEST_CASE("cuda_words: two values become 16 bits as the instruction of a GPU has it", "[cuda]") {
  // To nearest, ties to even, overflow to infinity, computed in f64.
  const auto expected = [](float x, int digits, int least, double largest) {
    if (x == 0 || std::isinf(x)) return static_cast<double>(x);
    int exponent = 0;
    std::frexp(static_cast<double>(x), &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent - digits, least));
    const double rounded = std::nearbyint(static_cast<double>(x) / unit) * unit;
    return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), rounded) : rounded;
  };
  std::uint64_t differences = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) continue;
    differences += static_cast<double>(static_cast<float>(f16(x))) != expected(x, 11, -24, 65504) ? 1 : 0;
    differences += static_cast<double>(static_cast<float>(bf16(x))) != expected(x, 8, -133, 0x1.FEp127) ? 1 : 0;
  }
  CHECK(differences == 0);
}
