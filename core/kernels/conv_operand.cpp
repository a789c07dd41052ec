#include <thimble/core/kernels/conv_operand.h>

#include <algorithm>

namespace thimble::kernels::conv_detail {

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
    // [begin, end): the columns that lie inside of the image.
    const std::int64_t begin = std::clamp(-left * channels, first, first + count);
    const std::int64_t end = std::clamp((window_.w.size - left) * channels, begin, first + count);
    std::fill(out, out + (begin - first), T{0});
    if (end > begin)
      gemm_detail::read_row(window_.image, window_.dtype, line + left * channels + begin, 1, end - begin,
                            out + (begin - first));
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
      gemm_detail::read_row(window_.image, window_.dtype, line + x * window_.all_channels + channel, 1, length, out);
    }
    out += length;
    count -= length;
    channel = 0;
    ++tap;
  }
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
  std::int64_t column = block.k;
  for (std::int64_t run = 0; run < block.run_count; column += block.runs[run++]) {
    const Piece piece{column, block.runs[run], column / line_columns, column % line_columns};
    for (int r = 0; r < rows; ++r) {
      T* const scratch = block.scratch + r * gemm_detail::scratch_row_stride<T> + (column - block.k);
      pointers[run * gemm_detail::max_tile_rows + r] = find(places[r], block.offset, piece, scratch);
    }
  }
}

/// Where a piece of a row lies.
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
  auto place = reader_.place(k);
  std::int64_t at = 0;
  gemm_detail::pack_rows(columns, depth, panels, [&](std::int64_t p, std::int64_t j, std::int64_t count, T* row) {
    for (; at < p; ++at) reader_.advance(place);
    reader_.read(place, offset, column + j, count, row);
  });
}

template <class T>
void RightTurnedTaps<T>::pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k,
                              std::int64_t depth, const gemm_detail::Panels<T>& panels) const noexcept {
  gemm_detail::pack_rows(columns, depth, panels, [&](std::int64_t p, std::int64_t j, std::int64_t count, T* row) {
    const std::int64_t tap = (k + p) / taps_.filters;
    const std::int64_t filter = (k + p) % taps_.filters;
    const std::int64_t y = taps_.first_h - tap / taps_.taps_w * taps_.step_h;
    const std::int64_t x = taps_.first_w - tap % taps_.taps_w * taps_.step_w;
    const std::int64_t first =
        offset + filter * taps_.filter_stride + y * taps_.line_stride + x * taps_.tap_stride + column;
    gemm_detail::read_row(taps_.weight, taps_.dtype, first + j, 1, count, row);
  });
}

template class WindowReader<float>;
template class WindowReader<double>;
template class LeftWindow<float>;
template class LeftWindow<double>;
template class LeftWindowInPlace<float>;
template class LeftWindowInPlace<double>;
template class RightWindow<float>;
template class RightWindow<double>;
template class RightTurnedTaps<float>;
template class RightTurnedTaps<double>;

}  // namespace thimble::kernels::conv_detail
