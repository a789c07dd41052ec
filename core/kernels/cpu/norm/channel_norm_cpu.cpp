// Batch norm and group norm on the CPU: statistics of channels, and their use in forward (norm.h).

#include <algorithm>
#include <cmath>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/norm/channel_norm_cpu.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

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

// The tail of n contiguous elements from `element` on; `y` holds the normalised values and receives the result.
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

}  // namespace thimble::kernels
