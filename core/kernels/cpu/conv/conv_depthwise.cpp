#include <thimble/core/kernels/cpu/conv/conv_driver.h>

#include <algorithm>
#include <numeric>

#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::depthwise {

constexpr std::int64_t max_taps = 256;  // one chain
constexpr int max_row_taps = 8;
constexpr std::int64_t chain = 256;  // pixels of a sum of the weight's gradient

std::int64_t taps_of(const ConvShape& s) noexcept { return s.kernel_h * s.kernel_w; }

bool is_met(const ConvShape& s, DType dtype, DType out_dtype) noexcept {
  return s.groups == s.channels && s.filters == s.channels && s.channels > 1 && dtype == DType::f32 &&
         out_dtype == DType::f32 && taps_of(s) <= max_taps;
}

/// One axis of a sum over taps: result q of a class sees, at tap k of its list, the element q step + offset[k]. Forward
/// has one class. The input's gradient of a convolution with a stride has a class for each residue: the results q
/// stride + residue, whose taps are every stride-th one.
struct AxisTaps {
  std::int64_t count = 0;      // of taps
  std::int64_t tap[max_taps];  // in the order of the sum
  std::int64_t offset[max_taps];
  std::int64_t step = 1, size = 0;                  // size: of the axis being read
  std::int64_t first = 0, stride = 1, results = 0;  // result q is at first + q stride
  std::int64_t inner_begin = 0, inner_end = 0;      // results whose taps are all inside

  bool sees(std::int64_t q, std::int64_t k) const {
    const std::int64_t at = q * step + offset[k];
    return at >= 0 && at < size;
  }
  void find_inner() {
    inner_begin = 0;
    inner_end = results;
    for (std::int64_t k = 0; k < count; ++k) {
      while (inner_begin < inner_end && inner_begin * step + offset[k] < 0) ++inner_begin;
      while (inner_end > inner_begin && (inner_end - 1) * step + offset[k] >= size) --inner_end;
    }
  }
};

AxisTaps forward_taps(std::int64_t taps, std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t pad,
                      std::int64_t dilation) {
  AxisTaps axis;
  axis.count = taps;
  for (std::int64_t k = 0; k < taps; ++k) {
    axis.tap[k] = k;
    axis.offset[k] = k * dilation - pad;
  }
  axis.step = stride;
  axis.size = in;
  axis.results = out;
  axis.find_inner();
  return axis;
}

// For the input's gradient: taps from the last to the first.
AxisTaps gradient_taps(std::int64_t taps, std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t pad,
                       std::int64_t dilation, std::int64_t residue) {
  AxisTaps axis;
  for (std::int64_t k = taps; k-- > 0;) {
    const std::int64_t at = residue + pad - k * dilation;
    if (at % stride != 0) continue;
    axis.tap[axis.count] = k;
    axis.offset[axis.count++] = at / stride;
  }
  axis.size = out;
  axis.first = residue;
  axis.stride = stride;
  axis.results = residue < in ? (in - residue + stride - 1) / stride : 0;
  axis.find_inner();
  return axis;
}

/// A row of results of one class: sums over the rows that its taps see.
struct RowArgs {
  const AxisTaps* columns;
  std::int64_t row_count;  // rows that the taps see, with the first tap of each
  const float* rows[max_taps];
  const float* weights[max_taps];  // (row taps, C)
  std::int64_t channels;
  const float* bias;  // null or (C)
  float* to;          // the row's first pixel
  bool accumulate;
};

template <Isa target>
struct Row {
  using V = Simd<float, target>;

