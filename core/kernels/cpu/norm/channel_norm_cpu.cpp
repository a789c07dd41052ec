// Batch norm and group norm on the CPU: statistics of channels, and their use in forward (norm.h).

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/norm/norm_cpu.h>
#include <thimble/core/kernels/cpu/random/random_cpu.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::channel_norm_detail {

// ---- How the CPU kernels of batch norm and group norm walk over (instances, rows, channels), and the coefficients of
// each channel, which forward and backward must compute in one way.

// Channels that one job sums side by side.
inline constexpr std::int64_t channel_tile = 256;
// Elements normalised at once; a multiple of 8, so that chunks share no byte of a mask.
inline constexpr std::int64_t channel_chunk = 512;
inline constexpr std::int64_t channel_grain = 32 * channel_chunk;

inline std::int64_t stretch_count(std::int64_t rows) {
  return std::max<std::int64_t>(1, (rows + channel_norm_stretch - 1) / channel_norm_stretch);
}
inline std::int64_t stretch_rows(std::int64_t rows, std::int64_t stretch) {
  return std::min(channel_norm_stretch, rows - stretch * channel_norm_stretch);
}

// Rows [begin, end) of one range of an instance, channels [channel, channel + count).
struct TileJob {
  std::int64_t instance, stretch, stretches, begin, end, channel, count;
};

// Channels of a tile: fewer than fit only if some threads would get no job otherwise, because short runs of rows are
// slow to read. A channel's sums do not depend on it.
inline std::int64_t tile_channels(std::int64_t instances, std::int64_t rows, std::int64_t channels) {
  constexpr std::int64_t least = 32;
  const std::int64_t threads = thread_count(), jobs = threads > 1 ? 2 * threads : 1;
  std::int64_t tile = channel_tile;
  while (tile > least && instances * stretch_count(rows) * ((channels + tile - 1) / tile) < jobs) tile /= 2;
  return tile;
}

// Calls body(TileJob) for all tiles, in parallel: a thread takes the next tile when it has finished one.
template <class F>
void for_each_tile(std::int64_t instances, std::int64_t rows, std::int64_t channels, F&& body) {
  const std::int64_t stretches = stretch_count(rows), width = tile_channels(instances, rows, channels);
  const std::int64_t tiles = (channels + width - 1) / width, jobs = instances * stretches * tiles;
  const auto run = [&](std::int64_t at) {
    const std::int64_t tile = at % tiles, stretch = at / tiles % stretches;
    const std::int64_t begin = stretch * channel_norm_stretch, channel = tile * width;
    body(TileJob{at / tiles / stretches, stretch, stretches, begin, std::min(rows, begin + channel_norm_stretch),
                 channel, std::min(width, channels - channel)});
  };
  if (instances * rows * channels <= channel_grain) {
    for (std::int64_t at = 0; at < jobs; ++at) run(at);
    return;
  }
  std::atomic<std::int64_t> next{0};
  parallel_threads(static_cast<int>(std::min<std::int64_t>(thread_count(), jobs)), [&](int) {
    for (std::int64_t at; (at = next.fetch_add(1, std::memory_order_relaxed)) < jobs;) run(at);
  });
}

// Room for one block of a tile; f64 is read in place.
template <class T>
struct TileBuffer {
  alignas(64) T data[std::is_same_v<T, float> ? channel_norm_block * channel_tile : 1];
};

// Rows of a tile in the compute type, `stride` apart.
template <class T>
struct Tile {
  const T* data;
  std::int64_t stride;
};

template <class T>
inline Tile<T> load_tile(const void* x, DType dtype, std::int64_t channels, std::int64_t row, std::int64_t rows,
                         std::int64_t channel, std::int64_t count, TileBuffer<T>& buffer) {
  const std::int64_t first = row * channels + channel;
  if (dtype == dtype_of<T>) return {static_cast<const T*>(x) + first, channels};
  if (count == channels) {
    load_elements(x, dtype, first, 1, buffer.data, rows * count);
  } else {
    for (std::int64_t r = 0; r < rows; ++r) {
      load_elements(x, dtype, first + r * channels, 1, buffer.data + r * count, count);
    }
  }
  return {buffer.data, count};
}

