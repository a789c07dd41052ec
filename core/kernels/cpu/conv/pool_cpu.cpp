// Pooling on the CPU. One thread gathers each output, in a fixed order of its inputs, for up to `tile` channels side by
// side.

#include <algorithm>
#include <cstring>
#include <limits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/pool.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace pool_detail {

constexpr std::int64_t tile = 256;
constexpr std::int64_t grain_elements = 1 << 14;

// read_elements for many reads of one tensor: chooses the converting loop once, because runs may be short.
template <class T>
class ElementReader {
 public:
  ElementReader(const void* data, DType dtype) : data_(data), dtype_(dtype) {
    if (std::is_same_v<T, float> && is_narrow(dtype)) load_ = narrow_float_loops(isa()).load(dtype);
  }
  const T* operator()(std::int64_t element, std::int64_t n, T* buffer) const {
    if constexpr (std::is_same_v<T, float>) {
      if (load_ != nullptr) {
        load_(element_at(data_, dtype_, element), buffer, n);
        return buffer;
      }
    }
    return read_elements(data_, dtype_, element, n, buffer);
  }

 private:
  const void* data_;
  DType dtype_;
  NarrowFloatLoops::Load load_ = nullptr;  // null without a conversion, or with other loops
};

// Calls body(tap, pixel) for the elements of window (oh, ow) in row-major order; pixels are counted over (N, H, W).
template <class F>
inline void for_each_tap(const PoolWindows& w, std::int64_t image, std::int64_t oh, std::int64_t ow, F&& body) {
  for (std::int64_t kh = 0; kh < w.kernel[0]; ++kh) {
    const std::int64_t ih = oh * w.stride[0] - w.padding[0] + kh * w.dilation[0];
    if (ih < 0 || ih >= w.in[0]) continue;
    for (std::int64_t kw = 0; kw < w.kernel[1]; ++kw) {
      const std::int64_t iw = ow * w.stride[1] - w.padding[1] + kw * w.dilation[1];
      if (iw >= 0 && iw < w.in[1]) body(kh * w.kernel[1] + kw, (image * w.in[0] + ih) * w.in[1] + iw);
    }
  }
}

// The output along one axis that sees input i at index k of its window, or -1.
inline std::int64_t window_of(const PoolWindows& w, std::size_t axis, std::int64_t i, std::int64_t k) {
  const std::int64_t first = i + w.padding[axis] - k * w.dilation[axis];
  if (first < 0 || first % w.stride[axis] != 0 || first / w.stride[axis] >= w.out[axis]) return -1;
  return first / w.stride[axis];
}

// Calls body(tap, oh, ow, pixel) for the windows that see element (ih, iw) of an image, in their row-major order: an
// earlier window sees it at a later index. `pixel` is the window's number in the result.
template <class F>
inline void for_each_window(const PoolWindows& w, std::int64_t image, std::int64_t ih, std::int64_t iw, F&& body) {
  for (std::int64_t kh = w.kernel[0]; kh-- > 0;) {
    const std::int64_t oh = window_of(w, 0, ih, kh);
    if (oh < 0) continue;
    for (std::int64_t kw = w.kernel[1]; kw-- > 0;) {
      const std::int64_t ow = window_of(w, 1, iw, kw);
      if (ow >= 0) body(kh * w.kernel[1] + kw, oh, ow, (image * w.out[0] + oh) * w.out[1] + ow);
    }
  }
}

// Channels [channel, channel + n) of a pixel; `to` is the element of the first one.
struct PixelTile {
  std::int64_t image, h, w, channel, n, to;
};

// Calls body(PixelTile) for the tiles of pixel rows [begin, end), counted over (N, H).
template <class F>
inline void for_each_pixel_tile(const std::array<std::int64_t, 2>& size, std::int64_t channels, std::int64_t begin,
                                std::int64_t end, F&& body) {
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t w = 0; w < size[1]; ++w) {
      for (std::int64_t channel = 0; channel < channels; channel += tile) {
        const std::int64_t to = (row * size[1] + w) * channels + channel;
        body(PixelTile{row / size[0], row % size[0], w, channel, std::min(tile, channels - channel), to});
      }
    }
  }
}