  // Results [q, q + n) of v vectors of channels from `c` on: n v chains of multiply-adds. Near an edge, skips the taps
  // outside; elsewhere all are inside.
  template <int n, int v, bool is_edge>
  static THIMBLE_ALWAYS_INLINE void block(const RowArgs& args, std::int64_t q, std::int64_t c) {
    const AxisTaps& columns = *args.columns;
    const std::int64_t step = columns.step * args.channels;
    typename V::Vector sums[n * v];
    for (int j = 0; j < n * v; ++j) sums[j] = typename V::Vector{};
    for (std::int64_t r = 0; r < args.row_count; ++r) {
      const float* const row = args.rows[r] + q * step + c;
      const float* const weights = args.weights[r] + c;
      for (std::int64_t k = 0; k < columns.count; ++k) {
        if (is_edge && !columns.sees(q, k)) continue;
        const float* const from = row + columns.offset[k] * args.channels;
        const float* const weight = weights + columns.tap[k] * args.channels;
#pragma GCC unroll 8
        for (int i = 0; i < v; ++i) {
          const typename V::Vector w = V::at(weight + i * V::lanes);
#pragma GCC unroll 8
          for (int j = 0; j < n; ++j) {
            const typename V::Vector x = V::at(from + j * step + i * V::lanes);
            V::multiply_add(sums[i * n + j], x, w, sums[i * n + j]);
          }
        }
      }
    }
    for (int i = 0; i < v; ++i) {
      for (int j = 0; j < n; ++j) {
        const std::int64_t channel = c + i * V::lanes;
        float* const to = args.to + (columns.first + (q + j) * columns.stride) * args.channels + channel;
        typename V::Vector& sum = sums[i * n + j];
        if (args.bias) sum += V::at(args.bias + channel);
        if (args.accumulate) sum += V::at(static_cast<const float*>(to));
        V::at(to) = sum;
      }
    }
  }

  // All whole vectors from channel c on, v at a time, then fewer at a time.
  template <int n, int v, bool is_edge>
  static THIMBLE_ALWAYS_INLINE void across(const RowArgs& args, std::int64_t q, std::int64_t c) {
    for (; c + v * V::lanes <= args.channels; c += v * V::lanes) block<n, v, is_edge>(args, q, c);
    if constexpr (v > 1) across<n, v / 2, is_edge>(args, q, c);
  }

  // x weight + sum, rounded as in vectors. single() computes one result of one channel, near an edge or not.
  static THIMBLE_ALWAYS_INLINE float chained(float x, float weight, float sum) {
    if constexpr (target == Isa::generic) return x * weight + sum;
    return __builtin_fmaf(x, weight, sum);
  }
  static THIMBLE_ALWAYS_INLINE void single(const RowArgs& args, std::int64_t q, std::int64_t c) {
    const AxisTaps& columns = *args.columns;
    float sum = 0;
    for (std::int64_t r = 0; r < args.row_count; ++r) {
      for (std::int64_t k = 0; k < columns.count; ++k) {
        if (!columns.sees(q, k)) continue;
        const std::int64_t at = q * columns.step + columns.offset[k];
        sum = chained(args.rows[r][at * args.channels + c], args.weights[r][columns.tap[k] * args.channels + c], sum);
      }
    }
    float& to = args.to[(columns.first + q * columns.stride) * args.channels + c];
    if (args.bias) sum += args.bias[c];
    to = args.accumulate ? sum + to : sum;
  }