// Calls body(count, row) for four rows at a time, then for single ones; `count` is a constant. Four rows at a time,
// sums stay in registers.
template <class F>
inline void by_fours(std::int64_t rows, F&& body) {
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) body(std::integral_constant<int, 4>{}, row);
  for (; row < rows; ++row) body(std::integral_constant<int, 1>{}, row);
}

// Calls body(i, coefficient, n) for runs of neighbouring channels in the n elements from `element` on: elements from
// element + i on use the coefficients from `coefficient` on, which are counted over (instances, channels).
template <class F>
inline void for_each_channel_run(std::int64_t rows, std::int64_t channels, std::int64_t element, std::int64_t n,
                                 F&& body) {
  std::int64_t row = element / channels, channel = element % channels;
  for (std::int64_t i = 0; i < n; ++row, channel = 0) {
    const std::int64_t run = std::min(n - i, channels - channel);
    body(i, row / rows * channels + channel, run);
    i += run;
  }
}

template <class T>
inline bool is_far_channel(T rstd) {
  return std::is_same_v<T, float> && (rstd < T(far_rstd) || rstd > 1 / T(far_rstd));
}

// n = (x - centre) scale + offset, with the three arrays one after the other.
template <class T>
struct ChannelCoefficients {
  T *centre, *scale, *offset;
  ChannelCoefficients(void* data, std::int64_t count)
      : centre(static_cast<T*>(data)), scale(centre + count), offset(scale + count) {}
};

// `mean` and `rstd` are (instances, groups); scale = rstd weight. Returns whether an rstd is far from 1 (far_rstd).
template <class T>
bool fill_coefficients(std::int64_t instances, std::int64_t channels, std::int64_t groups, const void* mean,
                       const void* rstd, const void* weight, const void* bias, void* to) {
  const ChannelCoefficients<T> all(to, instances * channels);
  const std::int64_t size = channels / groups;
  bool is_far = false;
  for (std::int64_t instance = 0; instance < instances; ++instance) {
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const std::int64_t at = instance * channels + channel, group = instance * groups + channel / size;
      is_far |= is_far_channel(static_cast<const T*>(rstd)[group]);
      all.centre[at] = static_cast<const T*>(mean)[group];
      all.scale[at] = static_cast<const T*>(rstd)[group] * (weight ? static_cast<const T*>(weight)[channel] : T(1));
      all.offset[at] = bias ? static_cast<const T*>(bias)[channel] : T(0);
    }
  }
  return is_far;
}

template <class T>
inline void normalize_run(const ChannelCoefficients<T>& all, bool is_far, std::int64_t at, const T* __restrict x,
                          T* __restrict y, std::int64_t n) {
  const T* __restrict centre = all.centre + at, * __restrict scale = all.scale + at, * __restrict offset = all.offset + at;
  if (is_far) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = far_scaled(x[i], centre[i], scale[i]) + offset[i];
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - centre[i]) * scale[i] + offset[i];
}

// Calls body(element, n) for the chunks of [begin, end), the last ones first, because the previous pass over these
// elements left them in the caches.
template <class F>
inline void for_each_chunk_from_end(std::int64_t begin, std::int64_t end, F&& body) {
  constexpr std::int64_t piece = 64 * channel_chunk;  // long enough for prefetching
  for (std::int64_t stop = end; stop > begin;) {
    const std::int64_t start = begin + (stop - begin - 1) / piece * piece;
    for (std::int64_t at = start; at < stop; at += channel_chunk) body(at, std::min(channel_chunk, stop - at));
    stop = start;
  }
}

// Rounds n <= channel_chunk values to the dtype.
template <class T>
inline void round_elements(T* values, DType dtype, std::int64_t n) {
  if (dtype == dtype_of<T>) return;
  alignas(64) std::byte narrow[channel_chunk * sizeof(T)];
  store_elements(values, narrow, dtype, 0, n);
  load_elements(narrow, dtype, 0, 1, values, n);
}

