// Strided copies with dtype conversion, and fills, on CUDA devices.

#include <thimble/core/kernels/copy.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/words.h>

namespace thimble::kernels {
namespace copy_cuda_detail {

using namespace cuda_kernels;

constexpr std::int64_t vector_elements = 8;

// Moves elements of one size unchanged.
template <class Word>
struct Move {
  Walk<2> walk;
  const Word* from;
  Word* to;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.locate(i, at);
    to[at[1]] = from[at[0]];
  }
};

// 16 bytes at a time.
struct alignas(16) Bytes16 {
  std::uint64_t low, high;
};
struct MoveDense {
  const Bytes16* from;
  Bytes16* to;
  THIMBLE_DEVICE void operator()(std::int64_t i) const { to[i] = from[i]; }
};

// Converts through the source's compute type, which holds it exactly, so it rounds once.
template <class T>
struct Convert {
  Walk<2> walk;
  const void* from;
  DType from_dtype;
  void* to;
  DType to_dtype;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.locate(i, at);
    const T value = load<T>(from, from_dtype, at[0]);
    switch (to_dtype) {
      case DType::f64:
        static_cast<double*>(to)[at[1]] = convert_value<double>(value);
        break;
      case DType::f32:
        static_cast<float*>(to)[at[1]] = convert_value<float>(value);
        break;
      case DType::f16:
        static_cast<f16*>(to)[at[1]] = convert_value<f16>(value);
        break;
      case DType::bf16:
        static_cast<bf16*>(to)[at[1]] = convert_value<bf16>(value);
        break;
      case DType::f8e4m3:
        static_cast<f8e4m3*>(to)[at[1]] = convert_value<f8e4m3>(value);
        break;
      case DType::f8e5m2:
        static_cast<f8e5m2*>(to)[at[1]] = convert_value<f8e5m2>(value);
        break;
      case DType::i8:
        static_cast<std::int8_t*>(to)[at[1]] = convert_value<std::int8_t>(value);
        break;
      case DType::i32:
        static_cast<std::int32_t*>(to)[at[1]] = convert_value<std::int32_t>(value);
        break;
      case DType::i64:
        static_cast<std::int64_t*>(to)[at[1]] = convert_value<std::int64_t>(value);
        break;
      case DType::u8:
        static_cast<std::uint8_t*>(to)[at[1]] = convert_value<std::uint8_t>(value);
        break;
      case DType::boolean:
        static_cast<bool*>(to)[at[1]] = convert_value<bool>(value);
        break;
    }
  }
};

// Casts of mixed precision: eight neighbouring elements of 2 and 4 bytes.
template <class From, class To>
struct ConvertDense {
  const From* from;
  To* to;
  std::int64_t n;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t begin = i * vector_elements;
    if (begin + vector_elements > n) {
      for (std::int64_t at = begin; at < n; ++at) to[at] = convert_value<To>(from[at]);
      return;
    }
    struct alignas(16) Sources {
      From values[vector_elements];
    };
    struct alignas(16) Targets {
      To values[vector_elements];
    };
    const Sources sources = *reinterpret_cast<const Sources*>(from + begin);
    Targets targets;
    for (int k = 0; k < vector_elements; ++k) targets.values[k] = convert_value<To>(sources.values[k]);
    *reinterpret_cast<Targets*>(to + begin) = targets;
  }
};

template <class T>
struct Fill {
  Walk<1> walk;
  T value;
  T* to;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    std::int64_t at[1];
    walk.locate(i, at);
    to[at[0]] = value;
  }
};

template <class F>
void with_word(std::size_t bytes, F&& f) {
  if (bytes == 1) return f(std::uint8_t{});
  if (bytes == 2) return f(std::uint16_t{});
  if (bytes == 4) return f(std::uint32_t{});
  f(std::uint64_t{});
}

void move(const CopyArgs& args, const Walk<2>& walk, std::int64_t n, bool is_dense) {
  const std::int64_t size = static_cast<std::int64_t>(size_of(args.to_dtype));
  if (is_dense && n * size % 16 == 0 && are_aligned({args.from, args.to})) {
    for_each_item(n * size / 16, MoveDense{static_cast<const Bytes16*>(args.from), static_cast<Bytes16*>(args.to)});
    return;
  }
  with_word(size_of(args.to_dtype), [&](auto word) {
    using Word = decltype(word);
    for_each_item(n, Move<Word>{walk, static_cast<const Word*>(args.from), static_cast<Word*>(args.to)});
  });
}

template <class From, class To>
bool convert_dense(const CopyArgs& args, std::int64_t n) {
  if (args.from_dtype != dtype_of<From> || args.to_dtype != dtype_of<To>) return false;
  for_each_item((n + vector_elements - 1) / vector_elements,
                ConvertDense<From, To>{static_cast<const From*>(args.from), static_cast<To*>(args.to), n});
  return true;
}

void copy(const CopyArgs& args) {
  const Walk<2> walk(args.shape, {&args.from_strides, &args.to_strides});
  const std::int64_t n = args.shape.elements();
  const bool is_dense = walk.rank == 1 && walk.strides[0][0] == 1 && walk.strides[1][0] == 1;
  if (args.from_dtype == args.to_dtype) return move(args, walk, n, is_dense);
  if (is_dense && are_aligned({args.from, args.to}) &&
      (convert_dense<float, bf16>(args, n) || convert_dense<bf16, float>(args, n) ||
       convert_dense<float, f16>(args, n) || convert_dense<f16, float>(args, n))) {
    return;
  }
  switch (compute_type(args.from_dtype)) {
    case ComputeType::f32:
      return for_each_item(n, Convert<float>{walk, args.from, args.from_dtype, args.to, args.to_dtype});
    case ComputeType::f64:
      return for_each_item(n, Convert<double>{walk, args.from, args.from_dtype, args.to, args.to_dtype});
    case ComputeType::i64:
      return for_each_item(n, Convert<std::int64_t>{walk, args.from, args.from_dtype, args.to, args.to_dtype});
  }
}

void fill(const FillArgs& args) {
  const Walk<1> walk(args.shape, {&args.strides});
  visit(args.dtype, [&]<class T>() {
    const T value = convert_value<T>(args.value);
    for_each_item(args.shape.elements(), Fill<T>{walk, value, static_cast<T*>(args.to)});
  });
}

constexpr CopyKernels table{copy, fill};

}  // namespace copy_cuda_detail

const CopyKernels* const copy_cuda = &copy_cuda_detail::table;

}  // namespace thimble::kernels