  // Results of a 3x3 kernel whose taps are all inside, one vector of channels after the other, with its weights in
  // registers.
  static THIMBLE_ALWAYS_INLINE void along(const RowArgs& args) {
    const AxisTaps& columns = *args.columns;
    const std::int64_t channels = args.channels, apart = (columns.offset[1] - columns.offset[0]) * channels;
    const float* const rows[] = {args.rows[0], args.rows[1], args.rows[2]};
    for (std::int64_t c = 0; c + V::lanes <= channels; c += V::lanes) {
      typename V::Vector weights[9];
#pragma GCC unroll 9
      for (int i = 0; i < 9; ++i) weights[i] = V::at(args.weights[i / 3] + columns.tap[i % 3] * channels + c);
      std::int64_t at = (columns.inner_begin * columns.step + columns.offset[0]) * channels + c;
      float* to = args.to + (columns.first + columns.inner_begin * columns.stride) * channels + c;
      for (std::int64_t q = columns.inner_begin; q < columns.inner_end; ++q) {
        typename V::Vector sum{};
#pragma GCC unroll 9
        for (int i = 0; i < 9; ++i) {
          const typename V::Vector x = V::at(rows[i / 3] + at + i % 3 * apart);
          V::multiply_add(sum, x, weights[i], sum);
        }
        if (args.bias) sum += V::at(args.bias + c);
        if (args.accumulate) sum += V::at(static_cast<const float*>(to));
        V::at(to) = sum;
        at += columns.step * channels;
        to += columns.stride * channels;
      }
    }
  }
  // Whether along() was the fastest order on a Zen 3: its lines fit in a first-level cache of 64 sets and 8 ways until
  // the next vector reads their other half.
  static bool goes_along(const RowArgs& args) {
    const AxisTaps& columns = *args.columns;
    if (target == Isa::avx512 || args.row_count != 3 || columns.count != 3) return false;
    const std::int64_t line = 64 / sizeof(float), sets = 64, ways = 8, step = columns.step * args.channels;
    const std::int64_t used = step % line == 0 ? sets / std::gcd(sets, step / line) : sets;
    return 4 * columns.results <= used * ways;
  }

  static THIMBLE_ALWAYS_INLINE void run(const RowArgs& args) {
    const AxisTaps& columns = *args.columns;
    std::int64_t q = 0;
    for (; q < columns.inner_begin; ++q) across<1, 4, true>(args, q, 0);
    if (goes_along(args)) {
      along(args);
      q = columns.inner_end;
    }
    if (target != Isa::avx512 && columns.count <= 3 && args.channels >= 64) {
      for (; q < columns.inner_end; ++q) across<1, 8, false>(args, q, 0);
    }
    for (; q + 8 <= columns.inner_end; q += 8) across<8, 1, false>(args, q, 0);
    for (; q + 4 <= columns.inner_end; q += 4) across<4, 2, false>(args, q, 0);
    for (; q + 2 <= columns.inner_end; q += 2) across<2, 4, false>(args, q, 0);
    for (; q < columns.results; ++q) across<1, 4, true>(args, q, 0);
    const std::int64_t in_vectors = args.channels / V::lanes * V::lanes;
    for (q = 0; q < columns.results; ++q) {
      for (std::int64_t c = in_vectors; c < args.channels; ++c) single(args, q, c);
    }
  }
};

void run_row(const RowArgs& args) {
  with_target(isa(), [&]<Isa target>() { compiled_for<target, Row<target>, RowArgs>(args); });
}

// weight (C, taps) -> (taps, C).
const float* turned_weights(const ConvShape& s, const void* weight, void* workspace) {
  const auto* const from = static_cast<const float*>(weight);
  auto* const to = static_cast<float*>(workspace);
  const std::int64_t taps = taps_of(s);
  for (std::int64_t c = 0; c < s.channels; ++c) {
    for (std::int64_t k = 0; k < taps; ++k) to[k * s.channels + c] = from[c * taps + k];
  }
  return to;
}

/// One class of rows and one of columns, over all images.
struct ClassArgs {
  AxisTaps rows, columns;
  const float* from;  // (N, rows.size, columns.size, C)
  const float* weights;
  std::int64_t kernel_w, channels, images;
  const float* bias;
  float* to;  // (N, height, width, C)
  std::int64_t height, width;
  bool accumulate;
};