template <class T, class Tap>
struct MaxRows {
  static void run(const MaxPoolArgs& args, std::int64_t begin, std::int64_t end) {
    const PoolWindows& windows = args.windows;
    alignas(64) T best[tile], buffer[tile];
    alignas(64) std::int32_t where[tile];
    const ElementReader<T> read(args.x, args.dtype);
    for_each_pixel_tile(windows.out, windows.channels, begin, end, [&](const PixelTile& at) {
      std::fill(best, best + at.n, -std::numeric_limits<T>::infinity());
      std::fill(where, where + at.n, static_cast<std::int32_t>(std::numeric_limits<Tap>::max()));
      for_each_tap(windows, at.image, at.h, at.w, [&](std::int64_t tap, std::int64_t from) {
        const T* const x = read(from * windows.channels + at.channel, at.n, buffer);
        take_larger(x, static_cast<std::int32_t>(tap), at.n, best, args.taps ? where : nullptr);
      });
      if (args.y) store_elements(best, args.y, args.dtype, at.to, at.n);
      if (args.taps) std::copy(where, where + at.n, static_cast<Tap*>(args.taps) + at.to);
    });
  }

  // NaN is larger than everything; -inf is an element like any other, so an empty maximum takes the first.
  static void take_larger(const T* __restrict x, std::int32_t tap, std::int64_t n, T* __restrict best,
                          std::int32_t* __restrict where) {
    if (!where) {
      for (std::int64_t i = 0; i < n; ++i) best[i] = x[i] > best[i] || x[i] != x[i] ? x[i] : best[i];
      return;
    }
    constexpr std::int32_t none = std::numeric_limits<Tap>::max();
    for (std::int64_t i = 0; i < n; ++i) {
      const bool is_larger = x[i] > best[i] || x[i] != x[i] || where[i] == none;
      where[i] = is_larger ? tap : where[i];
      best[i] = is_larger ? x[i] : best[i];
    }
  }
};

template <class T, class Tap>
struct MaxGradientRows {
  static void run(const MaxPoolGradArgs& args, std::int64_t begin, std::int64_t end) {
    const PoolWindows& windows = args.windows;
    alignas(64) T sum[tile], buffer[tile];
    const ElementReader<T> read(args.dy, args.dtype);
    for_each_pixel_tile(windows.in, windows.channels, begin, end, [&](const PixelTile& at) {
      std::fill(sum, sum + at.n, T(0));
      for_each_window(windows, at.image, at.h, at.w, [&](std::int64_t tap, auto, auto, std::int64_t pixel) {
        const std::int64_t from = pixel * windows.channels + at.channel;
        add_where(read(from, at.n, buffer), static_cast<const Tap*>(args.taps) + from, static_cast<Tap>(tap), at.n,
                  sum);
      });
      store_elements(sum, args.dx, args.dtype, at.to, at.n);
    });
  }

  static void add_where(const T* __restrict dy, const Tap* __restrict taps, Tap tap, std::int64_t n,
                        T* __restrict sum) {
    for (std::int64_t i = 0; i < n; ++i) sum[i] += taps[i] == tap ? dy[i] : T(0);
  }
};

// The divisor of window (oh, ow)'s sum.
template <class T>
inline T divisor(const AveragePoolArgs& args, std::int64_t oh, std::int64_t ow) {
  const std::array<std::int64_t, 2> index{oh, ow};
  std::int64_t places = 1;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const PoolWindows& w = args.windows;
    const std::int64_t margin = args.counts_padding ? w.padding[axis] : 0;
    const std::int64_t first = index[axis] * w.stride[axis] - w.padding[axis], last = first + w.kernel[axis];
    places *= std::max<std::int64_t>(0, std::min(last, w.in[axis] + margin) - std::max(first, -margin));
  }
  return static_cast<T>(std::max<std::int64_t>(1, places));
}

