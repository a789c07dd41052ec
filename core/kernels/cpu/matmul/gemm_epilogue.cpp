#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>

#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/narrow_avx2.h>
#include <thimble/core/kernels/cpu/base/narrow_float.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>
#include <thimble/core/kernels/functors/unary.h>

namespace thimble::kernels::gemm_detail {
namespace epilogue_detail {

inline constexpr int max_columns = 64;  // in a microtile; more than its rows

template <class T>
THIMBLE_ALWAYS_INLINE T times(T alpha, T value) noexcept {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // integers wrap around
    return static_cast<T>(static_cast<U>(alpha) * static_cast<U>(value));
  } else {
    return alpha * value;
  }
}

template <class T>
THIMBLE_ALWAYS_INLINE T plus(T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

/// Rows of float stored as bf16, as the compiler vectorizes it.
struct Bf16Rows {
  static constexpr bool stores_f16 = false;
  static THIMBLE_ALWAYS_INLINE void store(const float* __restrict from, bf16* __restrict to, int count) noexcept {
    for (int i = 0; i < count; ++i) to[i] = bf16::from_bits(bf16_code(from[i]));
  }
};

#if defined(__x86_64__)
/// Rows stored in either 16-bit format by AVX2 and F16C. Rows are readable up to a multiple of eight.
struct NarrowRowsAvx2 {
  static constexpr bool stores_f16 = true;
  template <class To>
  THIMBLE_TARGET_F16C static void store(const float* from, To* to, int count) noexcept {
    int i = 0;
    for (; i + 16 <= count; i += 16) store_16(from + i, to + i);
    for (; i < count; i += 8) store_8(from + i, to + i, count - i);
  }
};
#endif

template <class T>
THIMBLE_ALWAYS_INLINE void activate(Activation activation, T* __restrict values, int count) noexcept {
  if (activation == Activation::relu) {
    for (int i = 0; i < count; ++i) values[i] = ops::Relu{}.fwd(values[i]);
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (activation == Activation::gelu_tanh) {
      for (int i = 0; i < count; ++i) values[i] = ops::GeluTanh{}.fwd(values[i]);
    } else if (activation == Activation::gelu_erf) {
      for (int i = 0; i < count; ++i) values[i] = ops::GeluErf{}.fwd(values[i]);
    }
  }
}

/// Walks over rows of C in order, with a single division.
class RowCursor {
 public:
  RowCursor(const RowMap& map, std::int64_t row) noexcept : map_(map) {
    if (map.width == INT64_MAX) {
      offset_ = row * map.pixel;
      left_ = INT64_MAX;
      return;
    }
    const std::int64_t line = row / map.width;
    const std::int64_t pixel = row % map.width;
    line_ = line % map.height;
    offset_ = line / map.height * map.image + line_ * map.line + pixel * map.pixel;
    left_ = map.width - pixel;
  }
  std::int64_t offset() const noexcept { return offset_; }
  void advance() noexcept {
    offset_ += map_.pixel;
    if (--left_ > 0) return;
    offset_ += map_.line - map_.width * map_.pixel;
    left_ = map_.width;
    if (++line_ < map_.height) return;
    offset_ += map_.image - map_.height * map_.line;
    line_ = 0;
  }

 private:
  const RowMap& map_;
  std::int64_t offset_ = 0;
  std::int64_t line_ = 0;
  std::int64_t left_ = 0;  // pixels to the end of the line
};

/// A microtile on its way to memory. `width` is its number of columns if known at compile time, else 0. `Narrow` stores
/// rows of bf16, and of f16 where it can.
template <class T, int width, class Narrow>
class Finisher {
 public:
  THIMBLE_ALWAYS_INLINE Finisher(const Output<T>& output, const OutputTile& tile, T* values, int stride) noexcept
      : output_(output), tile_(tile), values_(values), stride_(stride) {
    RowCursor cursor(output.rows, tile.row);
    for (int r = 0; r < tile.rows; ++r, cursor.advance()) {
      offsets_[r] = tile.c_offset + cursor.offset() + tile.column * output.column_stride;
    }
    if (output.bias == nullptr) return;
    const std::int64_t first = tile.bias_offset + (output.bias_along_rows ? tile.row : tile.column);
    load_elements(output.bias, output.dtype, first, 1, bias_, output.bias_along_rows ? tile.rows : columns());
  }

  THIMBLE_ALWAYS_INLINE void run() noexcept {
    if (output_.column_stride == 1) {
      if (output_.dtype == dtype_of<T>) return run_rows<T>();
      if constexpr (std::is_same_v<T, float>) {
        if (output_.dtype == DType::bf16) return run_rows<bf16>();
        if constexpr (Narrow::stores_f16) {
          if (output_.dtype == DType::f16 && this_processor().has_f16c) return run_rows<f16>();
        }
        if (is_narrow(output_.dtype)) return run_narrow_rows();
      }
    }
    for (int r = 0; r < tile_.rows; ++r) scale(row(r), r);
    if (output_.pre_activation != nullptr) store(output_.pre_activation);
    for (int r = 0; r < tile_.rows; ++r) {
      activate(output_.activation, row(r), columns());
      if (output_.accumulate) add_there(row(r), r);
    }
    store(output_.c);
  }

 private:
  THIMBLE_ALWAYS_INLINE int columns() const noexcept { return width != 0 ? width : tile_.columns; }
  THIMBLE_ALWAYS_INLINE T* row(int r) const noexcept { return values_ + r * stride_; }

  /// Stores row by row, for contiguous rows of `To`.
  template <class To>
  THIMBLE_ALWAYS_INLINE void run_rows() noexcept {
    To* const c = static_cast<To*>(output_.c);
    if (output_.is_bare()) {
      for (int r = 0; r < tile_.rows; ++r) put(row(r), c + offsets_[r]);
      return;
    }
    for (int r = 0; r < tile_.rows; ++r) {
      scale(row(r), r);
      if (output_.pre_activation != nullptr) put(row(r), static_cast<To*>(output_.pre_activation) + offsets_[r]);
    }
    activate_rows();
    for (int r = 0; r < tile_.rows; ++r) {
      T* __restrict const values = row(r);
      To* __restrict const there = c + offsets_[r];
      if (output_.accumulate) {
        if constexpr (std::is_same_v<To, f16>) {
          add_there(values, r);
        } else {
          for (int i = 0; i < columns(); ++i) values[i] = plus(values[i], static_cast<T>(there[i]));
        }
      }
      put(values, there);
    }
  }

  /// Stores whole rows as one run, because one row is short for a loop of vectors.
  THIMBLE_ALWAYS_INLINE void activate_rows() noexcept {
    if (output_.activation == Activation::none) return;
    const bool are_whole = columns() == stride_;
    const int count = are_whole ? tile_.rows * stride_ : columns(), runs = are_whole ? 1 : tile_.rows;
    for (int r = 0; r < runs; ++r) activate(output_.activation, row(r), count);
  }

  /// The same for rows that a loop of the narrow formats can store.
  THIMBLE_ALWAYS_INLINE void run_narrow_rows() noexcept {
    const NarrowFloatLoops& loops = narrow_float_loops(isa());
    const auto load = loops.load(output_.dtype);
    const auto store = loops.store(output_.dtype);
    T there[max_columns];
    for (int r = 0; r < tile_.rows; ++r) {
      T* const values = row(r);
      scale(values, r);
      if (output_.pre_activation != nullptr) {
        store(values, element_at(output_.pre_activation, output_.dtype, offsets_[r]), columns(),
              Fp8Overflow::nonfinite);
      }
      activate(output_.activation, values, columns());
      std::byte* const to = element_at(output_.c, output_.dtype, offsets_[r]);
      if (output_.accumulate) {
        load(to, there, columns());
        for (int i = 0; i < columns(); ++i) values[i] = plus(values[i], there[i]);
      }
      store(values, to, columns(), Fp8Overflow::nonfinite);
    }
  }

  template <class To>
  THIMBLE_ALWAYS_INLINE void put(const T* __restrict values, To* __restrict there) const noexcept {
    if constexpr (!std::is_same_v<To, T>) {
      Narrow::store(values, there, columns());
    } else {
      for (int i = 0; i < columns(); ++i) there[i] = values[i];
    }
  }

  THIMBLE_ALWAYS_INLINE void scale(T* __restrict values, int r) const noexcept {
    const T alpha = output_.alpha;
    if (output_.bias == nullptr) {
      if (alpha == T{1}) return;
      for (int i = 0; i < columns(); ++i) values[i] = times(alpha, values[i]);
    } else if (output_.bias_along_rows) {
      const T bias = bias_[r];
      for (int i = 0; i < columns(); ++i) values[i] = plus(times(alpha, values[i]), bias);
    } else {
      for (int i = 0; i < columns(); ++i) values[i] = plus(times(alpha, values[i]), bias_[i]);
    }
  }

  THIMBLE_ALWAYS_INLINE void add_there(T* __restrict values, int r) const noexcept {
    T there[max_columns];
    load_elements(output_.c, output_.dtype, offsets_[r], output_.column_stride, there, columns());
    for (int i = 0; i < columns(); ++i) values[i] = plus(values[i], there[i]);
  }

  void store(void* base) const noexcept {
    for (int r = 0; r < tile_.rows; ++r) {
      store_elements(row(r), base, output_.dtype, offsets_[r], output_.column_stride, columns());
    }
  }

  const Output<T>& output_;
  const OutputTile& tile_;
  T* values_;
  int stride_;
  std::int64_t offsets_[max_columns];
  alignas(64) T bias_[max_columns];
};

/// Finishes a C with contiguous columns column by column, so that stores are contiguous. `full` is the number of
/// columns of a whole microtile, or 0: if g++ 12 knows AVX2's number, 16, it unrolls the columns into single
/// elements.
template <class T, int full, class Narrow>
THIMBLE_ALWAYS_INLINE void finish_body(const Output<T>& output, const OutputTile& tile, T* accumulators,
                                       int stride) noexcept {
  const bool is_column_major = output.rows.pixel == 1 && output.column_stride != 1 && output.rows.width == INT64_MAX;
  if (!is_column_major) {
    if (full != 0 && tile.columns == full) {  // NOLINT(bugprone-branch-clone): alike where `full` is 0
      Finisher<T, full, Narrow>(output, tile, accumulators, stride).run();
    } else {
      Finisher<T, 0, Narrow>(output, tile, accumulators, stride).run();
    }
    return;
  }
  alignas(64) T transposed[max_columns * max_tile_rows];
  transpose<T>(isa())(accumulators, stride, tile.rows, tile.columns, transposed, max_tile_rows);
  Output<T> turned = output;
  turned.bias_along_rows = !output.bias_along_rows;
  turned.rows.pixel = output.column_stride;
  turned.column_stride = 1;
  const OutputTile turned_tile{tile.c_offset, tile.bias_offset, tile.column, tile.row, tile.columns, tile.rows};
  Finisher<T, 0, Narrow>(turned, turned_tile, transposed, max_tile_rows).run();
}

template <class T>
void finish_generic(const Output<T>& output, const OutputTile& tile, T* accumulators, int stride) {
  finish_body<T, 32 / sizeof(T), Bf16Rows>(output, tile, accumulators, stride);
}
#if defined(__x86_64__)
template <class T>
THIMBLE_TARGET_F16C __attribute__((flatten)) void finish_avx2(const Output<T>& output, const OutputTile& tile,
                                                              T* accumulators, int stride) {
  finish_body<T, 0, NarrowRowsAvx2>(output, tile, accumulators, stride);
}
template <class T>
THIMBLE_TARGET_AVX512 __attribute__((flatten)) void finish_avx512(const Output<T>& output, const OutputTile& tile,
                                                                  T* accumulators, int stride) {
  finish_body<T, (std::is_integral_v<T> ? 128 : 192) / sizeof(T), Bf16Rows>(output, tile, accumulators, stride);
}
#endif

}  // namespace epilogue_detail

template <class T>
Finish<T> finish([[maybe_unused]] Isa isa) noexcept {
  using namespace epilogue_detail;
#if defined(__x86_64__)
  if (isa == Isa::avx512) return finish_avx512<T>;
  if (isa == Isa::avx2) return finish_avx2<T>;
#endif
  return finish_generic<T>;
}

template Finish<float> finish<float>(Isa) noexcept;
template Finish<double> finish<double>(Isa) noexcept;
template Finish<std::int64_t> finish<std::int64_t>(Isa) noexcept;

}  // namespace thimble::kernels::gemm_detail
