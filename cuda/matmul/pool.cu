// Pooling on CUDA devices: a thread for each element of the result, in the CPU's order of its inputs.

#include <cmath>

#include <thimble/core/kernels/pool.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/words.h>

namespace thimble::kernels {
namespace pool_cuda_detail {

using namespace cuda_kernels;

// 32 bits suffice for a side of an image, and their divisions are fast.
struct Axis {
  int in, out, kernel, stride, padding, dilation;
  Axis(const PoolWindows& p, std::size_t axis)
      : in(narrow(p.in[axis])),
        out(narrow(p.out[axis])),
        kernel(narrow(p.kernel[axis])),
        stride(narrow(p.stride[axis])),
        padding(narrow(p.padding[axis])),
        dilation(narrow(p.dilation[axis])) {}
  static int narrow(std::int64_t size) { return static_cast<int>(size); }
  /// The output that sees input i at index k of its window, or -1.
  THIMBLE_DEVICE int window_of(int i, int k) const {
    const int first = i + padding - k * dilation;
    if (first < 0) return -1;
    const int window = static_cast<int>(static_cast<unsigned>(first) / static_cast<unsigned>(stride));
    return window * stride != first || window >= out ? -1 : window;
  }
  /// The number of elements in output o's window that an average counts.
  THIMBLE_DEVICE int places(int o, bool counts_padding) const {
    const int margin = counts_padding ? padding : 0;
    const int first = o * stride - padding, last = first + kernel;
    const int count = (last < in + margin ? last : in + margin) - (first > -margin ? first : -margin);
    return count > 0 ? count : 0;
  }
};

struct Windows {
  std::int64_t channels;
  Axis h, w;
  explicit Windows(const PoolWindows& p) : channels(p.channels), h(p, 0), w(p, 1) {}

  struct Place {
    std::int64_t image;
    int h, w;
    std::int64_t channel;
  };
  /// Place of element `at`, or of a word of neighbouring channels if `channels` counts words.
  THIMBLE_DEVICE static Place place(std::int64_t at, std::int64_t channels, int height, int width) {
    if (((at | channels) >> 32) == 0) {
      const auto of = [](std::int64_t size) { return static_cast<std::uint32_t>(size); };
      const std::uint32_t pixel = of(at) / of(channels), row = pixel / of(width), image = row / of(height);
      return {image, static_cast<int>(row - image * of(height)), static_cast<int>(pixel - row * of(width)),
              of(at) - pixel * of(channels)};
    }
    const std::int64_t pixel = at / channels;
    return {pixel / width / height, static_cast<int>(pixel / width % height), static_cast<int>(pixel % width),
            at % channels};
  }
  THIMBLE_DEVICE Place place(std::int64_t at, int height, int width) const {
    return place(at, channels, height, width);
  }
  /// body(tap, element of x) for the elements of the window at `p` in row-major order.
  template <class F>
  THIMBLE_DEVICE void for_each_tap(const Place& p, F&& body) const {
    for (int kh = 0; kh < h.kernel; ++kh) {
      const int ih = p.h * h.stride - h.padding + kh * h.dilation;
      if (ih < 0 || ih >= h.in) continue;
      for (int kw = 0; kw < w.kernel; ++kw) {
        const int iw = p.w * w.stride - w.padding + kw * w.dilation;
        if (iw < 0 || iw >= w.in) continue;
        body(kh * w.kernel + kw, ((p.image * h.in + ih) * w.in + iw) * channels + p.channel);
      }
    }
  }
  /// body(tap, oh, ow, element of y) for the windows that see the element at `p`, in their row-major order.
  template <class F>
  THIMBLE_DEVICE void for_each_window(const Place& p, F&& body) const {
    for (int kh = h.kernel; kh-- > 0;) {
      const int oh = h.window_of(p.h, kh);
      if (oh < 0) continue;
      for (int kw = w.kernel; kw-- > 0;) {
        const int ow = w.window_of(p.w, kw);
        if (ow >= 0) body(kh * w.kernel + kw, oh, ow, ((p.image * h.out + oh) * w.out + ow) * channels + p.channel);
      }
    }
  }
  /// The divisor of window (oh, ow)'s sum.
  template <class T>
  THIMBLE_DEVICE T divisor(int oh, int ow, bool counts_padding) const {
    const std::int64_t places = std::int64_t{h.places(oh, counts_padding)} * w.places(ow, counts_padding);
    return static_cast<T>(places > 1 ? places : 1);
  }
  std::int64_t outputs(std::int64_t images) const { return images * h.out * w.out * channels; }
  std::int64_t inputs(std::int64_t images) const { return images * h.in * w.in * channels; }
};

template <class T, class Tap>
struct Max {
  Windows windows;
  DType dtype;
  const void* x;
  void* y;
  Tap* taps;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    constexpr Tap none = integer_max<Tap>;
    T best = -static_cast<T>(INFINITY);
    Tap where = none;
    windows.for_each_tap(windows.place(at, windows.h.out, windows.w.out), [&](int tap, std::int64_t from) {
      const T value = load<T>(x, dtype, from);
      if (value > best || value != value || where == none) {
        best = value;
        where = static_cast<Tap>(tap);
      }
    });
    if (y) store<T>(y, dtype, at, best);
    if (taps) taps[at] = where;
  }
};

template <class T, class Tap>
struct MaxGradient {
  Windows windows;
  DType dtype;
  const Tap* taps;
  const void* dy;
  void* dx;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    T sum = 0;
    windows.for_each_window(windows.place(at, windows.h.in, windows.w.in), [&](int tap, int, int, std::int64_t from) {
      if (taps[from] == static_cast<Tap>(tap)) sum += load<T>(dy, dtype, from);
    });
    store<T>(dx, dtype, at, sum);
  }
};