// The largest value that rounds to zero in the dtype (half of the smallest subnormal; ties go to even). Relu compares
// with it if values are rounded only at the store. 8-bit values are rounded first instead, because E4M3 turns large
// ones into NaN.
template <class T>
inline T round_for_relu(T* values, DType dtype, std::int64_t n) {
  if (dtype == DType::f16) return static_cast<T>(0x1p-25);
  if (dtype == DType::bf16) return static_cast<T>(0x1p-134);
  round_elements(values, dtype, n);
  return T(0);
}

// The least value that rounds to 6 in the dtype; round_for_relu() has already rounded 8-bit values.
template <class T>
constexpr T rounds_to_six(DType dtype) {
  return static_cast<T>(dtype == DType::f16 ? 6 - 0x1p-9 : dtype == DType::bf16 ? 6 - 0x1p-6 : 6);
}

}  // namespace thimble::kernels::channel_norm_detail

namespace thimble::kernels {

namespace channel_norm_detail {

// Moments of n elements of one channel, `stride` apart, in f64.
template <class T>
Moments wide_moments(const T* x, std::int64_t stride, std::int64_t n) {
  double sum = 0, first = 0, second = 0;
  for (std::int64_t r = 0; r < n; ++r) sum += static_cast<double>(x[r * stride]);
  const double count = static_cast<double>(n), shift = sum / count;
  for (std::int64_t r = 0; r < n; ++r) {
    const double d = static_cast<double>(x[r * stride]) - shift;
    first += d;
    second += d * d;
  }
  return shifted_moments(count, shift, first, second);
}

// Moments of one tile of channels over the rows [begin, end) of one instance: `means` and `m2s` receive them.
template <class T>
struct TileMoments {
  static void run(const ChannelNormArgs& args, std::int64_t first_row, std::int64_t begin, std::int64_t end,
                  std::int64_t channel, std::int64_t count, double* means, double* m2s) {
    TileBuffer<T> buffer;
    T shifts[channel_tile], first[channel_tile], second[channel_tile];
    double seen = 0;
    for (std::int64_t row = begin; row < end; row += channel_norm_block) {
      const std::int64_t rows = std::min(channel_norm_block, end - row);
      const Tile<T> x = load_tile(args.x, args.dtype, args.channels, first_row + row, rows, channel, count, buffer);
      std::fill(shifts, shifts + count, T(0));
      by_fours(rows, [&](auto some, std::int64_t r) {
        const T* const row_of = x.data + r * x.stride;
        for (std::int64_t i = 0; i < count; ++i) {
          T sum = shifts[i];
          for (int k = 0; k < some; ++k) sum += row_of[k * x.stride + i];
          shifts[i] = sum;
        }
      });
      for (std::int64_t i = 0; i < count; ++i) {
        shifts[i] /= static_cast<T>(rows);
        first[i] = second[i] = T(0);
      }
      by_fours(rows, [&](auto some, std::int64_t r) {
        const T* const row_of = x.data + r * x.stride;
        for (std::int64_t i = 0; i < count; ++i) {
          T sum = first[i], squares = second[i];
          for (int k = 0; k < some; ++k) {
            const T d = row_of[k * x.stride + i] - shifts[i];
            sum += d;
            squares += d * d;
          }
          first[i] = sum;
          second[i] = squares;
        }
      });
      for (std::int64_t i = 0; i < count; ++i) {
        Moments moments{seen, seen > 0 ? means[i] : 0, seen > 0 ? m2s[i] : 0};
        const Moments block = shifted_moments(static_cast<double>(rows), static_cast<double>(shifts[i]),
                                              static_cast<double>(first[i]), static_cast<double>(second[i]));
        const bool is_wide = std::is_same_v<T, float> && leaves_f32(block.m2, args.epsilon);
        moments.merge(is_wide ? wide_moments(x.data + i, x.stride, rows) : block);
        means[i] = moments.mean;
        m2s[i] = moments.m2;
      }
      seen += static_cast<double>(rows);
    }
  }
};

// First stage: the moments of every range of rows, for every instance and channel.
template <class T>
void stretch_moments(const ChannelNormArgs& args) {
  for_each_tile(args.instances, args.rows, args.channels, [&](const TileJob& job) {
    double* const means = args.moments + (job.instance * job.stretches + job.stretch) * 2 * args.channels + job.channel;
    run_variant<TileMoments<T>>(args, job.instance * args.rows, job.begin, job.end, job.channel, job.count, means,
                                means + args.channels);
  });
}

void update_running(void* running, DType dtype, std::int64_t channel, double momentum, double value) {
  double before = 0;
  load_elements(running, dtype, channel, 1, &before, 1);
  const double after = (1 - momentum) * before + momentum * value;
  store_elements(&after, running, dtype, channel, 1);
}

// Second stage: merges ranges, then the channels of each group; mean, rstd and the running statistics.
template <class T>
void group_statistics(const ChannelNormArgs& args) {
  const std::int64_t stretches = stretch_count(args.rows), size = args.channels / args.groups;
  parallel_for(args.instances * args.groups, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t instance = at / args.groups, group = at % args.groups;
      Moments moments;
      for (std::int64_t channel = group * size; channel < (group + 1) * size; ++channel) {
        Moments of_channel;
        for (std::int64_t s = 0; s < stretches; ++s) {
          const double* const means = args.moments + (instance * stretches + s) * 2 * args.channels + channel;
          of_channel.merge({static_cast<double>(stretch_rows(args.rows, s)), means[0], means[args.channels]});
        }
        moments.merge(of_channel);
      }
      static_cast<T*>(args.mean)[at] = static_cast<T>(moments.mean);
      static_cast<T*>(args.rstd)[at] = static_cast<T>(1 / std::sqrt(moments.variance() + args.epsilon));
      if (args.running_mean) {
        update_running(args.running_mean, args.running_dtype, group, args.momentum, moments.mean);
      }
      if (args.running_var) {
        const double unbiased = moments.variance() * (moments.count / (moments.count - 1));
        update_running(args.running_var, args.running_dtype, group, args.momentum, unbiased);
      }
    }
  });
}

