#include <thimble/core/kernels/cpu/conv/conv_operand.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>

namespace thimble::kernels::conv_detail {
namespace conv_operand_detail {

/// Rows [begin, end) of `count` from `from` on, zeros before and behind. Lengths of whole vectors are constants, which
/// become a few moves each.
template <class T>
struct CopyRows {
  template <int constant>
  static THIMBLE_ALWAYS_INLINE void copy(const T* from, std::int64_t from_stride, std::int64_t begin, std::int64_t end,
                                         std::int64_t count, std::int64_t length, T* out, int stride) noexcept {
    const std::size_t bytes = static_cast<std::size_t>(constant != 0 ? constant : length) * sizeof(T);
    std::int64_t i = 0;
    for (; i < begin; ++i, out += stride) std::memset(out, 0, bytes);
    for (; i < end; ++i, out += stride, from += from_stride) std::memcpy(out, from, bytes);
    for (; i < count; ++i, out += stride) std::memset(out, 0, bytes);
  }

  static void run(const T* from, std::int64_t from_stride, std::int64_t begin, std::int64_t end, std::int64_t count,
                  std::int64_t length, T* out, int stride) noexcept {
    switch (length) {
      case 8:
        return copy<8>(from, from_stride, begin, end, count, length, out, stride);
      case 16:
        return copy<16>(from, from_stride, begin, end, count, length, out, stride);
      case 32:
        return copy<32>(from, from_stride, begin, end, count, length, out, stride);
      case 48:
        return copy<48>(from, from_stride, begin, end, count, length, out, stride);
      default:
        return copy<0>(from, from_stride, begin, end, count, length, out, stride);
    }
  }
};

}  // namespace conv_operand_detail

template <class T>
void WindowReader<T>::read(const Place& place, std::int64_t offset, std::int64_t first, std::int64_t count,
                           T* out) const noexcept {
  if (count == 0) return;  // a window without taps or channels
  const std::int64_t line_columns = window_.w.taps * window_.channels;
  const std::int64_t top = place.i * window_.h.step + window_.h.origin;
  const std::int64_t left = place.j * window_.w.step + window_.w.origin;
  std::int64_t tap = first / line_columns;
  std::int64_t start = first % line_columns;
  while (count > 0) {
    const std::int64_t length = std::min(count, line_columns - start);
    const std::int64_t y = top + tap * window_.h.tap_step;
    if (y < 0 || y >= window_.h.size) {
      std::fill(out, out + length, T{0});
    } else {
      read_line(window_.line(place.image, y) + offset, left, start, length, out);
    }
    out += length;
    count -= length;
    start = 0;
    ++tap;
  }
}

/// Columns [first, first + count) of the taps of one line; `line` is the element where the line begins in the image,
/// `left` the position of the first tap, which may lie outside.
template <class T>
void WindowReader<T>::read_line(std::int64_t line, std::int64_t left, std::int64_t first, std::int64_t count,
                                T* out) const noexcept {
  const std::int64_t channels = window_.channels;
  if (window_.has_contiguous_lines()) {
    // [begin, end): the columns inside the image.
    const std::int64_t begin = std::clamp(-left * channels, first, first + count);
    const std::int64_t end = std::clamp((window_.w.size - left) * channels, begin, first + count);
    std::fill(out, out + (begin - first), T{0});
    if (end > begin) copy(line + left * channels + begin, end - begin, out + (begin - first));
    std::fill(out + (end - first), out + count, T{0});
    return;
  }
  std::int64_t tap = first / channels;
  std::int64_t channel = first % channels;
  while (count > 0) {
    const std::int64_t length = std::min(count, channels - channel);
    const std::int64_t x = left + tap * window_.w.tap_step;
    if (x < 0 || x >= window_.w.size) {
      std::fill(out, out + length, T{0});
    } else {
      copy(line + x * window_.all_channels + channel, length, out);
    }
    out += length;
    count -= length;
    channel = 0;
    ++tap;
  }
}

template <class T>
void WindowReader<T>::copy(std::int64_t first, std::int64_t count, T* out) const noexcept {
  if constexpr (std::is_same_v<T, float>) {
    if (load_ != nullptr) return load_(element_at(window_.image, window_.dtype, first), out, count);
  }
  gemm_detail::read_row(window_.image, window_.dtype, first, 1, count, out);
}

template <class T>
std::int64_t LeftWindow<T>::scratch_elements(std::int64_t rows, int) const noexcept {
  return rows * gemm_detail::scratch_row_stride<T>;
}

template <class T>
LeftBlock<T> LeftWindow<T>::open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k,
                                 std::int64_t depth, int panel_rows, T* scratch) const noexcept {
  constexpr std::int64_t stride = gemm_detail::scratch_row_stride<T>;
  auto place = reader_.place(row);
  for (std::int64_t r = 0; r < rows; ++r, reader_.advance(place)) {
    reader_.read(place, offset, k, depth, scratch + r * stride);
  }
  return gemm_detail::plain_block<T>(scratch, panel_rows * stride, stride, 1, depth);
}

