// What the libraries of a GPU do and refuse of what the rules leave to them is counted. On a GPU where there is one,
// else on tests/emulated, whose library makes products where a test asks for one, and no convolution.

#include <string>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/memory/summary.h>

#include "emulated/library.h"
#include "support/catch.h"
#include "support/fp8_twin.h"
#include "support/operator_table.h"

using namespace thimble;
using fp8_test::spread;
using thimble::testing::check_near;
using thimble::testing::has_cuda;

namespace library_use_test {

kernels::LibraryUse use() { return kernels::device_runtime(cuda()).library_use(); }

Tensor product(DType dtype) {
  const Tensor a = to_device(spread({6, 32}, 1, dtype, 1), cuda());
  const Tensor b = to_device(spread({32, 16}, 1, dtype, 2), cuda());
  const Tensor c = Tensor::empty({6, 16}, dtype, cuda());
  matmul_into({"product", a, b, c, {}, {}});
  return c;
}

/// relu of a convolution: the rule leaves it to cuDNN, whose algorithm has no activation.
Tensor convolution(memory::Device device) {
  const Tensor x = to_device(spread({2, 5, 5, 16}, 1, DType::f32, 3), device);
  const Tensor weight = to_device(spread({16, 3, 3, 16}, 1, DType::f32, 4), device);
  const Tensor y = Tensor::empty({2, 5, 5, 16}, DType::f32, device);
  kernels::ConvForwardArgs args;
  args.shape = {.images = 2, .height = 5, .width = 5, .channels = 16, .filters = 16, .kernel_h = 3, .kernel_w = 3};
  args.shape.pad_top = args.shape.pad_bottom = args.shape.pad_left = args.shape.pad_right = 1;
  args.activation = kernels::Activation::relu;
  const kernels::MatmulKernels& table = kernels::matmul_kernels(device);
  const auto bytes = static_cast<std::int64_t>(table.conv_forward_bytes(args, 1));
  const Tensor workspace = Tensor::empty({bytes + 1}, DType::u8, device);
  launch(device, [&](const Addresses& at) {
    args.x = at(x), args.weight = at(weight), args.y = at(y);
    table.conv_forward(args, at(workspace), 1);
  });
  return y;
}

}  // namespace library_use_test

using namespace library_use_test;

TEST_CASE("cuda: what a library refuses is counted, and computed by the own kernel", "[cuda]") {
  if (!has_cuda()) return;
  const kernels::LibraryUse start = use();
  {
    const emulated::LibraryScope library;
    product(DType::f32), product(DType::bf16);
  }
  const kernels::LibraryUse made = use();
  CHECK(made.cublaslt.calls == start.cublaslt.calls + 2);
  CHECK(made.cublaslt.refusals == start.cublaslt.refusals);
  product(DType::f64);  // no rule leaves it to a library
  CHECK(use().cublaslt.calls == made.cublaslt.calls);
  CHECK(use().cublaslt.refusals == made.cublaslt.refusals);

  check_near(convolution(cuda()), convolution(cpu), 1e-6);
  const kernels::LibraryUse refused = use();
  CHECK(refused.cudnn.refusals == start.cudnn.refusals + 1);
  CHECK(refused.cudnn.calls == start.cudnn.calls);
  CHECK(refused.cublaslt.refusals == made.cublaslt.refusals);
  CHECK(refused.cudnn.first_refused.find("convolution of images (") != std::string::npos);
  if (kernels::device_runtime(cuda()).devices().front().name.find("emulated") != std::string::npos) {
    product(DType::f32);  // without a library
    CHECK(use().cublaslt.refusals == refused.cublaslt.refusals + 1);
    CHECK(use().cublaslt.calls == refused.cublaslt.calls);
    CHECK(use().cublaslt.first_refused.find("product (") == 0);
  }
  const std::string text = memory::summary(cuda());
  CHECK(text.find("\n  libraries: " + memory::to_string(use()) + "\n") != std::string::npos);
  CHECK(memory::summary(cpu).find("libraries:") == std::string::npos);
  CHECK(memory::to_string(kernels::LibraryUse{{12, 0, ""}, {3, 1, "convolution of ..."}}) ==
        "cuBLASLt made 12 calls and refused 0; cuDNN made 3 calls and refused 1, the first: convolution of ...");
}