// Eight neighbouring channels, whose taps are bytes.
using Taps = Words<std::uint8_t, 8>;

template <class S>
struct MaxOfWords {
  Windows windows;
  const S* x;
  S* y;
  std::uint8_t* taps;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    constexpr std::uint8_t none = integer_max<std::uint8_t>;
    Windows::Place p = Windows::place(i, windows.channels / 8, windows.h.out, windows.w.out);
    p.channel *= 8;
    float best[8];
    Taps where;
    for (int e = 0; e < 8; ++e) best[e] = -INFINITY, where.values[e] = none;
    windows.for_each_tap(p, [&](int tap, std::int64_t from) {
      const Words<S, 8> words = words_at<8>(x, from);
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) {
        const float value = widened(words.values[e]);
        if (value > best[e] || value != value || where.values[e] == none) {
          best[e] = value;
          where.values[e] = static_cast<std::uint8_t>(tap);
        }
      }
    });
    if (y) put_words(y, 8 * i, narrowed<S>(best));
    if (taps) put_words(taps, 8 * i, where);
  }
};

template <class S>
struct MaxGradientOfWords {
  Windows windows;
  const std::uint8_t* taps;
  const S* dy;
  S* dx;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    Windows::Place p = Windows::place(i, windows.channels / 8, windows.h.in, windows.w.in);
    p.channel *= 8;
    float sum[8] = {};
    windows.for_each_window(p, [&](int tap, int, int, std::int64_t from) {
      const Taps where = words_at<8>(taps, from);
      const Words<S, 8> words = words_at<8>(dy, from);
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) {
        if (where.values[e] == static_cast<std::uint8_t>(tap)) sum[e] += widened(words.values[e]);
      }
    });
    put_words(dx, 8 * i, narrowed<S>(sum));
  }
};

// Calls f.template operator()<S>() if eight channels can be taken together; else returns false.
template <class F>
bool in_words(DType dtype, const PoolWindows& windows, std::initializer_list<const void*> operands, F&& f) {
  return windows.channels % 8 == 0 && pool_tap_dtype(windows.taps()) == DType::u8 && are_aligned(operands) &&
         with_word_dtype(dtype, f);
}

template <class T>
struct Average {
  Windows windows;
  DType dtype;
  bool counts_padding;
  const void* x;
  void* y;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const Windows::Place place = windows.place(at, windows.h.out, windows.w.out);
    T sum = 0;
    windows.for_each_tap(place, [&](int, std::int64_t from) { sum += load<T>(x, dtype, from); });
    store<T>(y, dtype, at, sum / windows.divisor<T>(place.h, place.w, counts_padding));
  }
};

template <class T>
struct AverageGradient {
  Windows windows;
  DType dtype;
  bool counts_padding;
  const void* dy;
  void* dx;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    T sum = 0;
    windows.for_each_window(windows.place(at, windows.h.in, windows.w.in), [&](int, int oh, int ow, std::int64_t from) {
      sum += load<T>(dy, dtype, from) / windows.divisor<T>(oh, ow, counts_padding);
    });
    store<T>(dx, dtype, at, sum);
  }
};

template <class T>
struct GlobalAverage {
  std::int64_t rows, channels;
  DType dtype;
  const void* x;
  void* y;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t first = at / channels * rows * channels + at % channels;
    double total = 0;
    for (std::int64_t begin = 0; begin < rows; begin += pool_block) {
      const std::int64_t end = begin + pool_block < rows ? begin + pool_block : rows;
      T sum = 0;
      for (std::int64_t row = begin; row < end; ++row) sum += load<T>(x, dtype, first + row * channels);
      total += static_cast<double>(sum);
    }
    store_total(y, dtype, at, total / static_cast<double>(rows));
  }
};