// Applies the tail to n contiguous elements from `element` on; `y` holds the normalised values and receives the result.
template <class T>
inline void apply_tail(const ChannelNormArgs& args, std::int64_t element, std::int64_t n, T* y) {
  if (args.tail == NormTail::none) return;
  if (args.tail == NormTail::add_relu) {
    T buffer[channel_chunk];
    const T* const residual = read_elements(args.residual, args.dtype, element, n, buffer);
    round_elements(y, args.dtype, n);
    for (std::int64_t i = 0; i < n; ++i) y[i] += residual[i];
  }
  const T zero = round_for_relu(y, args.dtype, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] < -zero ? T(0) : y[i];
  if (args.tail == NormTail::relu6) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] > T(6) ? T(6) : y[i];
  }
  if (args.mask) pack_greater(y, n, zero, args.mask + element / 8);
}

// Elements [begin, end) in memory order; begin is a multiple of the chunk.
template <class T>
struct Normalize {
  static void run(const ChannelNormArgs& args, bool is_far, std::int64_t begin, std::int64_t end) {
    alignas(64) T in[channel_chunk], out[channel_chunk];
    const ChannelCoefficients<T> all(args.coefficients, args.instances * args.channels);
    const bool is_stored_directly = args.dtype == dtype_of<T>;
    for_each_chunk_from_end(begin, end, [&](std::int64_t at, std::int64_t n) {
      const T* const x = read_elements(args.x, args.dtype, at, n, in);
      T* const y = is_stored_directly ? static_cast<T*>(args.y) + at : out;
      for_each_channel_run(args.rows, args.channels, at, n,
                           [&](std::int64_t i, std::int64_t coefficient, std::int64_t run) {
                             normalize_run(all, is_far, coefficient, x + i, y + i, run);
                           });
      apply_tail(args, at, n, y);
      if (!is_stored_directly) store_elements(y, args.y, args.dtype, at, n);
    });
  }
};

