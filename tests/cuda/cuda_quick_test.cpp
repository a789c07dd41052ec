// The arithmetic of 16-bit elements on a CUDA device: every value of f16 and bf16 through every function, compared with
// the exact result.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/ops/text.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>
#include <thimble/cuda/kernel/words.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace cuda_quick_test {

/// All 65,536 values of a dtype, as (256, 256).
template <class S>
Tensor all_values() {
  std::vector<S> values;
  for (unsigned bits = 0; bits < 65536; ++bits) values.push_back(S::from_bits(static_cast<std::uint16_t>(bits)));
  return from_host(values, {256, 256});
}

struct Function {
  const char* name;
  std::function<Tensor(const Tensor&)> call;
  double (*exact)(double);
};

double sigmoid_of(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

const std::vector<Function>& functions() {
  static const std::vector<Function> all{
      {"exp", [](const Tensor& x) { return exp(x); }, [](double x) { return std::exp(x); }},
      {"log", [](const Tensor& x) { return log(x); }, [](double x) { return std::log(x); }},
      {"tanh", [](const Tensor& x) { return thimble::tanh(x); }, [](double x) { return std::tanh(x); }},
      {"sigmoid", [](const Tensor& x) { return sigmoid(x); }, sigmoid_of},
      {"softplus", [](const Tensor& x) { return softplus(x); },
       [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }},
      {"silu", [](const Tensor& x) { return silu(x); }, [](double x) { return x * sigmoid_of(x); }},
      {"gelu", [](const Tensor& x) { return gelu(x); },
       [](double x) { return x * sigmoid_of(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }},
      {"gelu by erf", [](const Tensor& x) { return gelu(x, GeluForm::erf); },
       [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2)); }},
      {"erf", [](const Tensor& x) { return erf(x); }, [](double x) { return std::erf(x); }},
      {"reciprocal", [](const Tensor& x) { return reciprocal(x); }, [](double x) { return 1 / x; }},
      {"divided", [](const Tensor& x) { return x / 3.0; }, [](double x) { return x / 3; }}};
  return all;
}

/// Whether y is the exact value rounded to S, within 2^-14 of it, and within a factor that is subnormal in f32.
template <class S>
bool is_rounded(double x, double y, double exact) {
  if (std::isnan(exact)) return std::isnan(y);
  const double largest = static_cast<double>(static_cast<float>(S::from_bits(S::Format::max_code)));
  int exponent = 0;
  std::frexp(exact, &exponent);
  const int digits = std::is_same_v<S, f16> ? 11 : 8, least = std::is_same_v<S, f16> ? -24 : -133;
  const double unit = std::ldexp(1.0, std::max(exponent - digits, least));
  const double slack = std::fabs(exact) * 0x1p-14;
  if (std::isinf(y)) return std::fabs(exact) + slack >= largest + unit / 2 && std::signbit(y) == std::signbit(exact);
  return std::fabs(y - exact) <= unit / 2 + slack + std::max(1.0, std::fabs(x)) * 0x1p-126;
}

template <class S>
void check_functions() {
  const Tensor here = all_values<S>(), there = to_device(here, cuda());
  const std::vector<double> x = to_host<double>(here);
  for (const Function& f : functions()) {
    INFO(f.name << " in " << to_string(dtype_of<S>));
    const std::vector<double> y = to_host<double>(f.call(there));
    std::size_t wrong = 0, other = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool is_right = is_rounded<S>(x[i], y[i], f.exact(x[i]));
      if (!is_right && wrong++ < 3) UNSCOPED_INFO(x[i] << " gives " << y[i] << ", exactly " << f.exact(x[i]));
    }
    CHECK(wrong == 0);
    // As columns: strided elements have the bits of contiguous ones.
    const std::vector<double> apart = to_host<double>(view::transpose(f.call(view::transpose(there))));
    for (std::size_t i = 0; i < x.size(); ++i) {
      other += std::bit_cast<std::uint64_t>(apart[i]) != std::bit_cast<std::uint64_t>(y[i]) && !std::isnan(y[i]);
    }
    CHECK(other == 0);
  }
}

}  // namespace cuda_quick_test

using namespace cuda_quick_test;

TEST_CASE("cuda_quick: functions of 16 bits are the exact ones rounded, or the neighbour near a middle", "[cuda]") {
  if (!has_cuda()) return;
  check_functions<bf16>();
  check_functions<f16>();
}

TEST_CASE("cuda_quick: what is positive when it is rounded", "[cuda]") {
  std::uint64_t differences = 0;
  const auto compare = [&](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    const bool in_f16 = static_cast<float>(f16(x)) > 0, in_bf16 = static_cast<float>(bf16(x)) > 0;
    differences += cuda_kernels::is_positive_as<f16>(x) != in_f16;
    differences += cuda_kernels::is_positive_as<bf16>(x) != in_bf16;
    differences += cuda_kernels::is_positive_as<float>(x) != (x > 0);
  };
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) compare(static_cast<std::uint32_t>(bits));
  for (const float middle : {0x1p-25f, 0x1p-134f}) {
    for (std::uint32_t off = 0; off < 5; ++off) compare(std::bit_cast<std::uint32_t>(middle) - 2 + off);
  }
  CHECK(differences == 0);
}

// ---- Dropout on a CUDA device, four elements per word and one by one, has the CPU's bits, forward and backward. On a
// GPU if there is one, otherwise on tests/emulated.

using thimble::testing::has_cuda;

namespace {

// The result and x's gradient; x begins `askew` elements after an aligned address.
std::vector<double> run(const Shape& shape, DType dtype, memory::Device device, std::int64_t askew) {
  RandomGenerator values(4);
  const std::int64_t n = shape.elements();
  const Tensor flat = normal({n + askew}, 0, 1, dtype, cpu, values.next_site(0));
  Tensor moved = Tensor::empty({n + askew}, dtype, cpu);
  copy_into(view::slice(moved, 0, askew, n + askew), view::slice(flat, 0, 0, n));
  Tensor x = view::reshape(view::slice(to_device(moved, device), 0, askew, n + askew), shape);
  x.require_grad();
  RandomGenerator generator(6);
  const GeneratorScope scope(generator);
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = dropout(x, 0.3);
  }
  tape.backward(y, to_device(normal(shape, 0, 1, dtype, cpu, values.next_site(0)), device));
  std::vector<double> all = to_host<double>(y);
  for (const double g : to_host<double>(x.grad())) all.push_back(g);
  return all;
}

}  // namespace

TEST_CASE("cuda_dropout: words, single elements and the CPU agree bitwise", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Shape& shape : {Shape{8, 64}, Shape{6, 20, 4}, Shape{3, 5, 7}, Shape{1, 4}}) {
      const std::vector<double> here = run(shape, dtype, cpu, 0);
      std::size_t dropped = 0;
      for (const double v : here) dropped += v == 0;
      if (here.size() > 100) CHECK((dropped > here.size() / 5 && dropped < here.size() / 2));
      for (const std::int64_t askew : {0, 1}) {
        INFO(to_string(dtype) << " of " << to_string(shape) << ", askew by " << askew);
        const std::vector<double> there = run(shape, dtype, cuda(), askew);
        std::size_t different = here.size() != there.size();
        for (std::size_t i = 0; i < std::min(here.size(), there.size()); ++i) {
          different += std::bit_cast<std::uint64_t>(here[i]) != std::bit_cast<std::uint64_t>(there[i]);
        }
        CHECK(different == 0);
      }
    }
  }
}
