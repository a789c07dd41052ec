// Products of a GPU's library and the work after them: on the emulated device, with plain loops as the library.

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/view.h>

#include "emulated/library.h"
#include "support/catch.h"
#include "support/fp8_twin.h"
#include "support/operator_table.h"

using namespace thimble;
using fp8_test::spread;
using kernels::Activation;
using thimble::testing::check_near;
using thimble::testing::has_cuda;

TEST_CASE("cuda library: linear layers near the CPU's, the same bits whether anything is kept or not", "[cuda]") {
  if (!has_cuda()) return;
  const emulated::LibraryScope library;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Activation activation :
         {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
      for (const bool has_bias : {false, true}) {
        INFO(to_string(dtype) << ", activation " << static_cast<int>(activation) << ", bias " << has_bias);
        const Tensor dy = spread({3, 7, 24}, 1, dtype, 4);
        const auto run = [&](memory::Device device, bool recomputes) {
          Tensor x = to_device(spread({3, 7, 40}, 2, dtype, 1), device);
          const Tensor w = to_device(spread({24, 40}, 0.3, dtype, 2), device);
          const Tensor b = has_bias ? to_device(spread({24}, 1, dtype, 3), device) : Tensor();
          x.require_grad();
          Tape tape;
          Tensor y;
          {
            const Recording on(tape);
            const auto layer = [&](const Tensor& t) { return linear(t, w, b, activation); };
            y = recomputes ? checkpoint([&](const Tensor& t) { return layer(mul(t, 1.0)); }, x) : layer(x);
          }
          tape.backward(y, to_device(dy, device));
          const NoGrad off;
          return std::vector<Tensor>{y.detach(), x.grad(), linear(x.detach(), w, b, activation)};
        };
        const std::vector<Tensor> here = run(cpu, false), there = run(cuda(), false), again = run(cuda(), true);
        const double tolerance = dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 2e-3 : 2e-2;
        for (std::size_t i = 0; i < here.size(); ++i) {
          check_near(there[i], here[i], tolerance);
          CHECK(to_host<double>(again[i]) == to_host<double>(there[i]));
        }
        CHECK(to_host<double>(there[2]) == to_host<double>(there[0]));
      }
    }
  }
}

TEST_CASE("cuda library: narrow operands, a result in f32", "[cuda]") {
  if (!has_cuda()) return;
  const emulated::LibraryScope library;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto run = [&](memory::Device device) {
      const Tensor a = to_device(spread({2, 9, 32}, 1, dtype, 1), device);
      const Tensor b = to_device(spread({2, 32, 12}, 1, dtype, 2), device);
      const Tensor c = full({2, 9, 12}, 0.5, DType::f32, device);
      MatmulCall call{"product", a, b, c, {}, {}};
      call.accumulate = true;
      call.alpha = 0.25;
      matmul_into(call);
      return c;
    };
    check_near(run(cuda()), run(cpu), 1e-6);
  }
}

TEST_CASE("cuda library: a convolution's bias is added behind it", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool has_bias : {false, true}) {
      INFO(to_string(dtype) << ", bias " << has_bias);
      const auto run = [&](memory::Device device) {
        const Tensor x = to_device(spread({2, 9, 7, 5}, 1, dtype, 1), device);
        const Tensor w = to_device(spread({6, 3, 3, 5}, 0.3, dtype, 2), device);
        const Tensor b = has_bias ? to_device(spread({6}, 1, dtype, 3), device) : Tensor();
        return conv2d(x, w, b, {.stride = 2, .padding = 1});
      };
      const emulated::LibraryScope library;
      check_near(run(cuda()), run(cpu), dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 2e-3 : 2e-2);
    }
  }
}

TEST_CASE("cuda library: empty convolutions, and a bias that begins anywhere", "[cuda]") {
  if (!has_cuda()) return;
  const emulated::LibraryScope library;
  for (const auto& [images, channels] : {std::pair<std::int64_t, std::int64_t>{0, 4}, {2, 0}}) {
    INFO(images << " images of " << channels << " channels");
    Tensor x = zeros({images, 5, 5, channels}, DType::f32, cuda());
    Tensor w = zeros({3, 3, 3, channels}, DType::f32, cuda());
    x.require_grad();
    w.require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = conv2d(x, w, full({3}, 2, DType::f32, cuda()), {.padding = 1});
    }
    CHECK(to_host<float>(y) == std::vector<float>(static_cast<std::size_t>(images * 75), 2));
    tape.backward(y, full({images, 5, 5, 3}, 1, DType::f32, cuda()));
    CHECK(x.grad().shape() == x.shape());
    CHECK(to_host<float>(w.grad()) == std::vector<float>(static_cast<std::size_t>(27 * channels)));
  }
  const auto run = [](memory::Device device) {
    const Tensor bias = to_device(spread({33}, 1, DType::f32, 3), device);
    return linear(to_device(spread({8, 16}, 1, DType::f32, 1), device),
                  to_device(spread({32, 16}, 1, DType::f32, 2), device), view::slice(bias, 0, 1, 33));
  };
  check_near(run(cuda()), run(cpu), 1e-6);
}

TEST_CASE("cuda library: NaN stays one behind relu", "[cuda]") {
  if (!has_cuda()) return;
  const emulated::LibraryScope library;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool has_bias : {false, true}) {
      INFO(to_string(dtype) << ", bias " << has_bias);
      std::vector<float> values(16 * 32, 0.25f);
      values[5 * 32 + 3] = std::numeric_limits<float>::quiet_NaN();
      const Tensor x = to_device(to_dtype(from_host(values, {16, 32}), dtype), cuda());
      const Tensor b = has_bias ? full({24}, -1, dtype, cuda()) : Tensor();
      const std::vector<double> y = to_host<double>(linear(x, full({24, 32}, 0.5, dtype, cuda()), b, Activation::relu));
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < y.size(); ++i) wrong += std::isnan(y[i]) != (i / 24 == 5);
      CHECK(wrong == 0);
    }
  }
}
