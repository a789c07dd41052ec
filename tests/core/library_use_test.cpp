// Calls that the rules leave to a GPU's libraries are counted, made or refused. On a GPU if there is one, otherwise on
// tests/emulated, whose library makes products on request, and no convolution.

#include <cstdint>
#include <string>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/cuda/runtime/library.h>
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

// ---- Error texts of CUDA and its libraries, as far as they need no failing call.

TEST_CASE("call text: a call has its arguments, with units of their own where they have some", "[cuda]") {
  CHECK(gpu::call_text("cudaGetDeviceCount") == "cudaGetDeviceCount()");
  CHECK(gpu::call_text("cuMemCreate", std::size_t{2} << 20, cuda(3)) == "cuMemCreate(2097152, cuda:3)");
  const void* const from = reinterpret_cast<const void*>(std::uintptr_t{0x1000});
  CHECK(gpu::call_text("cudaMemcpyAsync", from, 12, "host to device") == "cudaMemcpyAsync(0x1000, 12, host to device)");
  CHECK(gpu::call_text("cudnnCreate", DType::bf16) == "cudnnCreate(bf16)");
}

TEST_CASE("call text: a failure names the operation that it was part of", "[cuda]") {
  CHECK(gpu::failure_text("f(1)", "E_NAME", "it means this") == "f(1): E_NAME: it means this");
  CHECK(gpu::failure_text("f(1)", "it means this", "") == "f(1): it means this");
  kernels::GemmArgs product;
  product.m = 128, product.k = 64, product.n = 32;
  product.dtype = product.c_dtype = DType::bf16;
  product.batch_rank = 1;
  product.batch[0] = {12, 0, 0, 0, 0};
  {
    const gpu::Doing doing(product, 4096);
    CHECK(gpu::failure_text("cublasLtMatmul", "CUBLAS_STATUS_X", "broken") ==
          "cublasLtMatmul: CUBLAS_STATUS_X: broken; in product (128, 64) x (64, 32) of bf16, matrices 12 on cpu, "
          "workspace 4096 bytes");
    kernels::ConvForwardArgs convolution;
    convolution.shape = {.images = 2,
                         .height = 9,
                         .width = 8,
                         .channels = 6,
                         .filters = 4,
                         .kernel_h = 3,
                         .kernel_w = 5,
                         .stride_h = 2,
                         .pad_top = 1,
                         .groups = 2};
    convolution.dtype = DType::f16;
    const gpu::Doing inner(convolution, 0);
    CHECK(gpu::Doing::text() ==
          "; in convolution of images (2, 9, 8, 6), weight (4, 3, 5, 3) of f16, stride 2 x 1, padding 1 0 0 0, "
          "dilation 1 x 1, groups 2 on cpu, workspace 0 bytes");
  }
  CHECK(gpu::Doing::text().empty());
  product.c_dtype = DType::f32, product.accumulate = true, product.batch_rank = 0;
  CHECK(gpu::describe(product) == "product (128, 64) x (64, 32) of bf16 to f32, added to what is there");
}