template <class T>
void forward(const ChannelNormArgs& args) {
  if (!args.has_statistics) {
    stretch_moments<T>(args);
    group_statistics<T>(args);
  }
  const bool is_far = fill_coefficients<T>(args.instances, args.channels, args.groups, args.mean, args.rstd,
                                           args.weight, args.bias, args.coefficients);
  parallel_for(args.instances * args.rows * args.channels, channel_grain,
               [&](std::int64_t begin, std::int64_t end) { run_variant<Normalize<T>>(args, is_far, begin, end); });
}

template <class T>
void running_statistics(const RunningStatisticsArgs& args) {
  for (std::int64_t channel = 0; channel < args.channels; ++channel) {
    double mean = 0, variance = 0;
    load_elements(args.running_mean, args.running_dtype, channel, 1, &mean, 1);
    load_elements(args.running_var, args.running_dtype, channel, 1, &variance, 1);
    static_cast<T*>(args.mean)[channel] = static_cast<T>(mean);
    static_cast<T*>(args.rstd)[channel] = static_cast<T>(1 / std::sqrt(variance + args.epsilon));
  }
}

// ---- Batch norm and group norm on the CPU, backward: the sums over each channel, then dx (norm.h).

bool needs_coefficients(const ChannelNormGradArgs& args) { return reads_x(args.tail) || args.dweight || args.dx; }
bool needs_sums(const ChannelNormGradArgs& args) {
  return args.dweight || args.dbias || (args.dx && !args.has_fixed_statistics);
}

// rstd of a coefficient's channel; coefficients are counted over (instances, channels).
template <class T>
inline T rstd_of(const ChannelNormGradArgs& args, std::int64_t coefficient) {
  const std::int64_t instance = coefficient / args.channels, channel = coefficient % args.channels;
  return static_cast<const T*>(args.rstd)[instance * args.groups + channel / (args.channels / args.groups)];
}

// The inputs of dx other than the forward's coefficients: dx = scale dy - (constant + (x - centre) slope). A far
// channel has dx = scale dy - (constant + xhat slope), because f32 may not hold rstd^2, a factor of the other
// slope.
template <class T>
struct GradientCoefficients {
  ChannelCoefficients<T> forward;
  T *constant, *slope;
  GradientCoefficients(void* data, std::int64_t count)
      : forward(data, count), constant(forward.offset + count), slope(constant + count) {}
};

// The gradient before the tail, for n <= channel_chunk neighbouring channels of a row: dy itself, or `buffer`.
template <class T>
inline const T* before_tail(const ChannelNormGradArgs& args, const ChannelCoefficients<T>& all, bool is_far,
                            std::int64_t coefficient, std::int64_t element, const T* x, const T* dy, std::int64_t n,
                            T* buffer) {
  if (args.tail == NormTail::none) return dy;
  if (reads_x(args.tail)) {
    normalize_run(all, is_far, coefficient, x, buffer, n);
    const T zero = round_for_relu(buffer, args.dtype, n);
    // In two loops, because in one AVX-512 loads dy under a mask, and no processor prefetches such loads.
    using Bits = std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint64_t>;
    const auto set_bits = [&](auto&& passes) {
      for (std::int64_t i = 0; i < n; ++i) buffer[i] = bit_cast<T>(Bits{0} - static_cast<Bits>(passes(buffer[i])));
    };
    if (args.tail == NormTail::relu) {
      set_bits([zero](T v) { return v > zero; });
    } else {
      set_bits([zero, six = rounds_to_six<T>(args.dtype)](T v) { return (v > zero) & (v < six); });
    }
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = bit_cast<T>(bit_cast<Bits>(buffer[i]) & bit_cast<Bits>(dy[i]));
  } else {
    keep_masked(args.mask, element, dy, buffer, n);
  }
  return buffer;
}

