// Batch norm and group norm on the CPU, backward: the sums over each channel, then dx (norm.h).

#include <algorithm>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/norm/channel_norm_cpu.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace channel_norm_detail {

bool needs_coefficients(const ChannelNormGradArgs& args) {
  return args.tail == NormTail::relu || args.dweight || args.dx;
}
bool needs_sums(const ChannelNormGradArgs& args) {
  return args.dweight || args.dbias || (args.dx && !args.has_fixed_statistics);
}

// rstd of the channel of a coefficient, counted over (instances, channels).
template <class T>
inline T rstd_of(const ChannelNormGradArgs& args, std::int64_t coefficient) {
  const std::int64_t instance = coefficient / args.channels, channel = coefficient % args.channels;
  return static_cast<const T*>(args.rstd)[instance * args.groups + channel / (args.channels / args.groups)];
}

// The inputs of dx besides the forward's coefficients: dx = scale dy - (constant + (x - centre) slope); of a far
// channel dx = scale dy - (constant + xhat slope), because f32 may not hold rstd^2, which is in the slope of x -
// centre.
template <class T>
struct GradientCoefficients {
  ChannelCoefficients<T> forward;
  T *constant, *slope;
  GradientCoefficients(void* data, std::int64_t count)
      : forward(data, count), constant(forward.offset + count), slope(constant + count) {}
};

// The gradient before the tail for n <= channel_chunk neighbouring channels of a row: dy itself, or `buffer`.
template <class T>
inline const T* before_tail(const ChannelNormGradArgs& args, const ChannelCoefficients<T>& all, bool is_far,
                            std::int64_t coefficient, std::int64_t element, const T* x, const T* dy, std::int64_t n,
                            T* buffer) {
  if (args.tail == NormTail::none) return dy;
  if (args.tail == NormTail::relu) {
    normalize_run(all, is_far, coefficient, x, buffer, n);
    const T zero = round_for_relu(buffer, args.dtype, n);
    // In two loops: in one, AVX-512 loads dy under a mask, and no processor prefetches such loads.
    using Bits = std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint64_t>;
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = bit_cast<T>(Bits{0} - static_cast<Bits>(buffer[i] > zero));
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = bit_cast<T>(bit_cast<Bits>(buffer[i]) & bit_cast<Bits>(dy[i]));
  } else {
    keep_masked(args.mask, element, dy, buffer, n);
  }
  return buffer;
}

// Sums of dy and of dy (x - centre) over the rows of one tile; of a far channel the latter are of dy xhat.
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

// Adds up the ranges of each channel in the first one's place; the products become sums of dy xhat.
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

// The term of dx that goes through the statistics: with g = dy weight, dx = (g - mean(g) - xhat mean(g xhat)) rstd.
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

// The instances' sums of each channel, `offset` 0 for dbias and `channels` for dweight.
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
    const bool reads_x = args.tail == NormTail::relu || (args.dx && !args.has_fixed_statistics);
    for_each_chunk_from_end(begin, end, [&](std::int64_t at, std::int64_t n) {
      const T* const dy = read_elements(args.dy, args.dtype, at, n, dy_buffer);
      const T* const x = reads_x ? read_elements(args.x, args.dtype, at, n, x_buffer) : x_buffer;
      const auto for_each_run = [&](auto&& body) { for_each_channel_run(args.rows, args.channels, at, n, body); };
      if (args.tail == NormTail::relu) {
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

void channel_norm_backward_cpu(const ChannelNormGradArgs& args) {
  if (args.dtype == DType::f64) return channel_norm_detail::backward<double>(args);
  channel_norm_detail::backward<float>(args);
}

}  // namespace thimble::kernels