template <class T>
std::int64_t LeftWindowInPlace<T>::scratch_elements(std::int64_t, int panel_rows) const noexcept {
  return window_.has_contiguous_lines() ? panel_rows * gemm_detail::scratch_row_stride<T> : 0;
}

template <class T>
LeftBlock<T> LeftWindowInPlace<T>::open(std::int64_t offset, std::int64_t row, std::int64_t, std::int64_t k,
                                        std::int64_t depth, int panel_rows, T* scratch) const noexcept {
  LeftBlock<T> block;
  block.offset = offset;
  block.row = row;
  block.k = k;
  block.panel_stride = panel_rows;
  block.scratch = scratch;
  block.run_count = 0;
  const std::int64_t piece = piece_of(window_);
  for (std::int64_t at = k; at < k + depth;) {
    const std::int64_t length = std::min(k + depth, (at / piece + 1) * piece) - at;
    block.runs[block.run_count++] = length;
    at += length;
  }
  return block;
}

template <class T>
void LeftWindowInPlace<T>::panel(const LeftBlock<T>& block, std::int64_t index, int rows,
                                 gemm_detail::RowPointers<T>& pointers) const noexcept {
  typename WindowReader<T>::Place places[gemm_detail::max_tile_rows];
  auto place = reader_.place(block.row + index * block.panel_stride);
  for (int r = 0; r < rows; ++r, reader_.advance(place)) places[r] = place;

  const std::int64_t line_columns = window_.w.taps * window_.channels;
  // Neighbours in one line, all of whose taps lie between its ends: rows as far apart as pixels.
  const std::int64_t left = places[0].j * window_.w.step + window_.w.origin;
  const bool has_even_rows = window_.has_contiguous_lines() && places[0].j + rows <= window_.w.grid && left >= 0 &&
                             left + (rows - 1) * window_.w.step + window_.w.taps <= window_.w.size;
  const std::int64_t row_stride = window_.w.step * window_.channels;
  std::int64_t column = block.k;
  for (std::int64_t run = 0; run < block.run_count; column += block.runs[run++]) {
    const Piece piece{column, block.runs[run], column / line_columns, column % line_columns};
    if (window_.dtype != dtype_of<T>) {
      convert(places, rows, block.offset, piece, has_even_rows, block.scratch + block.panel_stride * (column - block.k),
              pointers + run * gemm_detail::max_tile_rows);
      continue;
    }
    if (has_even_rows) {
      const std::int64_t y =
          places[0].i * window_.h.step + window_.h.origin + column / line_columns * window_.h.tap_step;
      if (y >= 0 && y < window_.h.size) {
        const T* const first = static_cast<const T*>(window_.image) + window_.line(places[0].image, y) + block.offset +
                               left * window_.channels + column % line_columns;
        const T** const out = pointers + run * gemm_detail::max_tile_rows;
        for (int r = 0; r < rows; ++r) out[r] = first + r * row_stride;
        continue;
      }
    }
    for (int r = 0; r < rows; ++r) {
      T* const scratch = block.scratch + r * gemm_detail::scratch_row_stride<T> + (column - block.k);
      pointers[run * gemm_detail::max_tile_rows + r] = find(places[r], block.offset, piece, scratch);
    }
  }
}

template <class T>
void LeftWindowInPlace<T>::convert(const typename WindowReader<T>::Place* places, int rows, std::int64_t offset,
                                   const Piece& piece, bool are_neighbours, T* scratch, const T** out) const noexcept {
  const std::int64_t y = places[0].i * window_.h.step + window_.h.origin + piece.tap_line * window_.h.tap_step;
  const std::int64_t row_stride = window_.w.step * window_.channels;
  const std::int64_t shared = piece.count + (rows - 1) * row_stride;
  if (are_neighbours && y >= 0 && y < window_.h.size && shared <= rows * piece.count) {
    const std::int64_t left = places[0].j * window_.w.step + window_.w.origin;
    const std::int64_t line = window_.line(places[0].image, y) + offset;
    reader_.copy(line + left * window_.channels + piece.in_line, shared, scratch);
    for (int r = 0; r < rows; ++r) out[r] = scratch + r * row_stride;
    return;
  }
  for (int r = 0; r < rows; ++r, scratch += piece.count) {
    reader_.read(places[r], offset, piece.column, piece.count, scratch);
    out[r] = scratch;
  }
}