template <class T>
inline void add_quotients(const T* __restrict x, T by, std::int64_t n, T* __restrict sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += x[i] / by;
}

template <class T>
struct AverageRows {
  static void run(const AveragePoolArgs& args, std::int64_t begin, std::int64_t end) {
    const PoolWindows& windows = args.windows;
    alignas(64) T sum[tile], buffer[tile];
    for_each_pixel_tile(windows.out, windows.channels, begin, end, [&](const PixelTile& at) {
      std::fill(sum, sum + at.n, T(0));
      for_each_tap(windows, at.image, at.h, at.w, [&](std::int64_t, std::int64_t from) {
        const T* const x = read_elements(args.x, args.dtype, from * windows.channels + at.channel, at.n, buffer);
        for (std::int64_t i = 0; i < at.n; ++i) sum[i] += x[i];
      });
      const T by = divisor<T>(args, at.h, at.w);
      for (std::int64_t i = 0; i < at.n; ++i) sum[i] /= by;
      store_elements(sum, args.y, args.dtype, at.to, at.n);
    });
  }
};

template <class T>
struct AverageGradientRows {
  static void run(const AveragePoolArgs& args, std::int64_t begin, std::int64_t end) {
    const PoolWindows& windows = args.windows;
    alignas(64) T sum[tile], buffer[tile];
    for_each_pixel_tile(windows.in, windows.channels, begin, end, [&](const PixelTile& at) {
      std::fill(sum, sum + at.n, T(0));
      for_each_window(windows, at.image, at.h, at.w, [&](auto, std::int64_t oh, std::int64_t ow, std::int64_t pixel) {
        const T* const dy = read_elements(args.x, args.dtype, pixel * windows.channels + at.channel, at.n, buffer);
        add_quotients(dy, divisor<T>(args, oh, ow), at.n, sum);
      });
      store_elements(sum, args.y, args.dtype, at.to, at.n);
    });
  }
};

template <class T>
struct GlobalAverageTile {
  static void run(const GlobalAveragePoolArgs& args, std::int64_t image, std::int64_t channel, std::int64_t n) {
    alignas(64) T sum[tile], buffer[tile];
    double total[tile] = {};
    for (std::int64_t at = 0; at < args.rows; at += pool_block) {
      std::fill(sum, sum + n, T(0));
      for (std::int64_t row = at; row < std::min(args.rows, at + pool_block); ++row) {
        const std::int64_t from = (image * args.rows + row) * args.channels + channel;
        const T* const x = read_elements(args.x, args.dtype, from, n, buffer);
        for (std::int64_t i = 0; i < n; ++i) sum[i] += x[i];
      }
      for (std::int64_t i = 0; i < n; ++i) total[i] += static_cast<double>(sum[i]);
    }
    for (std::int64_t i = 0; i < n; ++i) total[i] /= static_cast<double>(args.rows);
    store_elements(total, args.y, args.dtype, image * args.channels + channel, n);
  }
};

// sum[i] += weight x[i].
template <class T>
inline void add_weighted(const T* __restrict x, T weight, std::int64_t n, T* __restrict sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * x[i];
}

// y[i] = the weighted sum of two neighbouring pixels of each of two lines, in the order of add_weighted.
template <class T>
inline void add_four(const T* __restrict upper, const T* __restrict lower, std::int64_t step, const T* of_row,
                     const T* of_column, std::int64_t n, T* __restrict y) {
  const T a = of_row[0] * of_column[0], b = of_row[0] * of_column[1];
  const T c = of_row[1] * of_column[0], d = of_row[1] * of_column[1];
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = (((T(0) + a * upper[i]) + b * upper[i + step]) + c * lower[i]) + d * lower[i + step];
  }
}