void run_class(const ClassArgs& args) {
  const AxisTaps& rows = args.rows;
  const std::int64_t work = args.columns.results * args.channels * std::max<std::int64_t>(1, rows.count);
  const std::int64_t grain = std::max<std::int64_t>(1, (1 << 14) / std::max<std::int64_t>(1, work));
  parallel_for(args.images * rows.results, grain, [&](std::int64_t begin, std::int64_t end) {
    RowArgs row;
    row.columns = &args.columns;
    row.channels = args.channels;
    row.bias = args.bias;
    row.accumulate = args.accumulate;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t image = i / rows.results, q = i % rows.results;
      row.row_count = 0;
      for (std::int64_t k = 0; k < rows.count; ++k) {
        if (!rows.sees(q, k)) continue;
        const std::int64_t at = q * rows.step + rows.offset[k];
        row.rows[row.row_count] = args.from + (image * rows.size + at) * args.columns.size * args.channels;
        row.weights[row.row_count++] = args.weights + rows.tap[k] * args.kernel_w * args.channels;
      }
      row.to = args.to + (image * args.height + rows.first + q * rows.stride) * args.width * args.channels;
      run_row(row);
    }
  });
}

/// The weight's gradient of `lanes` channels: for each row of taps, sums over pixels, in chains.
struct WeightArgs {
  ConvShape shape;
  const float* x;
  const float* dy;
  float* sums;    // of the current chain
  float* totals;  // (taps, C)
  AxisTaps columns;
  std::int64_t first, last;  // channels
};

template <Isa target>
struct WeightRows {
  using V = Simd<float, target>;

  // sums[r, k] += dy[ow] x[r][ow step + offset[k]] for `rows` rows of taps. Near an edge, skips the taps outside.
  template <int rows, int taps, bool is_edge>
  static THIMBLE_ALWAYS_INLINE void add_pixel(const WeightArgs& args, const float* dy, const float* const* x,
                                              std::int64_t ow, const std::int64_t* offset,
                                              typename V::Vector (&sum)[rows * taps], std::int64_t c) {
    const std::int64_t channels = args.shape.channels, from = ow * args.columns.step * channels;
    const typename V::Vector d = V::at(dy + ow * channels + c);
#pragma GCC unroll 9
    for (int k = 0; k < rows * taps; ++k) {
      if (is_edge && !args.columns.sees(ow, k % taps)) continue;
      const typename V::Vector value = V::at(x[k / taps] + from + offset[k % taps]);
      V::multiply_add(sum[k], d, value, sum[k]);
    }
  }

  // The same for ow from begin to end.
  template <int rows, int taps>
  static THIMBLE_ALWAYS_INLINE void add(const WeightArgs& args, const float* dy, const float* const* x,
                                        std::int64_t begin, std::int64_t end, float* sums, std::int64_t c) {
    const std::int64_t channels = args.shape.channels;
    typename V::Vector sum[rows * taps];
    std::int64_t offset[taps];
#pragma GCC unroll 9
    for (int k = 0; k < rows * taps; ++k) sum[k] = V::at(sums + k * channels + c);
    for (int k = 0; k < taps; ++k) offset[k] = args.columns.offset[k] * channels + c;
    const std::int64_t inner_begin = std::clamp(args.columns.inner_begin, begin, end);
    const std::int64_t inner_end = std::clamp(args.columns.inner_end, inner_begin, end);
    for (std::int64_t ow = begin; ow < inner_begin; ++ow) {
      add_pixel<rows, taps, true>(args, dy, x, ow, offset, sum, c);
    }
    for (std::int64_t ow = inner_begin; ow < inner_end; ++ow) {
      add_pixel<rows, taps, false>(args, dy, x, ow, offset, sum, c);
    }
    for (std::int64_t ow = inner_end; ow < end; ++ow) {
      add_pixel<rows, taps, true>(args, dy, x, ow, offset, sum, c);
    }
#pragma GCC unroll 9
    for (int k = 0; k < rows * taps; ++k) V::at(sums + k * channels + c) = sum[k];
  }

  template <int taps = max_row_taps>
  static THIMBLE_ALWAYS_INLINE void add_row(const WeightArgs& args, const float* dy, const float* x, std::int64_t begin,
                                            std::int64_t end, float* sums, std::int64_t c) {
    if (args.shape.kernel_w == taps) return add<1, taps>(args, dy, &x, begin, end, sums, c);
    if constexpr (taps > 1) add_row<taps - 1>(args, dy, x, begin, end, sums, c);
  }

