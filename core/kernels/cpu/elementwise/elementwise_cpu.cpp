// The CPU table of the built-in elementwise operators: the list, expanded.

#include <algorithm>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/elementwise/elementwise_chunk.h>
#include <thimble/core/kernels/cpu/elementwise/elementwise_dense.h>
#include <thimble/core/kernels/elementwise.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {

// ---- Strides, broadcasting, dtype conversion and threads of all elementwise operators: every operand is loaded into
// a short contiguous buffer of the compute type (or used in place if it already is one), then the functor's chunk
// runs.

namespace elementwise_detail {

constexpr std::int64_t chunk_elements = 512;
constexpr std::int64_t grain_elements = 32 * chunk_elements;

// An operand and its walk.
struct Walk {
  const std::byte* data;
  DType dtype;
  MergedStrides<1> strides;

  Walk(const Shape& shape, const ElementwiseOperand& operand)
      : data(static_cast<const std::byte*>(operand.data)), dtype(operand.dtype), strides(shape, {&operand.strides}) {}

  bool is_dense() const { return strides.rank == 1 && (strides.stride(0, 0) == 1 || strides.sizes[0] == 1); }
};

template <class T>
void load_run(const Walk& walk, std::int64_t element, std::int64_t stride, T* to, std::int64_t n) {
  const std::byte* from = walk.data + element * static_cast<std::int64_t>(size_of(walk.dtype));
  if constexpr (std::is_same_v<T, float>) {
    load_f32(from, walk.dtype, stride, to, n);
  } else if constexpr (std::is_same_v<T, double>) {
    load_f64(from, walk.dtype, stride, to, n);
  } else {
    load_i64(from, walk.dtype, stride, to, n);
  }
}

// Loads elements [begin, begin + n), counted in row-major order of the common shape, into `buffer`.
template <class T>
void gather(const Walk& walk, std::int64_t begin, std::int64_t n, T* buffer) {
  const std::int64_t stride = walk.strides.stride(0, walk.strides.rank - 1);
  walk.strides.for_each_run(begin, begin + n, [&](const std::array<std::int64_t, 1>& offset, std::int64_t run) {
    load_run(walk, offset[0], stride, buffer, run);
    buffer += run;
  });
}

template <class T>
void store_chunk(const T* from, void* out, DType dtype, std::int64_t begin, std::int64_t n) {
  std::byte* to = static_cast<std::byte*>(out) + begin * static_cast<std::int64_t>(size_of(dtype));
  if constexpr (std::is_same_v<T, float>) {
    store_f32(from, to, dtype, 1, n);
  } else if constexpr (std::is_same_v<T, double>) {
    store_f64(from, to, dtype, 1, n);
  } else {
    store_i64(from, to, dtype, 1, n);
  }
}

template <class T>
void loop(ElementwiseChunk chunk, const void* functor, const ElementwiseArgs& args) {
  // Slots past the last input repeat the first one and are not read.
  const auto walk_of = [&](int i) {
    return Walk(args.shape, args.in[static_cast<std::size_t>(i < args.inputs ? i : 0)]);
  };
  const std::array<Walk, max_elementwise_inputs> walks{walk_of(0), walk_of(1), walk_of(2), walk_of(3), walk_of(4)};
  const bool is_stored_directly = args.out_dtype == dtype_of<T>;
  parallel_for(args.shape.elements(), grain_elements, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T buffers[max_elementwise_inputs][chunk_elements];
    alignas(64) T result[chunk_elements];
    for (std::int64_t at = begin; at < end; at += chunk_elements) {
      const std::int64_t n = std::min(chunk_elements, end - at);
      std::array<const void*, max_elementwise_inputs> in{};
      for (int i = 0; i < args.inputs; ++i) {
        const Walk& walk = walks[static_cast<std::size_t>(i)];
        if (walk.is_dense() && walk.dtype == dtype_of<T>) {
          in[static_cast<std::size_t>(i)] = reinterpret_cast<const T*>(walk.data) + at;
        } else {
          gather(walk, at, n, buffers[i]);
          in[static_cast<std::size_t>(i)] = buffers[i];
        }
      }
      T* const out = is_stored_directly ? static_cast<T*>(args.out) + at : result;
      chunk(functor, in.data(), out, n);
      if (!is_stored_directly) store_chunk(result, args.out, args.out_dtype, at, n);
    }
  });
}

ElementwiseChunk pick_f32(const ElementwiseFunction& function) {
  if (isa() == Isa::avx512 && function.f32_avx512) return function.f32_avx512;
  if (isa() >= Isa::avx2 && function.f32_avx2) return function.f32_avx2;
  return function.f32_generic;
}

template <class T>
void dense_loop(ElementwiseChunk chunk, const void* functor, const DenseElementwise& args) {
  parallel_for(args.elements, grain_elements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += chunk_elements) {
      std::array<const void*, max_elementwise_inputs> in;
      for (int i = 0; i < args.inputs; ++i) {
        const auto slot = static_cast<std::size_t>(i);
        in[slot] = static_cast<const T*>(args.in[slot]) + at;
      }
      chunk(functor, in.data(), static_cast<T*>(args.out) + at, std::min(chunk_elements, end - at));
    }
  });
}

}  // namespace elementwise_detail

void elementwise_dense_cpu(const ElementwiseFunction& function, const void* functor, const DenseElementwise& args) {
  switch (args.dtype) {
    case DType::f32:
      return elementwise_detail::dense_loop<float>(elementwise_detail::pick_f32(function), functor, args);
    case DType::f64:
      return elementwise_detail::dense_loop<double>(function.f64, functor, args);
    default:
      return elementwise_detail::dense_loop<std::int64_t>(function.i64, functor, args);
  }
}

void elementwise_cpu(const ElementwiseFunction& function, const void* functor, const ElementwiseArgs& args) {
  switch (args.compute) {
    case ComputeType::f32:
      return elementwise_detail::loop<float>(elementwise_detail::pick_f32(function), functor, args);
    case ComputeType::f64:
      return elementwise_detail::loop<double>(function.f64, functor, args);
    case ComputeType::i64:
      return elementwise_detail::loop<std::int64_t>(function.i64, functor, args);
  }
}

namespace elementwise_table_detail {

template <class... Ops>
const ElementwiseEntry* expand(ops::TypeList<Ops...>) {
  static constexpr ElementwiseEntry table[] = {elementwise_entry<Ops>...};
  return table;
}

}  // namespace elementwise_table_detail

const ElementwiseEntry* const elementwise_cpu_table = elementwise_table_detail::expand(ops::BuiltinElementwise{});

}  // namespace thimble::kernels
