#include <thimble/core/kernels/cpu/conv/conv_driver.h>

#include <atomic>
#include <cstring>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::conv_detail {

namespace conv_driver_detail {

/// Rows [begin, end) of `count` from `from` on, zeros before and after. Lengths of whole vectors are constants, which
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

using gemm_detail::block_depth;
using gemm_detail::max_runs;
using gemm_detail::max_tile_rows;
using gemm_detail::MicroShape;
using gemm_detail::panel_stride;
using gemm_detail::Panels;
using gemm_detail::Problem;
using gemm_detail::Tiling;

std::int64_t blocks_of(std::int64_t k) noexcept { return (k + block_depth - 1) / block_depth; }

/// Elements of one thread's sections of the workspace, each a whole number of cache lines.
struct Sections {
  std::int64_t right;
  std::int64_t scratch;

  Sections(const Problem& problem, const Tiling& tiling, const MicroShape& micro) noexcept {
    const std::int64_t line = 64 / micro.element_bytes;
    const std::int64_t panel = panel_stride(std::min(problem.k, block_depth), tiling.width, line);
    right = tiling.columns / tiling.width * panel * (tiling.keeps_right ? blocks_of(problem.k) : 1);
    scratch = problem.k > block_depth ? (tiling.rows * tiling.columns + line - 1) / line * line : 0;
  }
  std::int64_t total() const noexcept { return right + scratch; }
};

/// A block of columns of the window, cut where a tap ends.
struct Block {
  std::int64_t runs[max_runs];
  std::int64_t taps[max_runs];      ///< of each run
  std::int64_t channels[max_runs];  ///< where it begins in its tap
  std::int64_t count = 0;

  Block(const ConvWindow& window, std::int64_t k, std::int64_t depth) noexcept {
    for (std::int64_t at = k; at < k + depth; at += runs[count++]) {
      taps[count] = at / window.channels;
      channels[count] = at % window.channels;
      runs[count] = std::min(window.channels - channels[count], k + depth - at);
    }
  }
};

/// The runs [begin, end) of a block that a microtile's rows see; the others lie outside the image in every row.
template <class T>
struct Panel {
  const T* rows[max_runs * max_tile_rows];
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

template <class T>
class Worker {
 public:
  Worker(const Problem& problem, const Tiling& tiling, const gemm_detail::Microkernels<T>& kernels,
         const PixelWindow& left, const RightOperand<T>& right, const gemm_detail::Output<T>& output,
         gemm_detail::Finish<T> finish, T* workspace) noexcept
      : problem_(problem),
        tiling_(tiling),
        kernels_(kernels),
        left_(left),
        right_(right),
        output_(output),
        finish_(finish),
        load_(is_narrow(left.window.dtype) ? narrow_float_loops(isa()).load(left.window.dtype) : nullptr),
        right_panels_(workspace),
        scratch_(workspace + Sections(problem, tiling, gemm_detail::micro_shape(kernels)).right) {
    gemm_detail::Output<T> rows = output;
    rows.rows = {};
    is_plain_ = rows.is_plain();
  }

  void compute_tile(std::int64_t group, std::int64_t tile_row, std::int64_t tile_column) noexcept {
    group_ = group;
    row_ = tile_row * tiling_.rows;
    rows_ = std::min(tiling_.rows, problem_.m - row_);
    column_ = tile_column * tiling_.columns;
    columns_ = std::min(tiling_.columns, problem_.n - column_);
    const std::int64_t blocks = blocks_of(problem_.k);
    const bool is_packed = packed_group_ == group && packed_column_ == column_;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t k = block * block_depth;
      const std::int64_t depth = std::min(block_depth, problem_.k - k);
      const Panels<T> panels = panels_of(block, depth);
      if (!is_packed) right_.pack(group * problem_.batch[0].right, column_, columns_, k, depth, panels);
      multiply_block(Block(left_.window, k, depth), panels, block == 0, block + 1 == blocks);
    }
    if (tiling_.keeps_right || blocks == 1) {
      packed_group_ = group;
      packed_column_ = column_;
    }
  }

 private:
  Panels<T> panels_of(std::int64_t block, std::int64_t depth) const noexcept {
    const int width = tiling_.width;
    constexpr std::int64_t line = gemm_detail::line_elements<T>;
    const std::int64_t count = (columns_ + width - 1) / width;
    T* first = right_panels_;
    if (tiling_.keeps_right) first += block * count * panel_stride(block_depth, width, line);
    return {first, width, panel_stride(depth, width, line)};
  }