/// The address of a run of a row.
template <class T>
const T* LeftWindowInPlace<T>::find(const typename WindowReader<T>::Place& place, std::int64_t offset,
                                    const Piece& piece, T* scratch) const noexcept {
  alignas(64) static constexpr T zeros[gemm_detail::block_depth] = {};
  const std::int64_t y = place.i * window_.h.step + window_.h.origin + piece.tap_line * window_.h.tap_step;
  if (y < 0 || y >= window_.h.size) return zeros;
  const T* const line = static_cast<const T*>(window_.image) + window_.line(place.image, y) + offset;
  const std::int64_t left = place.j * window_.w.step + window_.w.origin;
  if (window_.has_contiguous_lines()) {
    if (left >= 0 && left + window_.w.taps <= window_.w.size) return line + left * window_.channels + piece.in_line;
    reader_.read(place, offset, piece.column, piece.count, scratch);
    return scratch;
  }
  const std::int64_t x = left + piece.in_line / window_.channels * window_.w.tap_step;
  if (x < 0 || x >= window_.w.size) return zeros;
  return line + x * window_.all_channels + piece.in_line % window_.channels;
}

template <class T>
void RightWindow<T>::pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k,
                          std::int64_t depth, const gemm_detail::Panels<T>& panels) const noexcept {
  if (window_.dtype == dtype_of<T> && window_.channels >= min_channels) {
    T* out = panels.data;
    for (std::int64_t j = 0; j < columns; j += panels.width, out += panels.stride) {
      const std::int64_t count = std::min<std::int64_t>(panels.width, columns - j);
      pack_panel(offset, column + j, count, k, depth, out, panels.width);
    }
    return;
  }
  auto place = reader_.place(k);
  std::int64_t at = 0;
  gemm_detail::pack_rows(columns, depth, panels, [&](std::int64_t p, std::int64_t j, std::int64_t count, T* row) {
    for (; at < p; ++at) reader_.advance(place);
    reader_.read(place, offset, column + j, count, row);
  });
}

/// Tap by tap, and line by line of the grid.
template <class T>
void RightWindow<T>::pack_panel(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k,
                                std::int64_t depth, T* out, int width) const noexcept {
  const WindowAxis &h = window_.h, &w = window_.w;
  const T* const image = static_cast<const T*>(window_.image) + offset;
  for (std::int64_t c = 0, length; c < columns; c += length) {
    const std::int64_t tap = (column + c) / window_.channels, channel = (column + c) % window_.channels;
    length = std::min(window_.channels - channel, columns - c);
    const std::int64_t down = h.origin + tap / w.taps * h.tap_step, right = w.origin + tap % w.taps * w.tap_step;
    // Pixels [first, last) of a line see the tap inside the image.
    const std::int64_t first = std::clamp<std::int64_t>(right >= 0 ? 0 : (w.step - 1 - right) / w.step, 0, w.grid);
    const std::int64_t last =
        std::clamp<std::int64_t>(right >= w.size ? 0 : (w.size - 1 - right) / w.step + 1, first, w.grid);
    auto place = reader_.place(k);
    for (std::int64_t p = 0, pixels; p < depth; p += pixels) {
      pixels = std::min(w.grid - place.j, depth - p);
      const std::int64_t y = place.i * h.step + down;
      const std::int64_t begin = std::clamp(first - place.j, std::int64_t{0}, pixels);
      const std::int64_t end = y < 0 || y >= h.size ? begin : std::clamp(last - place.j, begin, pixels);
      const T* from = image;
      if (end > begin) {
        from += window_.line(place.image, y) + ((place.j + begin) * w.step + right) * window_.all_channels + channel;
      }
      run_variant<conv_operand_detail::CopyRows<T>>(from, w.step * window_.all_channels, begin, end, pixels, length,
                                                    out + p * width + c, width);
      place.j += pixels - 1;
      reader_.advance(place);
    }
  }
  if (columns == width) return;
  for (std::int64_t p = 0; p < depth; ++p) std::fill(out + p * width + columns, out + (p + 1) * width, T{0});
}

template <class T>
std::int64_t LeftTurnedWindow<T>::inner_begin(const ConvWindow& window) noexcept {
  const WindowAxis& w = window.w;
  const std::int64_t outside = std::max<std::int64_t>(-w.origin, 0);
  return std::min((outside + w.step - 1) / w.step, w.grid);
}

template <class T>
std::int64_t LeftTurnedWindow<T>::inner_end(const ConvWindow& window) noexcept {
  const WindowAxis& w = window.w;
  const std::int64_t last = w.size - 1 - w.origin - (w.taps - 1) * w.tap_step;  // where the last tap is still inside
  return std::clamp(last < 0 ? 0 : last / w.step + 1, inner_begin(window), w.grid);
}

