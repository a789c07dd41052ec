// Thimble's matmul on the shapes of shapes.h: `matmul_thimble [THREADS]`, through matmul_into() with its checks and
// workspace. Adds "bf16" with an f32 result where matmul has a bf16 unit.

#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

#include "shapes.h"

namespace {

using namespace thimble;

void run(const char* kind, DType dtype, const peers::Shape& shape, int threads) {
  const Tensor a = full({shape.m, shape.k}, 0.25, dtype), b = full({shape.k, shape.n}, 0.5, dtype);
  const Tensor c = full({shape.m, shape.n}, 0);
  const MatmulCall call{"matmul_thimble", a, b, c, Tensor(), Tensor()};
  peers::report(kind, shape, threads, [&] { matmul_into(call); });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = peers::threads_of(argc, argv);
  set_thread_count(threads);
  for (const peers::Shape& shape : peers::shapes) run("f32", DType::f32, shape, threads);
  if (!kernels::bf16_unit(kernels::Product::gemm)) return 0;
  for (const peers::Shape& shape : peers::shapes) run("bf16", DType::bf16, shape, threads);
}