// The pixels that a pixel of the result reads along one axis, and the weights of the first few: their divisions take
// longer than the sums of a few channels.
template <class T, bool is_backward>
struct ResampleTaps {
  static constexpr std::int64_t known = 4;
  ResampleAxis::Range range{};
  T weights[known] = {};

  ResampleTaps() = default;
  ResampleTaps(const ResampleAxis& axis, std::int64_t at)
      : range(is_backward ? axis.outputs_of(at) : axis.inputs_of(at)) {
    for (std::int64_t i = 0; i < std::min(known, range.last - range.first + 1); ++i) {
      weights[i] = computed(axis, at, range.first + i);
    }
  }
  bool is_pair() const { return range.last == range.first + 1; }
  T weight(const ResampleAxis& axis, std::int64_t at, std::int64_t of) const {
    return of - range.first < known ? weights[of - range.first] : computed(axis, at, of);
  }
  static T computed(const ResampleAxis& axis, std::int64_t at, std::int64_t of) {
    return is_backward ? axis.weight<T>(of, at) : axis.weight<T>(at, of);
  }
};

// Pixels of the result, each a weighted sum of pixels of `from`; in backward, pixels of dx from pixels of dy.
template <class T, bool is_backward>
struct ResampleRows {
  static void run(const ResampleArgs& args, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t most_columns = 64;
    using Taps = ResampleTaps<T, is_backward>;
    const ResampleAxis &h = args.axes[0], &w = args.axes[1];
    const std::array<std::int64_t, 2> to = is_backward ? std::array{h.in, w.in} : std::array{h.out, w.out};
    const std::array<std::int64_t, 2> from = is_backward ? std::array{h.out, w.out} : std::array{h.in, w.in};
    alignas(64) T sum[tile], buffer[tile];
    Taps columns[most_columns];
    const ElementReader<T> read(args.x, args.dtype);
    for (std::int64_t first = 0; first < to[1]; first += most_columns) {
      const std::int64_t some = std::min(most_columns, to[1] - first);
      for (std::int64_t i = 0; i < some; ++i) columns[i] = Taps(w, first + i);
      for (std::int64_t row = begin; row < end; ++row) {
        const Taps rows(h, row % to[0]);
        for_each_pixel_tile({1, some}, args.channels, 0, 1, [&](const PixelTile& at) {
          const Taps& column = columns[at.w];
          const std::int64_t to_element = (row * to[1] + first) * args.channels + at.to;
          if (args.dtype == dtype_of<T> && rows.is_pair() && column.is_pair()) {
            const T* const x =
                static_cast<const T*>(args.x) + at.channel +
                ((row / to[0] * from[0] + rows.range.first) * from[1] + column.range.first) * args.channels;
            return add_four(x, x + from[1] * args.channels, args.channels, rows.weights, column.weights, at.n,
                            static_cast<T*>(args.y) + to_element);
          }
          std::fill(sum, sum + at.n, T(0));
          for (std::int64_t r = rows.range.first; r <= rows.range.last; ++r) {
            const T of_row = rows.weight(h, row % to[0], r);
            const std::int64_t line = (row / to[0] * from[0] + r) * from[1];
            for (std::int64_t c = column.range.first; c <= column.range.last; ++c) {
              const T weight = of_row * column.weight(w, first + at.w, c);
              add_weighted(read((line + c) * args.channels + at.channel, at.n, buffer), weight, at.n, sum);
            }
          }
          store_elements(sum, args.y, args.dtype, to_element, at.n);
        });
      }
    }
  }
};

// Runs Rows over the pixel rows (N, size[0]).
template <class Rows, class Args>
void for_rows(const Args& args, const std::array<std::int64_t, 2>& size) {
  const std::int64_t elements = size[1] * args.windows.channels * args.windows.taps();
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / std::max<std::int64_t>(1, elements));
  parallel_for(args.windows.images * size[0], grain,
               [&](std::int64_t begin, std::int64_t end) { run_variant<Rows>(args, begin, end); });
}