template <class T>
bool LeftTurnedWindow<T>::can_read(const ConvWindow& window) noexcept {
  if (window.dtype != dtype_of<T> || window.w.grid == 0) return false;
  const std::int64_t begin = inner_begin(window), end = inner_end(window);
  const std::int64_t line_runs = window.w.grid - (end - begin) + 1;
  const std::int64_t lines = (gemm_detail::block_depth - 2) / window.w.grid + 2;  // that a block may touch
  return line_runs * lines <= gemm_detail::max_runs &&
         (end - begin) * window.w.step * window.all_channels <= zero_elements;
}

template <class T>
LeftBlock<T> LeftTurnedWindow<T>::open(std::int64_t offset, std::int64_t row, std::int64_t, std::int64_t k,
                                       std::int64_t depth, int panel_rows, T*) const noexcept {
  LeftBlock<T> block;
  block.offset = offset;
  block.row = row;
  block.k = k;
  block.panel_stride = panel_rows;
  block.depth_stride = window_.w.step * window_.all_channels;
  block.run_count = 0;
  for (std::int64_t at = k, j = k % window_.w.grid; at < k + depth;) {
    const std::int64_t length = std::min(run_from(j), k + depth - at);
    block.runs[block.run_count++] = length;
    at += length;
    j += length;
    if (j == window_.w.grid) j = 0;
  }
  return block;
}

template <class T>
void LeftTurnedWindow<T>::panel(const LeftBlock<T>& block, std::int64_t index, int rows,
                                gemm_detail::RowPointers<T>& pointers) const noexcept {
  alignas(64) static constexpr T zeros[zero_elements] = {};
  const std::int64_t line_columns = window_.w.taps * window_.channels;
  const std::int64_t line_elements = window_.w.size * window_.all_channels;
  std::int64_t down[gemm_detail::max_tile_rows], right[gemm_detail::max_tile_rows], element[gemm_detail::max_tile_rows];
  for (int r = 0; r < rows; ++r) {
    const std::int64_t row = block.row + index * block.panel_stride + r;
    down[r] = row / line_columns * window_.h.tap_step;
    right[r] = row % line_columns / window_.channels * window_.w.tap_step;
    element[r] = down[r] * line_elements + right[r] * window_.all_channels + row % window_.channels;
  }
  const WindowReader<T> reader(window_);
  auto place = reader.place(block.k);
  const auto height = static_cast<std::uint64_t>(window_.h.size), width = static_cast<std::uint64_t>(window_.w.size);
  for (std::int64_t run = 0; run < block.run_count; ++run) {
    // The first tap may lie outside the image, so only sums of offsets make an address.
    const std::int64_t y = place.i * window_.h.step + window_.h.origin;
    const std::int64_t x = place.j * window_.w.step + window_.w.origin;
    const std::int64_t first = block.offset + window_.line(place.image, y) + x * window_.all_channels;
    const T** const out = pointers + run * gemm_detail::max_tile_rows;
    for (int r = 0; r < rows; ++r) {
      const bool is_inside =
          static_cast<std::uint64_t>(y + down[r]) < height && static_cast<std::uint64_t>(x + right[r]) < width;
      out[r] = is_inside ? static_cast<const T*>(window_.image) + (first + element[r]) : zeros;
    }
    place.j += block.runs[run] - 1;
    reader.advance(place);
  }
}

template <class T>
void RightTurnedTaps<T>::pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k,
                              std::int64_t depth, const gemm_detail::Panels<T>& panels) const noexcept {
  const auto element = [&](std::int64_t tap, std::int64_t filter) {
    const std::int64_t y = taps_.first_h - tap / taps_.taps_w * taps_.step_h;
    const std::int64_t x = taps_.first_w - tap % taps_.taps_w * taps_.step_w;
    return offset + filter * taps_.filter_stride + y * taps_.line_stride + x * taps_.tap_stride + column;
  };
  for (std::int64_t p = 0, count; p < depth; p += count) {
    const std::int64_t tap = (k + p) / taps_.filters, filter = (k + p) % taps_.filters;
    count = std::min(taps_.filters - filter, depth - p);
    gemm_detail::copy_to_panels(taps_.weight, taps_.dtype, element(tap, filter), taps_.filter_stride, count, p, columns,
                                panels);
  }
}

template class WindowReader<float>;
template class WindowReader<double>;
template class LeftWindow<float>;
template class LeftWindow<double>;
template class LeftWindowInPlace<float>;
template class LeftWindowInPlace<double>;
template class LeftTurnedWindow<float>;
template class LeftTurnedWindow<double>;
template class RightWindow<float>;
template class RightWindow<double>;
template class RightTurnedTaps<float>;
template class RightTurnedTaps<double>;

}  // namespace thimble::kernels::conv_detail