  void multiply_block(const Block& block, const Panels<T>& panels, bool is_first, bool is_last) noexcept {
    alignas(64) T finished[64 * max_tile_rows];
    Panel<T> a;
    for (std::int64_t i = 0; i < rows_; i += kernels_.rows) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kernels_.rows, rows_ - i));
      const std::int64_t row = row_ + i;
      find(block, row, rows, a);
      // Only padding: a sum that neither begins nor ends here stays unchanged.
      if (a.begin == a.end && !is_first && !is_last) continue;
      std::int64_t skipped = 0;
      for (std::int64_t run = 0; run < a.begin; ++run) skipped += block.runs[run];
      const bool is_one_pixel = row % left_.images + rows <= left_.images;
      T* partial = scratch_ + i * columns_stride(panels.width);
      const T* b = panels.data + skipped * panels.width;
      for (std::int64_t j = 0; j < columns_; j += panels.width, b += panels.stride) {
        const int columns = static_cast<int>(std::min<std::int64_t>(panels.width, columns_ - j));
        const bool is_direct = is_last && is_plain_ && is_one_pixel && columns % kernels_.lanes == 0;
        T* const out = is_direct ? direct_out(row, column_ + j) : is_last ? finished : partial;
        const std::int64_t out_stride = is_direct ? output_.rows.pixel : panels.width;
        kernels_.select(rows, columns)({a.rows + a.begin * max_tile_rows, block.runs + a.begin, a.end - a.begin, 1, b,
                                        is_first ? nullptr : partial, panels.width, out, out_stride, panels.width});
        partial += kernels_.rows * panels.width;
        if (!is_last || is_direct) continue;
        const auto& batch = problem_.batch[0];
        finish_(output_, {group_ * batch.out, group_ * batch.bias, row, column_ + j, rows, columns}, finished,
                panels.width);
      }
    }
  }

  std::int64_t columns_stride(std::int64_t width) const noexcept { return (columns_ + width - 1) / width * width; }

  /// Points to the rows of a microtile, run by run; converted rows are in converted_.
  void find(const Block& block, std::int64_t row, int rows, Panel<T>& a) noexcept {
    alignas(64) static constexpr T zeros[block_depth] = {};
    const ConvWindow& window = left_.window;
    const std::int64_t image_stride = window.h.size * window.w.size * window.all_channels;
    const std::int64_t first = group_ * problem_.batch[0].left;
    a.begin = block.count;
    a.end = 0;
    T* converted = converted_;
    for (std::int64_t run = 0; run < block.count; converted += block.runs[run++]) {
      const std::int64_t down = window.h.origin + block.taps[run] / window.w.taps * window.h.tap_step;
      const std::int64_t right = window.w.origin + block.taps[run] % window.w.taps * window.w.tap_step;
      const T** const out = a.rows + run * max_tile_rows;
      bool is_seen = false;
      for (int r = 0; r < rows;) {
        // All images of one pixel at once.
        const std::int64_t pixel = (row + r) / left_.images, image = (row + r) % left_.images;
        const int count = static_cast<int>(std::min<std::int64_t>(rows - r, left_.images - image));
        const std::int64_t y = pixel / window.w.grid * window.h.step + down;
        const std::int64_t x = pixel % window.w.grid * window.w.step + right;
        const bool is_inside = y >= 0 && y < window.h.size && x >= 0 && x < window.w.size;
        is_seen = is_seen || is_inside;
        std::int64_t at = first + window.line(image, y) + x * window.all_channels + block.channels[run];
        for (const int end = r + count; r < end; ++r, at += image_stride) {
          out[r] = is_inside ? read(at, block.runs[run], converted + r * gemm_detail::scratch_row_stride<T>) : zeros;
        }
      }
      if (!is_seen) continue;
      a.begin = std::min(a.begin, run);
      a.end = run + 1;
    }
    a.begin = std::min(a.begin, a.end);
  }

  /// The image's elements [first, first + count), in place or in `converted`.
  const T* read(std::int64_t first, std::int64_t count, T* converted) const noexcept {
    const ConvWindow& window = left_.window;
    if constexpr (std::is_same_v<T, float>) {
      if (load_ != nullptr) {
        load_(element_at(window.image, window.dtype, first), converted, count);
        return converted;
      }
    }
    return static_cast<const T*>(window.image) + first;
  }

  T* direct_out(std::int64_t row, std::int64_t column) const noexcept {
    const gemm_detail::RowMap& map = output_.rows;
    const std::int64_t pixel = row / left_.images, image = row % left_.images;
    return static_cast<T*>(output_.c) + group_ * problem_.batch[0].out + pixel / map.height * map.image +
           pixel % map.height * map.line + image * map.pixel + column;
  }

  const Problem& problem_;
  const Tiling& tiling_;
  const gemm_detail::Microkernels<T>& kernels_;
  const PixelWindow& left_;
  const RightOperand<T>& right_;
  const gemm_detail::Output<T>& output_;
  gemm_detail::Finish<T> finish_;
  NarrowFloatLoops::Load load_;  ///< null to read in place
  bool is_plain_;
  T* right_panels_;
  T* scratch_;
  std::int64_t group_ = 0;
  std::int64_t row_ = 0, rows_ = 0, column_ = 0, columns_ = 0;
  std::int64_t packed_group_ = 0;
  std::int64_t packed_column_ = -1;  // none
  alignas(64) T converted_[max_tile_rows * gemm_detail::scratch_row_stride<T>];
};

}  // namespace conv_driver_detail

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

