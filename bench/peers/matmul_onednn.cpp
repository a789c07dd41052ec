// oneDNN's matmul on the shapes of shapes.h: `matmul_onednn [THREADS]`. "f32" and "bf16" take plain matrices;
// "f32-packed" and "bf16-packed" let oneDNN choose the right operand's layout and do not time the reordering.

#include <omp.h>
#include <dnnl.hpp>

#include "shapes.h"

namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

void run(const char* kind, Type type, Type c_type, Tag b_tag, const peers::Shape& shape, int threads) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::memory::desc a({shape.m, shape.k}, type, Tag::ab), b({shape.k, shape.n}, type, b_tag),
      c({shape.m, shape.n}, c_type, Tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, a, b, c);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine);
#endif
  const dnnl::matmul matmul(description);
  const auto filled = [&](const dnnl::memory::desc& desc) {
    const auto count = static_cast<std::int64_t>(desc.get_size() / sizeof(float));
    return type == Type::f32 ? peers::floats(count) : peers::zeros(desc.get_size());
  };
  const peers::Memory a_bytes = filled(a), b_bytes = filled(description.weights_desc()),
                      c_bytes = peers::zeros(c.get_size());
  dnnl::memory a_memory(a, engine, a_bytes.get()), b_memory(description.weights_desc(), engine, b_bytes.get()),
      c_memory(c, engine, c_bytes.get());
  peers::report(kind, shape, threads, [&] {
    matmul.execute(stream, {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}});
    stream.wait();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = peers::threads_of(argc, argv);
  omp_set_num_threads(threads);
  for (const peers::Shape& shape : peers::shapes) {
    run("f32", Type::f32, Type::f32, Tag::ab, shape, threads);
    run("f32-packed", Type::f32, Type::f32, Tag::any, shape, threads);
  }
  for (const peers::Shape& shape : peers::shapes) {
    run("bf16", Type::bf16, Type::f32, Tag::ab, shape, threads);
    run("bf16-packed", Type::bf16, Type::f32, Tag::any, shape, threads);
  }
}
