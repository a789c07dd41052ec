// What errors of CUDA and its libraries say, as far as no call has to fail for it.

#include <cstdint>

#include <thimble/cuda/runtime/library.h>

#include "support/catch.h"

using namespace thimble;

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