// Sums of dy and of dy (x - centre) over the rows of one tile; a far channel sums dy xhat in place of the latter.
template <class T>
struct TileSums {
  static void run(const ChannelNormGradArgs& args, bool is_far, const TileJob& job, double* sums, double* products) {
    TileBuffer<T> x_buffer, dy_buffer;
    alignas(64) T masked[4][channel_tile], sum[channel_tile], product[channel_tile];
    const ChannelCoefficients<T> all(args.coefficients, args.instances * args.channels);
    const std::int64_t coefficient = job.instance * args.channels + job.channel;
    const T* const centre = all.centre + coefficient;
    std::fill(sums, sums + job.count, 0.0);
    std::fill(products, products + job.count, 0.0);
    for (std::int64_t at = job.begin; at < job.end; at += channel_norm_block) {
      const std::int64_t rows = std::min(channel_norm_block, job.end - at), row = job.instance * args.rows + at;
      const auto load = [&](const void* from, TileBuffer<T>& buffer) {
        return load_tile(from, args.dtype, args.channels, row, rows, job.channel, job.count, buffer);
      };
      const Tile<T> dy = load(args.dy, dy_buffer);
      const Tile<T> x = args.x ? load(args.x, x_buffer) : dy;
      std::fill(sum, sum + job.count, T(0));
      std::fill(product, product + job.count, T(0));
      by_fours(rows, [&](auto some, std::int64_t r) {
        const T *xs[some], *gs[some];
        for (int k = 0; k < some; ++k) {
          xs[k] = x.data + (r + k) * x.stride;
          gs[k] = before_tail(args, all, is_far, coefficient, (row + r + k) * args.channels + job.channel, xs[k],
                              dy.data + (r + k) * dy.stride, job.count, masked[k]);
        }
        if (args.x && is_far) {
          for (int k = 0; k < some; ++k) add_far(args, coefficient, centre, xs[k], gs[k], job.count, sum, product);
        } else if (args.x) {
          add_rows<some>(centre, xs, gs, job.count, sum, product);
        } else {
          for (std::int64_t i = 0; i < job.count; ++i) {
            T total = sum[i];
            for (int k = 0; k < some; ++k) total += gs[k][i];
            sum[i] = total;
          }
        }
      });
      for (std::int64_t i = 0; i < job.count; ++i) {
        sums[i] += static_cast<double>(sum[i]);
        products[i] += static_cast<double>(product[i]);
      }
    }
  }

  static void add_far(const ChannelNormGradArgs& args, std::int64_t coefficient, const T* centre, const T* x,
                      const T* g, std::int64_t n, T* sum, T* product) {
    for (std::int64_t i = 0; i < n; ++i) {
      const T rstd = rstd_of<T>(args, coefficient + i);
      sum[i] += g[i];
      product[i] += g[i] * (is_far_channel(rstd) ? far_scaled(x[i], centre[i], rstd) : x[i] - centre[i]);
    }
  }

  template <int count>
  static void add_rows(const T* centre, const T* const (&x)[count], const T* const (&g)[count], std::int64_t n,
                       T* __restrict sum, T* __restrict product) {
    for (std::int64_t i = 0; i < n; ++i) {
      T of_g = sum[i], of_product = product[i];
      for (int k = 0; k < count; ++k) {
        of_g += g[k][i];
        of_product += g[k][i] * (x[k][i] - centre[i]);
      }
      sum[i] = of_g;
      product[i] = of_product;
    }
  }
};

// Adds up the ranges of each channel into the first range's place; the products become sums of dy xhat.
template <class T>
void merge_stretches(const ChannelNormGradArgs& args) {
  const std::int64_t stretches = stretch_count(args.rows);
  parallel_for(args.instances * args.channels, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t instance = at / args.channels, channel = at % args.channels;
      double* const sums = args.partial + instance * stretches * 2 * args.channels + channel;
      double *const sum = sums, *const product = sums + args.channels;
      for (std::int64_t s = 1; s < stretches; ++s) {
        *sum += sums[s * 2 * args.channels];
        *product += sums[(s * 2 + 1) * args.channels];
      }
      const T rstd = args.rstd ? rstd_of<T>(args, at) : T(1);
      if (!is_far_channel(rstd)) *product *= static_cast<double>(rstd);
    }
  });
}