  static THIMBLE_ALWAYS_INLINE void add_single(const WeightArgs& args, const float* dy, const float* x,
                                               std::int64_t begin, std::int64_t end, float* sums, std::int64_t c) {
    const std::int64_t channels = args.shape.channels;
    for (std::int64_t ow = begin; ow < end; ++ow) {
      for (std::int64_t k = 0; k < args.columns.count; ++k) {
        if (!args.columns.sees(ow, k)) continue;
        const std::int64_t at = ow * args.columns.step + args.columns.offset[k];
        float& sum = sums[k * channels + c];
        sum = Row<target>::chained(dy[ow * channels + c], x[at * channels + c], sum);
      }
    }
  }

  static THIMBLE_ALWAYS_INLINE void run(const WeightArgs& args) {
    const ConvShape& s = args.shape;
    const std::int64_t height = s.out_height(), width = s.out_width(), taps = taps_of(s);
    const std::int64_t in_vectors = args.first + (args.last - args.first) / V::lanes * V::lanes;
    const auto finish_chain = [&] {
      for (std::int64_t k = 0; k < taps; ++k) {
        for (std::int64_t c = args.first; c < args.last; ++c) {
          args.totals[k * s.channels + c] += args.sums[k * s.channels + c];
          args.sums[k * s.channels + c] = 0;
        }
      }
    };
    for (std::int64_t k = 0; k < taps; ++k) {
      std::fill(args.sums + k * s.channels + args.first, args.sums + k * s.channels + args.last, 0.0f);
      std::fill(args.totals + k * s.channels + args.first, args.totals + k * s.channels + args.last, 0.0f);
    }
    const std::int64_t pixels = s.images * height * width;
    for (std::int64_t pixel = 0; pixel < pixels;) {
      const std::int64_t row = pixel / width, begin = pixel % width, image = row / height, oh = row % height;
      const std::int64_t end = std::min(width, begin + chain - pixel % chain);
      const float* const dy = args.dy + row * width * s.channels;
      const auto row_of = [&](std::int64_t kh) -> const float* {
        const std::int64_t ih = oh * s.stride_h + kh * s.dilation_h - s.pad_top;
        return ih < 0 || ih >= s.height ? nullptr : args.x + (image * s.height + ih) * s.width * s.channels;
      };
      if (s.kernel_h == 3 && s.kernel_w == 3 && row_of(0) && row_of(1) && row_of(2)) {
        const float* const rows[3] = {row_of(0), row_of(1), row_of(2)};
        for (std::int64_t c = args.first; c < in_vectors; c += V::lanes)
          add<3, 3>(args, dy, rows, begin, end, args.sums, c);
        for (std::int64_t kh = 0; kh < 3; ++kh) {
          for (std::int64_t c = in_vectors; c < args.last; ++c) {
            add_single(args, dy, rows[kh], begin, end, args.sums + kh * 3 * s.channels, c);
          }
        }
      } else {
        for (std::int64_t kh = 0; kh < s.kernel_h; ++kh) {
          const float* const x = row_of(kh);
          if (!x) continue;
          float* const sums = args.sums + kh * s.kernel_w * s.channels;
          for (std::int64_t c = args.first; c < in_vectors; c += V::lanes) add_row(args, dy, x, begin, end, sums, c);
          for (std::int64_t c = in_vectors; c < args.last; ++c) add_single(args, dy, x, begin, end, sums, c);
        }
      }
      pixel += end - begin;
      if (pixel % chain == 0) finish_chain();
    }
    if (pixels % chain != 0) finish_chain();
  }
};

bool computes(const ConvForwardArgs& args) noexcept {
  return is_met(args.shape, args.dtype, args.out_dtype) && args.activation == Activation::none &&
         args.pre_activation == nullptr;
}
bool computes(const ConvInputGradArgs& args) noexcept { return is_met(args.shape, args.dtype, args.out_dtype); }
bool computes(const ConvWeightGradArgs& args) noexcept {
  return is_met(args.shape, args.dtype, args.out_dtype) && args.shape.kernel_w <= max_row_taps;
}

