// Strided copies with dtype conversion, and fills, on the CPU.

#include <algorithm>
#include <cstring>

#include <thimble/core/kernels/copy.h>
#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace copy_detail {

constexpr std::int64_t grain_elements = 1 << 14;
constexpr std::int64_t chunk_elements = 512;

template <class Word>
void move_words(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
                std::int64_t n) {
  if (from_stride == -1 && to_stride == 1) {  // becomes vectors
    const Word* const last = reinterpret_cast<const Word*>(from);
    Word* const first = reinterpret_cast<Word*>(to);
    for (std::int64_t i = 0; i < n; ++i) first[i] = last[-i];
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    Word word;
    std::memcpy(&word, from + i * from_stride * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
    std::memcpy(to + i * to_stride * static_cast<std::int64_t>(sizeof(Word)), &word, sizeof(Word));
  }
}

// Moves n elements of `size` bytes; strides in elements.
void move_elements(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
                   std::size_t size, std::int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * size);
    return;
  }
  const auto move = size == 1   ? move_words<std::uint8_t>
                    : size == 2 ? move_words<std::uint16_t>
                    : size == 4 ? move_words<std::uint32_t>
                                : move_words<std::uint64_t>;
  move(from, from_stride, to, to_stride, n);
}

// One run with conversion: through dense chunks where elements are not contiguous.
void convert_elements(const std::byte* from, DType from_dtype, std::int64_t from_stride, std::byte* to, DType to_dtype,
                      std::int64_t to_stride, std::int64_t n) {
  alignas(64) std::byte source[chunk_elements * 8], target[chunk_elements * 8];
  const auto from_size = static_cast<std::int64_t>(size_of(from_dtype));
  const auto to_size = static_cast<std::int64_t>(size_of(to_dtype));
  for (std::int64_t at = 0; at < n; at += chunk_elements) {
    const std::int64_t count = std::min(chunk_elements, n - at);
    const std::byte* const in = from + at * from_stride * from_size;
    std::byte* const out = to + at * to_stride * to_size;
    if (from_stride != 1) move_elements(in, from_stride, source, 1, size_of(from_dtype), count);
    convert(from_stride != 1 ? source : in, from_dtype, to_stride != 1 ? target : out, to_dtype, count);
    if (to_stride != 1) move_elements(target, 1, out, to_stride, size_of(to_dtype), count);
  }
}

void copy(const CopyArgs& args) {
  const MergedStrides<2> walk(args.shape, {&args.from_strides, &args.to_strides});
  const auto* from = static_cast<const std::byte*>(args.from);
  auto* to = static_cast<std::byte*>(args.to);
  const auto from_size = static_cast<std::int64_t>(size_of(args.from_dtype));
  const auto to_size = static_cast<std::int64_t>(size_of(args.to_dtype));
  const std::int64_t from_stride = walk.stride(0, walk.rank - 1), to_stride = walk.stride(1, walk.rank - 1);
  parallel_for(args.shape.elements(), grain_elements, [&](std::int64_t begin, std::int64_t end) {
    walk.for_each_run(begin, end, [&](const std::array<std::int64_t, 2>& at, std::int64_t n) {
      const std::byte* source = from + at[0] * from_size;
      std::byte* target = to + at[1] * to_size;
      if (args.from_dtype == args.to_dtype) {
        move_elements(source, from_stride, target, to_stride, size_of(args.to_dtype), n);
      } else {
        convert_elements(source, args.from_dtype, from_stride, target, args.to_dtype, to_stride, n);
      }
    });
  });
}

void fill(const FillArgs& args) {
  const MergedStrides<1> walk(args.shape, {&args.strides});
  const std::int64_t stride = walk.stride(0, walk.rank - 1);
  visit(args.dtype, [&]<class T> {
    T value;
    convert(&args.value, DType::f64, &value, args.dtype, 1);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    const bool is_zero = std::all_of(bytes, bytes + sizeof(T), [](std::byte b) { return b == std::byte{0}; });
    T* const to = static_cast<T*>(args.to);
    parallel_for(args.shape.elements(), grain_elements, [&](std::int64_t begin, std::int64_t end) {
      walk.for_each_run(begin, end, [&](const std::array<std::int64_t, 1>& at, std::int64_t n) {
        if (stride == 1 && is_zero) {  // leaves the caches to others where that is faster
          std::memset(to + at[0], 0, static_cast<std::size_t>(n) * sizeof(T));
        } else if (stride == 1) {
          std::fill_n(to + at[0], n, value);
        } else {
          for (std::int64_t i = 0; i < n; ++i) to[at[0] + i * stride] = value;
        }
      });
    });
  });
}

}  // namespace copy_detail

const CopyKernels copy_cpu{.copy = copy_detail::copy, .fill = copy_detail::fill};

const CopyKernels& copy_kernels(memory::Device device) { return table_for(device, "copy", copy_cpu, copy_cuda); }

}  // namespace thimble::kernels