/// Columns [first, first + count) of the taps of one line. `line` is the element where the line begins in the image,
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
  // Neighbours in one line whose taps all lie between its ends: rows are as far apart as pixels.
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

/// Reads tap by tap, and line by line of the grid.
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
      run_variant<conv_driver_detail::CopyRows<T>>(from, w.step * window_.all_channels, begin, end, pixels, length,
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
    // The first tap may lie outside the image, so only complete sums of offsets make an address.
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

gemm_detail::RowMap pixel_rows(const PixelWindow& left, std::int64_t pixel, std::int64_t line,
                               std::int64_t image) noexcept {
  return {left.images, left.window.w.grid, image, pixel, line};
}

std::size_t pixels_workspace_bytes(const gemm_detail::Problem& problem, const gemm_detail::Tiling& tiling,
                                   const gemm_detail::MicroShape& micro) noexcept {
  const conv_driver_detail::Sections sections(problem, tiling, micro);
  return static_cast<std::size_t>(sections.total() * micro.element_bytes * tiling.threads);
}

template <class T>
void run_pixels(const gemm_detail::Problem& problem, const gemm_detail::Tiling& tiling,
                const gemm_detail::Microkernels<T>& kernels, const PixelWindow& left, const RightOperand<T>& right,
                const gemm_detail::Output<T>& output, gemm_detail::Finish<T> finish, void* workspace) noexcept {
  using namespace conv_driver_detail;
  const Sections parts(problem, tiling, gemm_detail::micro_shape(kernels));
  const std::int64_t tile_rows = tiling.tile_rows(problem.m);
  const std::int64_t tile_columns = tiling.tile_columns(problem.n);
  const std::int64_t tiles = problem.batch_size() * tile_rows * tile_columns;
  std::atomic<std::int64_t> next{0};
  parallel_threads(tiling.threads, [&](int thread) {
    Worker<T> worker(problem, tiling, kernels, left, right, output, finish,
                     static_cast<T*>(workspace) + thread * parts.total());
    for (;;) {
      const std::int64_t tile = next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= tiles) return;
      worker.compute_tile(tile / (tile_rows * tile_columns), tile % tile_rows, tile / tile_rows % tile_columns);
    }
  });
}

template void run_pixels(const gemm_detail::Problem&, const gemm_detail::Tiling&,
                         const gemm_detail::Microkernels<float>&, const PixelWindow&, const RightOperand<float>&,
                         const gemm_detail::Output<float>&, gemm_detail::Finish<float>, void*) noexcept;
template void run_pixels(const gemm_detail::Problem&, const gemm_detail::Tiling&,
                         const gemm_detail::Microkernels<double>&, const PixelWindow&, const RightOperand<double>&,
                         const gemm_detail::Output<double>&, gemm_detail::Finish<double>, void*) noexcept;

}  // namespace thimble::kernels::conv_detail