template <class T, bool is_backward>
struct Resampled {
  ResampleArgs args;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const ResampleAxis &h = args.axes[0], &w = args.axes[1];
    const std::int64_t width = is_backward ? w.in : w.out, height = is_backward ? h.in : h.out;
    const std::int64_t pixel = quotient(at, args.channels), channel = at - pixel * args.channels;
    const std::int64_t line = quotient(pixel, width), column = pixel - line * width;
    const std::int64_t image = quotient(line, height), row = line - image * height;
    const ResampleAxis::Range rows = is_backward ? h.outputs_of(row) : h.inputs_of(row);
    const ResampleAxis::Range columns = is_backward ? w.outputs_of(column) : w.inputs_of(column);
    T sum = 0;
    for (std::int64_t r = rows.first; r <= rows.last; ++r) {
      const T of_row = is_backward ? h.weight<T>(r, row) : h.weight<T>(row, r);
      for (std::int64_t c = columns.first; c <= columns.last; ++c) {
        const T of_column = is_backward ? w.weight<T>(c, column) : w.weight<T>(column, c);
        const std::int64_t first = (image * (is_backward ? h.out : h.in) + r) * (is_backward ? w.out : w.in) + c;
        sum += of_row * of_column * load<T>(args.x, args.dtype, first * args.channels + channel);
      }
    }
    store<T>(args.y, args.dtype, at, sum);
  }
};

template <bool is_backward>
void resample(const ResampleArgs& args) {
  const ResampleAxis &h = args.axes[0], &w = args.axes[1];
  const std::int64_t pixels = is_backward ? h.in * w.in : h.out * w.out;
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(args.images * pixels * args.channels, Resampled<T, is_backward>{args});
  });
}

// Calls f.template operator()<T, Tap>().
template <class F>
void with_types(DType dtype, const PoolWindows& windows, F&& f) {
  const bool is_short = pool_tap_dtype(windows.taps()) == DType::u8;
  with_compute_type(dtype, [&]<class T>() {
    is_short ? f.template operator()<T, std::uint8_t>() : f.template operator()<T, std::int32_t>();
  });
}

void max(const MaxPoolArgs& args) {
  const Windows windows(args.windows);
  const bool is_done = in_words(args.dtype, args.windows, {args.x, args.y, args.taps}, [&]<class S>() {
    for_each_item(windows.outputs(args.windows.images) / 8,
                  MaxOfWords<S>{windows, static_cast<const S*>(args.x), static_cast<S*>(args.y),
                                static_cast<std::uint8_t*>(args.taps)});
  });
  if (is_done) return;
  with_types(args.dtype, args.windows, [&]<class T, class Tap>() {
    for_each_item(windows.outputs(args.windows.images),
                  Max<T, Tap>{windows, args.dtype, args.x, args.y, static_cast<Tap*>(args.taps)});
  });
}

void max_backward(const MaxPoolGradArgs& args) {
  const Windows windows(args.windows);
  const bool is_done = in_words(args.dtype, args.windows, {args.taps, args.dy, args.dx}, [&]<class S>() {
    for_each_item(windows.inputs(args.windows.images) / 8,
                  MaxGradientOfWords<S>{windows, static_cast<const std::uint8_t*>(args.taps),
                                        static_cast<const S*>(args.dy), static_cast<S*>(args.dx)});
  });
  if (is_done) return;
  with_types(args.dtype, args.windows, [&]<class T, class Tap>() {
    for_each_item(windows.inputs(args.windows.images),
                  MaxGradient<T, Tap>{windows, args.dtype, static_cast<const Tap*>(args.taps), args.dy, args.dx});
  });
}

void average(const AveragePoolArgs& args) {
  const Windows windows(args.windows);
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(windows.outputs(args.windows.images),
                  Average<T>{windows, args.dtype, args.counts_padding, args.x, args.y});
  });
}

void average_backward(const AveragePoolArgs& args) {
  const Windows windows(args.windows);
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(windows.inputs(args.windows.images),
                  AverageGradient<T>{windows, args.dtype, args.counts_padding, args.x, args.y});
  });
}

void global_average(const GlobalAveragePoolArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(args.images * args.channels, GlobalAverage<T>{args.rows, args.channels, args.dtype, args.x, args.y});
  });
}

constexpr PoolKernels table{max,           max_backward, average, average_backward, global_average, resample<false>,
                            resample<true>};

}  // namespace pool_cuda_detail

const PoolKernels* const pool_cuda = &pool_cuda_detail::table;

}  // namespace thimble::kernels
