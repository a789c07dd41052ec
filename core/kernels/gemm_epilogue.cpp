#include <thimble/core/kernels/gemm_epilogue.h>

#include <type_traits>

#include <thimble/core/kernels/gemm_microkernel.h>

namespace thimble::kernels::gemm_detail {
namespace epilogue_detail {

inline constexpr int max_columns = 64;  // of a microtile, and more than its rows

template <class T>
THIMBLE_ALWAYS_INLINE T scale(T alpha, T value) noexcept {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // integers wrap around
    return static_cast<T>(static_cast<U>(alpha) * static_cast<U>(value));
  } else {
    return alpha * value;
  }
}

template <class T>
THIMBLE_ALWAYS_INLINE T add(T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <class T>
THIMBLE_ALWAYS_INLINE void activate(Activation activation, T* __restrict values, int count) noexcept {
  if (activation == Activation::relu) {
    for (int i = 0; i < count; ++i) values[i] = values[i] < T{0} ? T{0} : values[i];
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (activation == Activation::gelu_tanh) {
      for (int i = 0; i < count; ++i) values[i] = gelu_tanh(values[i]);
    } else if (activation == Activation::gelu_erf) {
      for (int i = 0; i < count; ++i) values[i] = gelu_erf(values[i]);
    }
  }
}

/// Walks over rows of C in order, with one division for all.
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

template <class T>
THIMBLE_ALWAYS_INLINE void scale_row(T alpha, const T* __restrict bias, T* __restrict values, int count) noexcept {
  if (bias != nullptr) {
    for (int i = 0; i < count; ++i) values[i] = add(scale(alpha, values[i]), bias[i]);
  } else {
    for (int i = 0; i < count; ++i) values[i] = scale(alpha, values[i]);
  }
}

/// C of type T with columns side by side: no conversion, no call.
template <class T>
THIMBLE_ALWAYS_INLINE void write_plain(T* __restrict c, const T* __restrict values, bool accumulate,
                                       int count) noexcept {
  if (accumulate) {
    for (int i = 0; i < count; ++i) c[i] = add(values[i], c[i]);
  } else {
    for (int i = 0; i < count; ++i) c[i] = values[i];
  }
}

template <class T>
THIMBLE_ALWAYS_INLINE void finish_rows(const Output<T>& output, const OutputTile& tile, T* accumulators,
                                       int stride) noexcept {
  const bool is_plain = output.dtype == dtype_of<T> && output.column_stride == 1;
  alignas(64) T bias[max_columns];
  alignas(64) T there[max_columns];
  if (output.bias != nullptr) {
    const std::int64_t first = tile.bias_offset + (output.bias_along_rows ? tile.row : tile.column);
    output.load(output.bias, first, 1, output.bias_along_rows ? tile.rows : tile.columns, bias);
  }
  const bool has_column_bias = output.bias != nullptr && !output.bias_along_rows;
  RowCursor cursor(output.rows, tile.row);
  for (int r = 0; r < tile.rows; ++r, cursor.advance()) {
    T* values = accumulators + r * stride;
    const std::int64_t at = tile.c_offset + cursor.offset() + tile.column * output.column_stride;
    scale_row(output.alpha, has_column_bias ? bias : nullptr, values, tile.columns);
    if (output.bias != nullptr && output.bias_along_rows) {
      for (int i = 0; i < tile.columns; ++i) values[i] = add(values[i], bias[r]);
    }
    if (output.pre_activation != nullptr) {
      output.store(values, tile.columns, output.pre_activation, at, output.column_stride);
    }
    activate(output.activation, values, tile.columns);
    if (is_plain) {
      write_plain(static_cast<T*>(output.c) + at, values, output.accumulate, tile.columns);
      continue;
    }
    if (output.accumulate) {
      output.load(output.c, at, output.column_stride, tile.columns, there);
      for (int i = 0; i < tile.columns; ++i) values[i] = add(values[i], there[i]);
    }
    output.store(values, tile.columns, output.c, at, output.column_stride);
  }
}

/// A C whose rows lie side by side is finished column by column, so that stores are contiguous.
template <class T>
THIMBLE_ALWAYS_INLINE void finish_body(const Output<T>& output, const OutputTile& tile, T* accumulators,
                                       int stride) noexcept {
  const bool is_column_major = output.rows.pixel == 1 && output.column_stride != 1 && output.rows.width == INT64_MAX;
  if (!is_column_major) {
    finish_rows(output, tile, accumulators, stride);
    return;
  }
  alignas(64) T transposed[max_columns * max_tile_rows];
  for (int j = 0; j < tile.columns; ++j) {
    for (int r = 0; r < tile.rows; ++r) transposed[j * max_tile_rows + r] = accumulators[r * stride + j];
  }
  Output<T> turned = output;
  turned.bias_along_rows = !output.bias_along_rows;
  turned.rows.pixel = output.column_stride;
  turned.column_stride = 1;
  const OutputTile turned_tile{tile.c_offset, tile.bias_offset, tile.column, tile.row, tile.columns, tile.rows};
  finish_rows(turned, turned_tile, transposed, max_tile_rows);
}

template <class T>
void finish_generic(const Output<T>& output, const OutputTile& tile, T* accumulators, int stride) {
  finish_body(output, tile, accumulators, stride);
}
#if defined(__x86_64__)
template <class T>
THIMBLE_TARGET_AVX2 void finish_avx2(const Output<T>& output, const OutputTile& tile, T* accumulators, int stride) {
  finish_body(output, tile, accumulators, stride);
}
template <class T>
THIMBLE_TARGET_AVX512 void finish_avx512(const Output<T>& output, const OutputTile& tile, T* accumulators, int stride) {
  finish_body(output, tile, accumulators, stride);
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