// The part of dx that passes through the statistics: with g = dy weight, dx = (g - mean(g) - xhat mean(g xhat)) rstd.
template <class T>
void fill_gradient_coefficients(const ChannelNormGradArgs& args) {
  const GradientCoefficients<T> all(args.coefficients, args.instances * args.channels);
  const std::int64_t stretches = stretch_count(args.rows), size = args.channels / args.groups;
  const T* const weight = static_cast<const T*>(args.weight);
  for (std::int64_t at = 0; at < args.instances * args.groups; ++at) {
    const std::int64_t instance = at / args.groups, first = at % args.groups * size;
    const double* const sums = args.partial + instance * stretches * 2 * args.channels;
    double sum = 0, product = 0;
    for (std::int64_t channel = first; channel < first + size; ++channel) {
      const double w = weight ? static_cast<double>(weight[channel]) : 1;
      sum += w * sums[channel];
      product += w * sums[args.channels + channel];
    }
    const double rstd = static_cast<double>(static_cast<const T*>(args.rstd)[at]);
    const double of_slope = is_far_channel(static_cast<T>(rstd)) ? rstd : rstd * rstd;
    const double elements = static_cast<double>(args.rows * size);
    const std::int64_t coefficient = instance * args.channels + first;
    std::fill(all.constant + coefficient, all.constant + coefficient + size, static_cast<T>(rstd * (sum / elements)));
    std::fill(all.slope + coefficient, all.slope + coefficient + size, static_cast<T>(of_slope * (product / elements)));
  }
}

// Adds up the instances' sums of each channel; `offset` is 0 for dbias and `channels` for dweight.
void store_parameter_gradient(const ChannelNormGradArgs& args, std::int64_t offset, void* to) {
  const std::int64_t stride = stretch_count(args.rows) * 2 * args.channels;
  parallel_for(args.channels, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t channel = begin; channel < end; ++channel) {
      double total = 0;
      for (std::int64_t i = 0; i < args.instances; ++i) total += args.partial[i * stride + offset + channel];
      store_elements(&total, to, args.parameter_dtype, channel, 1);
    }
  });
}

// dresidual and dx of elements [begin, end) in memory order; begin is a multiple of the chunk.
template <class T>
struct InputGradients {
  static void run(const ChannelNormGradArgs& args, bool is_far, std::int64_t begin, std::int64_t end) {
    alignas(64) T x_buffer[channel_chunk], dy_buffer[channel_chunk], masked[channel_chunk], result[channel_chunk];
    const GradientCoefficients<T> all(args.coefficients, args.instances * args.channels);
    const bool has_x = reads_x(args.tail) || (args.dx && !args.has_fixed_statistics);
    for_each_chunk_from_end(begin, end, [&](std::int64_t at, std::int64_t n) {
      const T* const dy = read_elements(args.dy, args.dtype, at, n, dy_buffer);
      const T* const x = has_x ? read_elements(args.x, args.dtype, at, n, x_buffer) : x_buffer;
      const auto for_each_run = [&](auto&& body) { for_each_channel_run(args.rows, args.channels, at, n, body); };
      if (reads_x(args.tail)) {
        for_each_run([&](std::int64_t i, std::int64_t coefficient, std::int64_t run) {
          before_tail(args, all.forward, is_far, coefficient, at + i, x + i, dy + i, run, masked + i);
        });
      } else if (args.tail == NormTail::add_relu) {
        before_tail(args, all.forward, is_far, 0, at, x, dy, n, masked);
      }
      const T* const g = args.tail == NormTail::none ? dy : masked;
      if (args.dresidual) store_elements(g, args.dresidual, args.dtype, at, n);
      if (!args.dx) return;
      for_each_run([&](std::int64_t i, std::int64_t coefficient, std::int64_t run) {
        if (is_far && !args.has_fixed_statistics) {
          far_gradient_run(args, all, coefficient, x + i, g + i, result + i, run);
        } else {
          gradient_run(all, coefficient, args.has_fixed_statistics, x + i, g + i, result + i, run);
        }
      });
      store_elements(result, args.dx, args.dtype, at, n);  // dx may alias x or dy
    });
  }

