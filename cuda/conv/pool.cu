// Pooling on CUDA devices: a thread for each element of the result, in the CPU's order of its inputs.

#include <cmath>

#include <thimble/core/kernels/pool.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
namespace pool_cuda_detail {

using namespace cuda_kernels;

struct Axis {
  std::int64_t in, out, kernel, stride, padding, dilation;
  /// The output that sees input i at place k of its window, or -1.
  THIMBLE_DEVICE std::int64_t window_of(std::int64_t i, std::int64_t k) const {
    const std::int64_t first = i + padding - k * dilation;
    return first < 0 || first % stride != 0 || first / stride >= out ? -1 : first / stride;
  }
  /// How many places of the window of output o an average counts.
  THIMBLE_DEVICE std::int64_t places(std::int64_t o, bool counts_padding) const {
    const std::int64_t margin = counts_padding ? padding : 0;
    const std::int64_t first = o * stride - padding, last = first + kernel;
    const std::int64_t count = (last < in + margin ? last : in + margin) - (first > -margin ? first : -margin);
    return count > 0 ? count : 0;
  }
};

struct Windows {
  std::int64_t channels;
  Axis h, w;
  explicit Windows(const PoolWindows& p)
      : channels(p.channels),
        h{p.in[0], p.out[0], p.kernel[0], p.stride[0], p.padding[0], p.dilation[0]},
        w{p.in[1], p.out[1], p.kernel[1], p.stride[1], p.padding[1], p.dilation[1]} {}

  struct Place {
    std::int64_t image, h, w, channel;
  };
  THIMBLE_DEVICE Place place(std::int64_t at, std::int64_t height, std::int64_t width) const {
    const std::int64_t pixel = at / channels;
    return {pixel / width / height, pixel / width % height, pixel % width, at % channels};
  }
  /// body(tap, element of x) for the elements of the window at `p` in row-major order.
  template <class F>
  THIMBLE_DEVICE void for_each_tap(const Place& p, F&& body) const {
    for (std::int64_t kh = 0; kh < h.kernel; ++kh) {
      const std::int64_t ih = p.h * h.stride - h.padding + kh * h.dilation;
      if (ih < 0 || ih >= h.in) continue;
      for (std::int64_t kw = 0; kw < w.kernel; ++kw) {
        const std::int64_t iw = p.w * w.stride - w.padding + kw * w.dilation;
        if (iw < 0 || iw >= w.in) continue;
        body(kh * w.kernel + kw, ((p.image * h.in + ih) * w.in + iw) * channels + p.channel);
      }
    }
  }
  /// body(tap, oh, ow, element of y) for the windows that see the element at `p`, in their row-major order.
  template <class F>
  THIMBLE_DEVICE void for_each_window(const Place& p, F&& body) const {
    for (std::int64_t kh = h.kernel; kh-- > 0;) {
      const std::int64_t oh = h.window_of(p.h, kh);
      if (oh < 0) continue;
      for (std::int64_t kw = w.kernel; kw-- > 0;) {
        const std::int64_t ow = w.window_of(p.w, kw);
        if (ow >= 0) body(kh * w.kernel + kw, oh, ow, ((p.image * h.out + oh) * w.out + ow) * channels + p.channel);
      }
    }
  }
  /// What the sum of window (oh, ow) is divided by.
  template <class T>
  THIMBLE_DEVICE T divisor(std::int64_t oh, std::int64_t ow, bool counts_padding) const {
    const std::int64_t places = h.places(oh, counts_padding) * w.places(ow, counts_padding);
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
    windows.for_each_tap(windows.place(at, windows.h.out, windows.w.out), [&](std::int64_t tap, std::int64_t from) {
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
    windows.for_each_window(windows.place(at, windows.h.in, windows.w.in),
                            [&](std::int64_t tap, std::int64_t, std::int64_t, std::int64_t from) {
                              if (taps[from] == static_cast<Tap>(tap)) sum += load<T>(dy, dtype, from);
                            });
    store<T>(dx, dtype, at, sum);
  }
};

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
    windows.for_each_tap(place, [&](std::int64_t, std::int64_t from) { sum += load<T>(x, dtype, from); });
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
    windows.for_each_window(windows.place(at, windows.h.in, windows.w.in),
                            [&](std::int64_t, std::int64_t oh, std::int64_t ow, std::int64_t from) {
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
  with_types(args.dtype, args.windows, [&]<class T, class Tap>() {
    for_each_item(windows.outputs(args.windows.images),
                  Max<T, Tap>{windows, args.dtype, args.x, args.y, static_cast<Tap*>(args.taps)});
  });
}

void max_backward(const MaxPoolGradArgs& args) {
  const Windows windows(args.windows);
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

constexpr PoolKernels table{max, max_backward, average, average_backward, global_average};

}  // namespace pool_cuda_detail

const PoolKernels* const pool_cuda = &pool_cuda_detail::table;

}  // namespace thimble::kernels