std::size_t workspace_bytes(const ConvForwardArgs& args) noexcept {
  return static_cast<std::size_t>(taps_of(args.shape) * args.shape.channels) * sizeof(float);
}
std::size_t workspace_bytes(const ConvInputGradArgs& args) noexcept {
  return static_cast<std::size_t>(taps_of(args.shape) * args.shape.channels) * sizeof(float);
}
std::size_t workspace_bytes(const ConvWeightGradArgs& args) noexcept {
  return static_cast<std::size_t>(2 * taps_of(args.shape) * args.shape.channels) * sizeof(float);
}

void compute(const ConvForwardArgs& args, void* workspace) noexcept {
  const ConvShape& s = args.shape;
  ClassArgs all;
  all.rows = forward_taps(s.kernel_h, s.height, s.out_height(), s.stride_h, s.pad_top, s.dilation_h);
  all.columns = forward_taps(s.kernel_w, s.width, s.out_width(), s.stride_w, s.pad_left, s.dilation_w);
  all.from = static_cast<const float*>(args.x);
  all.weights = turned_weights(s, args.weight, workspace);
  all.kernel_w = s.kernel_w;
  all.channels = s.channels;
  all.images = s.images;
  all.bias = static_cast<const float*>(args.bias);
  all.to = static_cast<float*>(args.y);
  all.height = s.out_height();
  all.width = s.out_width();
  all.accumulate = false;
  run_class(all);
}

void compute(const ConvInputGradArgs& args, void* workspace) noexcept {
  const ConvShape& s = args.shape;
  ClassArgs all;
  all.from = static_cast<const float*>(args.dy);
  all.weights = turned_weights(s, args.weight, workspace);
  all.kernel_w = s.kernel_w;
  all.channels = s.channels;
  all.images = s.images;
  all.bias = nullptr;
  all.to = static_cast<float*>(args.dx);
  all.height = s.height;
  all.width = s.width;
  all.accumulate = args.accumulate;
  for (std::int64_t h = 0; h < s.stride_h; ++h) {
    all.rows = gradient_taps(s.kernel_h, s.height, s.out_height(), s.stride_h, s.pad_top, s.dilation_h, h);
    for (std::int64_t w = 0; w < s.stride_w; ++w) {
      all.columns = gradient_taps(s.kernel_w, s.width, s.out_width(), s.stride_w, s.pad_left, s.dilation_w, w);
      run_class(all);
    }
  }
}

void compute(const ConvWeightGradArgs& args, void* workspace) noexcept {
  const ConvShape& s = args.shape;
  const std::int64_t taps = taps_of(s);
  auto* const sums = static_cast<float*>(workspace);
  float* const totals = sums + taps * s.channels;
  constexpr std::int64_t line = 16;  // channels of a cache line
  parallel_for((s.channels + line - 1) / line, 1, [&](std::int64_t begin, std::int64_t end) {
    WeightArgs some{s,
                    static_cast<const float*>(args.x),
                    static_cast<const float*>(args.dy),
                    sums,
                    totals,
                    forward_taps(s.kernel_w, s.width, s.out_width(), s.stride_w, s.pad_left, s.dilation_w),
                    0,
                    0};
    for (std::int64_t i = begin; i < end; ++i) {
      some.first = i * line;
      some.last = std::min(s.channels, some.first + line);
      with_target(isa(), [&]<Isa target>() { compiled_for<target, WeightRows<target>, WeightArgs>(some); });
    }
  });
  auto* const dweight = static_cast<float*>(args.dweight);
  for (std::int64_t c = 0; c < s.channels; ++c) {
    for (std::int64_t k = 0; k < taps; ++k) {
      float& to = dweight[c * taps + k];
      to = args.accumulate ? totals[k * s.channels + c] + to : totals[k * s.channels + c];
    }
  }
}

}  // namespace thimble::kernels::depthwise
