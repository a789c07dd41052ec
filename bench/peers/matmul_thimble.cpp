// This library's matmul on the shapes of shapes.h: `matmul_thimble [THREADS]`. "f32" goes through matmul_into(), with
// its checks and its workspace; "bf16", "u8s8" and "s8s8" multiply a packed right operand.

#include <thimble/core/kernels/cpu/matmul/gemm_dot.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

#include "shapes.h"

namespace {

using namespace thimble;

void run_f32(const peers::Shape& shape, int threads) {
  const Tensor a = full({shape.m, shape.k}, 0.25), b = full({shape.k, shape.n}, 0.5), c = full({shape.m, shape.n}, 0);
  const MatmulCall call{"matmul_thimble", a, b, c, Tensor(), Tensor()};
  peers::report("f32", shape, threads, [&] { matmul_into(call); });
}

void run_packed(const char* kind, DType a_dtype, DType b_dtype, const peers::Shape& shape, int threads) {
  const std::optional<kernels::DotUnit> best = kernels::best_dot_unit(b_dtype);
  if (!best) return;
  const kernels::DotUnit unit = *best;
  const auto element = static_cast<std::int64_t>(size_of(b_dtype));
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements * element); };
  const peers::Memory a = peers::zeros(bytes(shape.m * shape.k)), b = peers::zeros(bytes(shape.k * shape.n)),
                      c = peers::zeros(static_cast<std::size_t>(shape.m * shape.n) * 4),
                      packed = peers::zeros(kernels::dot_packed_bytes(shape.k, shape.n, b_dtype));
  kernels::DotGemmArgs args;
  args.m = shape.m;
  args.n = args.b_row_stride = args.c_row_stride = shape.n;
  args.k = args.a_row_stride = shape.k;
  args.a_dtype = a_dtype;
  args.b_dtype = b_dtype;
  args.a = a.get();
  args.b = b.get();
  args.c = c.get();
  kernels::pack_dot_right(args, packed.get(), unit);
  args.packed_b = packed.get();
  peers::report(kind, shape, threads, [&] { kernels::dot_gemm(args, nullptr, threads, unit); });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = peers::threads_of(argc, argv);
  set_thread_count(threads);
  for (const peers::Shape& shape : peers::shapes) run_f32(shape, threads);
  for (const peers::Shape& shape : peers::shapes) {
    run_packed("bf16", DType::bf16, DType::bf16, shape, threads);
    run_packed("u8s8", DType::u8, DType::i8, shape, threads);
    run_packed("s8s8", DType::i8, DType::i8, shape, threads);
  }
}
