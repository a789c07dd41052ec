// OpenBLAS's sgemm on the shapes of shapes.h: `matmul_openblas [THREADS]`.

#include <cblas.h>

#include "shapes.h"

extern "C" void openblas_set_num_threads(int threads);

int main(int argc, char** argv) {
  const int threads = peers::threads_of(argc, argv);
  openblas_set_num_threads(threads);
  for (const peers::Shape& shape : peers::shapes) {
    const auto m = static_cast<int>(shape.m), n = static_cast<int>(shape.n), k = static_cast<int>(shape.k);
    const peers::Memory a = peers::floats(shape.m * shape.k), b = peers::floats(shape.k * shape.n),
                        c = peers::floats(shape.m * shape.n);
    peers::report("f32", shape, threads, [&] {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0F, static_cast<const float*>(a.get()), k,
                  static_cast<const float*>(b.get()), n, 0.0F, static_cast<float*>(c.get()), n);
    });
  }
}