  static void far_gradient_run(const ChannelNormGradArgs& args, const GradientCoefficients<T>& all, std::int64_t at,
                               const T* x, const T* g, T* dx, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t c = at + i;
      const T rstd = rstd_of<T>(args, c), centre = all.forward.centre[c];
      const T d = is_far_channel(rstd) ? far_scaled(x[i], centre, rstd) : x[i] - centre;
      dx[i] = all.forward.scale[c] * g[i] - (all.constant[c] + d * all.slope[c]);
    }
  }

  static void gradient_run(const GradientCoefficients<T>& all, std::int64_t at, bool has_fixed_statistics,
                           const T* __restrict x, const T* __restrict g, T* __restrict dx, std::int64_t n) {
    const T* __restrict centre = all.forward.centre + at, * __restrict scale = all.forward.scale + at;
    const T* __restrict constant = all.constant + at, * __restrict slope = all.slope + at;
    if (has_fixed_statistics) {
      for (std::int64_t i = 0; i < n; ++i) dx[i] = scale[i] * g[i];
    } else {
      for (std::int64_t i = 0; i < n; ++i) dx[i] = scale[i] * g[i] - (constant[i] + (x[i] - centre[i]) * slope[i]);
    }
  }
};

template <class T>
void backward(const ChannelNormGradArgs& args) {
  const bool is_far =
      needs_coefficients(args) && fill_coefficients<T>(args.instances, args.channels, args.groups, args.mean, args.rstd,
                                                       args.weight, args.bias, args.coefficients);
  if (needs_sums(args)) {
    const std::int64_t stretches = stretch_count(args.rows);
    for_each_tile(args.instances, args.rows, args.channels, [&](const TileJob& job) {
      double* const sums = args.partial + (job.instance * stretches + job.stretch) * 2 * args.channels + job.channel;
      run_variant<TileSums<T>>(args, is_far, job, sums, sums + args.channels);
    });
    merge_stretches<T>(args);
    if (args.dweight) store_parameter_gradient(args, args.channels, args.dweight);
    if (args.dbias) store_parameter_gradient(args, 0, args.dbias);
    if (args.dx && !args.has_fixed_statistics) fill_gradient_coefficients<T>(args);
  }
  if (!args.dx && !args.dresidual) return;
  parallel_for(args.instances * args.rows * args.channels, channel_grain,
               [&](std::int64_t begin, std::int64_t end) { run_variant<InputGradients<T>>(args, is_far, begin, end); });
}

}  // namespace channel_norm_detail

void channel_norm_forward_cpu(const ChannelNormArgs& args) {
  if (args.dtype == DType::f64) return channel_norm_detail::forward<double>(args);
  channel_norm_detail::forward<float>(args);
}

void running_statistics_cpu(const RunningStatisticsArgs& args) {
  if (args.dtype == DType::f64) return channel_norm_detail::running_statistics<double>(args);
  channel_norm_detail::running_statistics<float>(args);
}

const NormKernels norm_cpu{
    .row_forward = row_norm_forward_cpu,
    .row_backward = row_norm_backward_cpu,
    .channel_forward = channel_norm_forward_cpu,
    .channel_backward = channel_norm_backward_cpu,
    .running_statistics = running_statistics_cpu,
};

const NormKernels& norm_kernels(memory::Device device) { return table_for(device, "norm", norm_cpu, norm_cuda); }

void channel_norm_backward_cpu(const ChannelNormGradArgs& args) {
  if (args.dtype == DType::f64) return channel_norm_detail::backward<double>(args);
  channel_norm_detail::backward<float>(args);
}

}  // namespace thimble::kernels