template <template <class, class> class Rows, class Args>
void for_tap_rows(const Args& args, const std::array<std::int64_t, 2>& size) {
  const bool is_short = pool_tap_dtype(args.windows.taps()) == DType::u8;
  if (args.dtype == DType::f64) {
    return is_short ? for_rows<Rows<double, std::uint8_t>>(args, size)
                    : for_rows<Rows<double, std::int32_t>>(args, size);
  }
  return is_short ? for_rows<Rows<float, std::uint8_t>>(args, size) : for_rows<Rows<float, std::int32_t>>(args, size);
}

void max(const MaxPoolArgs& args) { for_tap_rows<MaxRows>(args, args.windows.out); }

void max_backward(const MaxPoolGradArgs& args) { for_tap_rows<MaxGradientRows>(args, args.windows.in); }

template <template <class> class Rows>
void average_rows(const AveragePoolArgs& args, const std::array<std::int64_t, 2>& size) {
  args.dtype == DType::f64 ? for_rows<Rows<double>>(args, size) : for_rows<Rows<float>>(args, size);
}

void average(const AveragePoolArgs& args) { average_rows<AverageRows>(args, args.windows.out); }

void average_backward(const AveragePoolArgs& args) { average_rows<AverageGradientRows>(args, args.windows.in); }

void global_average(const GlobalAveragePoolArgs& args) {
  const std::int64_t tiles = (args.channels + tile - 1) / tile;
  parallel_for(args.images * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t channel = at % tiles * tile, n = std::min(tile, args.channels - channel);
      args.dtype == DType::f64 ? run_variant<GlobalAverageTile<double>>(args, at / tiles, channel, n)
                               : run_variant<GlobalAverageTile<float>>(args, at / tiles, channel, n);
    }
  });
}

// Copies the nearest pixels.
void copy_pixels(const ResampleArgs& args, std::int64_t begin, std::int64_t end) {
  const ResampleAxis &h = args.axes[0], &w = args.axes[1];
  const std::size_t bytes = static_cast<std::size_t>(args.channels) * size_of(args.dtype);
  if (bytes == 0) return;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t from = (row / h.out * h.in + h.inputs_of(row % h.out).first) * w.in;
    for (std::int64_t ow = 0; ow < w.out; ++ow) {
      std::memcpy(element_at(args.y, args.dtype, (row * w.out + ow) * args.channels),
                  element_at(args.x, args.dtype, (from + w.inputs_of(ow).first) * args.channels), bytes);
    }
  }
}

template <bool is_backward>
void resample_any(const ResampleArgs& args) {
  const ResampleAxis &h = args.axes[0], &w = args.axes[1];
  const std::int64_t rows = is_backward ? h.in : h.out, columns = is_backward ? w.in : w.out;
  const std::int64_t grain =
      std::max<std::int64_t>(1, grain_elements / 4 / std::max<std::int64_t>(1, columns * args.channels));
  parallel_for(args.images * rows, grain, [&](std::int64_t begin, std::int64_t end) {
    if (!is_backward && args.axes[0].mode == Resample::nearest) return copy_pixels(args, begin, end);
    args.dtype == DType::f64 ? run_variant<ResampleRows<double, is_backward>>(args, begin, end)
                             : run_variant<ResampleRows<float, is_backward>>(args, begin, end);
  });
}

}  // namespace pool_detail

const PoolKernels pool_cpu{
    .max = pool_detail::max,
    .max_backward = pool_detail::max_backward,
    .average = pool_detail::average,
    .average_backward = pool_detail::average_backward,
    .global_average = pool_detail::global_average,
    .resample = pool_detail::resample_any<false>,
    .resample_backward = pool_detail::resample_any<true>,
};

const PoolKernels& pool_kernels(memory::Device device) { return table_for(device, "pool", pool_cpu, pool_cuda); }

}  // namespace thimble::kernels
