// Batch norm and group norm on CUDA devices, forward, and the table of the family. Statistics sum in the CPU's order.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <thimble/core/kernels/norm.h>
#include <thimble/core/kernels/shared/moments.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/norm/norm.h>
#include <thimble/cuda/reduce/ordered_sum.h>

namespace thimble::cuda_kernels::channel_norm_cuda_detail {

// ---- Shared by forward and backward of batch norm and group norm on CUDA devices: grids, coefficients, tails.

using kernels::channel_norm_block;
using kernels::channel_norm_stretch;
using kernels::NormTail;

/// Each team takes one range of rows of up to `columns` channels, block after block in the lanes, as in
/// cuda/reduce/reduce.cu.
struct StretchGrid {
  static constexpr int single_columns = 32;                  ///< if a thread takes one channel
  static constexpr int word_columns = 4 * columns_together;  ///< if a thread takes a word of channels
  int columns;
  std::int64_t rows, channels, stretches, groups;

  StretchGrid(std::int64_t rows_, std::int64_t channels_, int columns_ = single_columns)
      : columns(columns_),
        rows(rows_),
        channels(channels_),
        stretches(std::max<std::int64_t>(1, (rows + channel_norm_stretch - 1) / channel_norm_stretch)),
        groups((channels + columns - 1) / columns) {}
  std::int64_t jobs(std::int64_t instances) const { return instances * stretches * groups; }

  struct Place {
    std::int64_t instance, stretch, begin, end, channel, count;
  };
  THIMBLE_DEVICE Place place(std::int64_t job) const {
    const std::int64_t channel = job % groups * columns, stretch = job / groups % stretches;
    const std::int64_t begin = stretch * channel_norm_stretch, end = begin + channel_norm_stretch;
    return {job / groups / stretches, stretch, begin,
            end < rows ? end : rows,  channel, channels - channel < columns ? channels - channel : columns};
  }
};

/// n = (x - centre) scale + offset, three arrays over (instances, channels), one after the other.
template <class T>
struct Coefficients {
  T* centre;
  std::int64_t count;
  Coefficients(void* data, std::int64_t count_) : centre(static_cast<T*>(data)), count(count_) {}
  THIMBLE_DEVICE T normalize(std::int64_t at, T x) const {
    return (x - centre[at]) * centre[count + at] + centre[2 * count + at];
  }
  THIMBLE_DEVICE T scale(std::int64_t at) const { return centre[count + at]; }
  THIMBLE_DEVICE T* more(int array) const { return centre + array * count; }
};

/// Applies the tail to n = (x - centre) scale + offset; `round` rounds a value to the dtype.
template <class T, class Round>
THIMBLE_DEVICE inline T with_tail(NormTail tail, T n, T residual, Round&& round) {
  if (tail == NormTail::add_relu) n = round(n) + residual;
  n = round(n);
  if (tail == NormTail::relu6 && n > T(6)) return T(6);
  return tail != NormTail::none && n < T(0) ? T(0) : n;
}

/// dx of an element with gradient g before the tail and distance d to the centre; `part` and `product` are the terms
/// from the statistics.
template <class T>
THIMBLE_DEVICE inline T input_gradient(T g, T scale, T d, T part, T product) {
  return scale * g - (part + d * product);
}

template <class T>
struct FillCoefficients {
  Coefficients<T> all;
  std::int64_t channels, groups;
  const T* mean;
  const T* rstd;
  const T* weight;
  const T* bias;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t channel = at % channels, group = at / channels * groups + channel / (channels / groups);
    all.centre[at] = mean[group];
    all.more(1)[at] = rstd[group] * (weight ? weight[channel] : T(1));
    all.more(2)[at] = bias ? bias[channel] : T(0);
  }
};

template <class T, class Args>
Coefficients<T> fill_coefficients(const Args& args) {
  const std::int64_t count = args.instances * args.channels;
  const Coefficients<T> all(args.coefficients, count);
  for_each_item(count, FillCoefficients<T>{all, args.channels, args.groups, static_cast<const T*>(args.mean),
                                           static_cast<const T*>(args.rstd), static_cast<const T*>(args.weight),
                                           static_cast<const T*>(args.bias)});
  return all;
}

template <class S>
using Eight = Words<S, 8>;

/// Elements in eights: a row is a whole number of eights, and 32-bit divisions suffice.
struct EightGrid {
  std::uint32_t instances, rows, parts;  // eights of a row

  /// The first of an eight's coefficients.
  THIMBLE_DEVICE std::int64_t coefficient(std::int64_t i) const {
    const std::uint32_t at = static_cast<std::uint32_t>(i), row = at / parts;
    const std::uint32_t instance = instances == 1 ? 0 : row / rows;
    return std::int64_t{8} * (std::int64_t{instance} * parts + (at - row * parts));
  }
};

/// Calls f.template operator()<S>(grid, eights) if a kernel can take elements of S in eights: T is float, S f32, f16 or
/// bf16, rows are a multiple of 8 channels, and every non-null operand is aligned to 16 bytes. Else returns false.
template <class T, class Args, class F>
bool in_eights([[maybe_unused]] const Args& args, [[maybe_unused]] std::initializer_list<const void*> operands,
               [[maybe_unused]] F&& f) {
  if constexpr (std::is_same_v<T, float>) {
    const std::int64_t eights = args.instances * args.rows * args.channels / 8;
    if (args.channels % 8 != 0 || !are_aligned(operands) || eights > std::int64_t{UINT32_MAX}) return false;
    const EightGrid grid{static_cast<std::uint32_t>(args.instances), static_cast<std::uint32_t>(args.rows),
                         static_cast<std::uint32_t>(args.channels / 8)};
    if (args.dtype == DType::f32) return f.template operator()<float>(grid, eights), true;
    if (args.dtype == DType::bf16) return f.template operator()<bf16>(grid, eights), true;
    if (args.dtype == DType::f16) return f.template operator()<f16>(grid, eights), true;
  }
  return false;
}

/// Calls f.template operator()<S>(grid) if a kernel can take four neighbouring channels of S together, as in_eights.
template <class T, class Args, class F>
bool in_columns([[maybe_unused]] const Args& args, [[maybe_unused]] std::initializer_list<const void*> operands,
                [[maybe_unused]] F&& f) {
  if constexpr (std::is_same_v<T, float>) {
    if (args.channels % 8 != 0 || !are_aligned(operands)) return false;
    const StretchGrid grid(args.rows, args.channels, StretchGrid::word_columns);
    return with_word_dtype(args.dtype, [&]<class S>() { f.template operator()<S>(grid); });
  }
  return false;
}

template <class T>
THIMBLE_DEVICE inline T rounded(DType dtype, T value) {
  visit_met<T>(dtype, [&]<class S>() { value = convert_value<T>(convert_value<S>(value)); });
  return value;
}

}  // namespace thimble::cuda_kernels::channel_norm_cuda_detail

namespace thimble::cuda_kernels {
namespace channel_norm_cuda_detail {

using kernels::ChannelNormArgs;
using kernels::Moments;
using kernels::RunningStatisticsArgs;
using kernels::shifted_moments;

// Moments of every range of rows per instance and channel: first all means of a range, then all M2.
template <class T>
struct StretchMoments {
  static constexpr int threads = 256;
  StretchGrid grid;
  DType dtype;
  const void* x;
  double* moments;

  THIMBLE_DEVICE Moments block(std::int64_t first, std::int64_t rows) const {
    Moments moments_of;
    visit_met<T>(dtype, [&]<class S>() { moments_of = block_of(static_cast<const S*>(x) + first, rows); });
    return moments_of;
  }

  template <class S>
  THIMBLE_DEVICE Moments block_of(const S* first, std::int64_t rows) const {
    T shift = 0;
    for (std::int64_t r = 0; r < rows; ++r) shift += convert_value<T>(first[r * grid.channels]);
    shift /= static_cast<T>(rows);
    T sum = 0, squares = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T d = convert_value<T>(first[r * grid.channels]) - shift;
      sum += d;
      squares += d * d;
    }
    return shifted_moments(static_cast<double>(rows), static_cast<double>(shift), static_cast<double>(sum),
                           static_cast<double>(squares));
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const StretchGrid::Place place = grid.place(job);
    constexpr int columns = StretchGrid::single_columns, lanes = Team::size / columns;
    const Shared<Moments> shared = team.template shared<Moments>();  // (lanes, columns)
    const int column = team.rank() % columns, lane = team.rank() / columns;
    const bool is_there = column < place.count;
    const std::int64_t channel = place.channel + column;
    Moments all;
    for (std::int64_t round = place.begin; round < place.end; round += lanes * channel_norm_block) {
      const std::int64_t begin = round + lane * channel_norm_block;
      if (is_there && begin < place.end) {
        const std::int64_t rows = place.end - begin < channel_norm_block ? place.end - begin : channel_norm_block;
        shared[lane * columns + column] = block((place.instance * grid.rows + begin) * grid.channels + channel, rows);
      }
      team.sync();
      if (lane == 0 && is_there) {
        for (int l = 0; l < lanes && round + l * channel_norm_block < place.end; ++l) {
          all.merge(shared[l * columns + column]);
        }
      }
      team.sync();
    }
    if (lane != 0 || !is_there) return;
    double* const means = moments + (place.instance * grid.stretches + place.stretch) * 2 * grid.channels + channel;
    means[0] = all.mean;
    means[grid.channels] = all.m2;
  }
};

// The same with four neighbouring channels a thread.
template <class S>
struct StretchMomentsOfWords {
  static constexpr int threads = 128, words = StretchGrid::word_columns / columns_together;
  static_assert(threads / words * channel_norm_block == channel_norm_stretch);  // a lane for each block
  StretchGrid grid;
  const S* x;
  double* moments;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    constexpr int columns = StretchGrid::word_columns;
    const StretchGrid::Place place = grid.place(job);
    const Shared<Moments> shared = team.template shared<Moments>();  // (lanes, columns)
    const int lane = team.rank() / words, column = team.rank() % words * columns_together;
    const std::int64_t begin = place.begin + lane * channel_norm_block, left = place.end - begin;
    if (column < place.count && left > 0) {
      const std::int64_t rows = left < channel_norm_block ? left : channel_norm_block;
      const S* const from = x + (place.instance * grid.rows + begin) * grid.channels + place.channel + column;
      Words<float, columns_together> shift = sum_of_rows(from, rows, grid.channels), sum{}, squares{};
      THIMBLE_UNROLL
      for (int e = 0; e < columns_together; ++e) shift.values[e] /= static_cast<float>(rows);
      for_each_row<1>({from}, rows, grid.channels, [&](std::int64_t, const ColumnWord<S>(&word)[1]) {
        THIMBLE_UNROLL
        for (int e = 0; e < columns_together; ++e) {
          const float d = widened(word[0].values[e]) - shift.values[e];
          sum.values[e] += d;
          squares.values[e] += d * d;
        }
      });
      THIMBLE_UNROLL
      for (int e = 0; e < columns_together; ++e) {
        shared[lane * columns + column + e] =
            shifted_moments(static_cast<double>(rows), static_cast<double>(shift.values[e]),
                            static_cast<double>(sum.values[e]), static_cast<double>(squares.values[e]));
      }
    }
    team.sync();
    if (team.rank() >= place.count) return;
    Moments all;
    for (int l = 0; place.begin + l * channel_norm_block < place.end; ++l) {
      all.merge(shared[l * columns + team.rank()]);
    }
    double* const means =
        moments + (place.instance * grid.stretches + place.stretch) * 2 * grid.channels + place.channel + team.rank();
    means[0] = all.mean;
    means[grid.channels] = all.m2;
  }
};

// Merges the ranges of each channel, one after the other, in the first one's place. The threads of a warp compute each
// range's fraction of all rows so far together, ahead of the channels' merges.
struct MergeStretches {
  static constexpr int threads = 32;
  StretchGrid grid;
  double* moments;

  THIMBLE_DEVICE double rows_of(std::int64_t stretch) const {
    const std::int64_t left = grid.rows - stretch * channel_norm_stretch;
    return static_cast<double>(left < channel_norm_stretch ? left : channel_norm_stretch);
  }
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    constexpr int ahead = 8;
    const std::int64_t groups = (grid.channels + threads - 1) / threads;
    const std::int64_t channel = job % groups * threads + team.rank();
    double* const first = moments + job / groups * grid.stretches * 2 * grid.channels + channel;
    const Shared<double> shares = team.template shared<double>();
    Moments all;
    for (std::int64_t begin = 0; begin < grid.stretches; begin += Team::size) {
      const std::int64_t own = begin + team.rank();
      const std::int64_t end = begin + Team::size < grid.stretches ? begin + Team::size : grid.stretches;
      if (own < end) {
        shares[team.rank()] = rows_of(own) / (static_cast<double>(own * channel_norm_stretch) + rows_of(own));
      }
      team.sync();
      for (std::int64_t from = begin; channel < grid.channels && from < end; from += ahead) {
        double held[ahead][2];
        THIMBLE_UNROLL
        for (int i = 0; i < ahead; ++i) {
          const double* const at = first + (from + i < end ? from + i : begin) * 2 * grid.channels;
          held[i][0] = at[0], held[i][1] = at[grid.channels];
        }
        THIMBLE_UNROLL
        for (int i = 0; i < ahead; ++i) {
          if (from + i >= end) break;
          all.merge({rows_of(from + i), held[i][0], held[i][1]}, shares[from + i - begin]);
        }
      }
      team.sync();
    }
    if (channel >= grid.channels) return;
    first[0] = all.mean;
    first[grid.channels] = all.m2;
  }
};

THIMBLE_DEVICE inline void update_running(void* running, DType dtype, std::int64_t at, double momentum, double value) {
  store_total(running, dtype, at, (1 - momentum) * load_wide(running, dtype, at) + momentum * value);
}

// Merges the channels of each group into mean, rstd and the running statistics.
template <class T>
struct GroupStatistics {
  StretchGrid grid;
  std::int64_t groups;
  const double* moments;
  double epsilon, momentum;
  T* mean;
  T* rstd;
  void* running_mean;
  void* running_var;
  DType running_dtype;
  DType dtype;
  const void* x;

  // Recomputes in f64 the moments of a channel whose sums have left f32.
  THIMBLE_DEVICE Moments again(std::int64_t instance, std::int64_t channel) const {
    const std::int64_t first = instance * grid.rows * grid.channels + channel;
    const double count = static_cast<double>(grid.rows);
    double sum = 0, squares = 0;
    for (std::int64_t r = 0; r < grid.rows; ++r) sum += load_wide(x, dtype, first + r * grid.channels);
    for (std::int64_t r = 0; r < grid.rows; ++r) {
      const double d = load_wide(x, dtype, first + r * grid.channels) - sum / count;
      squares += d * d;
    }
    return {count, sum / count, squares};
  }

  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t instance = at / groups, group = at % groups, size = grid.channels / groups;
    Moments all;
    for (std::int64_t channel = group * size; channel < (group + 1) * size; ++channel) {
      const double* const means = moments + instance * grid.stretches * 2 * grid.channels + channel;
      const double squares = means[grid.channels];
      const bool is_wide = std::is_same_v<T, float> && kernels::leaves_f32(squares, epsilon);
      all.merge(is_wide ? again(instance, channel) : Moments{static_cast<double>(grid.rows), means[0], squares});
    }
    mean[at] = static_cast<T>(all.mean);
    rstd[at] = static_cast<T>(1 / std::sqrt(all.variance() + epsilon));
    if (running_mean) update_running(running_mean, running_dtype, group, momentum, all.mean);
    if (running_var) {
      const double unbiased = all.variance() * (all.count / (all.count - 1));
      update_running(running_var, running_dtype, group, momentum, unbiased);
    }
  }
};

// Normalizes eight neighbouring elements, which share a byte of the mask.
template <class T>
struct Normalize {
  std::int64_t rows, channels, elements;
  DType dtype;
  NormTail tail;
  Coefficients<T> all;
  const void* x;
  const void* residual;
  void* y;
  std::uint8_t* mask;

  THIMBLE_DEVICE T value(std::int64_t at) const {
    const std::int64_t row = at / channels;
    const T n = all.normalize(row / rows * channels + at % channels, load<T>(x, dtype, at));
    const T other = tail == NormTail::add_relu ? load<T>(residual, dtype, at) : T(0);
    return with_tail(tail, n, other, [&](T v) { return rounded(dtype, v); });
  }
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    unsigned bits = 0;
    for (int bit = 0; bit < 8; ++bit) {
      const std::int64_t at = 8 * i + bit;
      if (at >= elements) break;
      const T n = value(at);
      store<T>(y, dtype, at, n);
      bits |= (n > T(0) ? 1u : 0u) << bit;
    }
    if (mask) mask[i] = static_cast<std::uint8_t>(bits);
  }
};

// Normalize for rows in eights.
template <class S>
struct NormalizeEights {
  EightGrid grid;
  NormTail tail;
  Coefficients<float> all;
  const S* x;
  const S* residual;
  S* y;
  std::uint8_t* mask;

  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t at = grid.coefficient(i);
    const Eight<float> centre = words_at<8>(all.more(0), at), scale = words_at<8>(all.more(1), at),
                       offset = words_at<8>(all.more(2), at);
    const Eight<S> from = words_at<8>(x, 8 * i);
    Eight<S> other{};
    if (tail == NormTail::add_relu) other = words_at<8>(residual, 8 * i);
    float values[8];
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      values[e] = (widened(from.values[e]) - centre.values[e]) * scale.values[e] + offset.values[e];
    }
    if (tail == NormTail::relu6) {
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) values[e] = values[e] > 6 ? 6 : values[e];
    }
    Eight<S> to = narrowed<S>(values);
    if (tail == NormTail::add_relu) {
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) values[e] = widened(to.values[e]) + widened(other.values[e]);
      to = narrowed<S>(values);
    }
    unsigned bits = 0;
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      const float kept = widened(to.values[e]);
      if (tail != NormTail::none && kept < 0) to.values[e] = S{};
      bits |= (kept > 0 ? 1u : 0u) << e;
    }
    put_words(y, 8 * i, to);
    if (mask) mask[i] = static_cast<std::uint8_t>(bits);
  }
};

template <class T>
void forward(const ChannelNormArgs& args) {
  if (!args.has_statistics) {
    const StretchGrid grid(args.rows, args.channels);
    const bool is_done = in_columns<T>(args, {args.x}, [&]<class S>(const StretchGrid& words) {
      for_each_team(words.jobs(args.instances),
                    StretchMomentsOfWords<S>{words, static_cast<const S*>(args.x), args.moments},
                    StretchMomentsOfWords<S>::threads * columns_together * sizeof(Moments));
    });
    if (!is_done) {
      for_each_team(grid.jobs(args.instances), StretchMoments<T>{grid, args.dtype, args.x, args.moments},
                    StretchMoments<T>::threads * sizeof(Moments));
    }
    for_each_team(args.instances * ((args.channels + 31) / 32), MergeStretches{grid, args.moments},
                  MergeStretches::threads * sizeof(double));
    for_each_item(args.instances * args.groups,
                  GroupStatistics<T>{grid, args.groups, args.moments, args.epsilon, args.momentum,
                                     static_cast<T*>(args.mean), static_cast<T*>(args.rstd), args.running_mean,
                                     args.running_var, args.running_dtype, args.dtype, args.x});
  }
  const Coefficients<T> all = fill_coefficients<T>(args);
  const bool is_done =
      in_eights<T>(args, {args.x, args.residual, args.y, args.coefficients}, [&]<class S>(EightGrid grid, auto eights) {
        for_each_item(eights, NormalizeEights<S>{grid, args.tail, Coefficients<float>(args.coefficients, all.count),
                                                 static_cast<const S*>(args.x), static_cast<const S*>(args.residual),
                                                 static_cast<S*>(args.y), args.mask});
      });
  if (is_done) return;
  const std::int64_t elements = args.instances * args.rows * args.channels;
  for_each_item((elements + 7) / 8, Normalize<T>{args.rows, args.channels, elements, args.dtype, args.tail, all, args.x,
                                                 args.residual, args.y, args.mask});
}

template <class T>
struct FromRunning {
  double epsilon;
  const void* running_mean;
  const void* running_var;
  DType dtype;
  T* mean;
  T* rstd;
  THIMBLE_DEVICE void operator()(std::int64_t channel) const {
    mean[channel] = static_cast<T>(load_wide(running_mean, dtype, channel));
    rstd[channel] = static_cast<T>(1 / std::sqrt(load_wide(running_var, dtype, channel) + epsilon));
  }
};

constexpr kernels::NormKernels table{row_norm_forward, row_norm_backward, cuda_kernels::channel_norm_forward,
                                     cuda_kernels::channel_norm_backward, cuda_kernels::running_statistics};

}  // namespace channel_norm_cuda_detail

void channel_norm_forward(const kernels::ChannelNormArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() { channel_norm_cuda_detail::forward<T>(args); });
}

void running_statistics(const kernels::RunningStatisticsArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_item(args.channels, channel_norm_cuda_detail::FromRunning<T>{
                                     args.epsilon, args.running_mean, args.running_var, args.running_dtype,
                                     static_cast<T*>(args.mean), static_cast<T*>(args.rstd)});
  });
}

}  // namespace thimble::cuda_kernels

namespace thimble::kernels {

const NormKernels* const norm_cuda = &cuda_kernels::channel_norm_cuda_detail::table;

}  // namespace thimble::kernels

namespace thimble::cuda_kernels {

// ---- Batch norm and group norm on CUDA devices, backward: the sums over each channel in the CPU's order, then dx.

namespace channel_norm_cuda_detail {

using kernels::ChannelNormGradArgs;

// The gradient before the tail, of element `at` whose coefficients are `coefficient`.
template <class T>
struct BeforeTail {
  DType dtype;
  NormTail tail;
  Coefficients<T> all;
  const void* x;
  const void* dy;
  const std::uint8_t* mask;
  template <class S>
  THIMBLE_DEVICE T of(std::int64_t at, std::int64_t coefficient) const {
    const T g = convert_value<T>(static_cast<const S*>(dy)[at]);
    if (tail == NormTail::none) return g;
    if (tail == NormTail::add_relu) return (mask[at / 8] >> (at % 8)) & 1u ? g : T(0);
    const T n = all.normalize(coefficient, convert_value<T>(static_cast<const S*>(x)[at]));
    const T kept = convert_value<T>(convert_value<S>(n));
    return kept > T(0) && !(tail == NormTail::relu6 && kept >= T(6)) ? g : T(0);
  }
};

// Sums of g and of g (x - centre) over one range of rows, for every instance and channel.
template <class T>
struct StretchSums {
  static constexpr int threads = 256;
  StretchGrid grid;
  BeforeTail<T> gradient;
  double* partial;

  struct Sums {
    double sum, product;
  };
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const StretchGrid::Place place = grid.place(job);
    constexpr int columns = StretchGrid::single_columns, lanes = Team::size / columns;
    const Shared<Sums> shared = team.template shared<Sums>();  // (lanes, columns)
    const int column = team.rank() % columns, lane = team.rank() / columns;
    const bool is_there = column < place.count;
    const std::int64_t channel = place.channel + column, coefficient = place.instance * grid.channels + channel;
    Sums all{0, 0};
    for (std::int64_t round = place.begin; round < place.end; round += lanes * channel_norm_block) {
      const std::int64_t begin = round + lane * channel_norm_block;
      if (is_there && begin < place.end) {
        const std::int64_t end = begin + channel_norm_block < place.end ? begin + channel_norm_block : place.end;
        T sum = 0, product = 0;
        visit_met<T>(gradient.dtype, [&]<class S>() {
          const S* const x = static_cast<const S*>(gradient.x);
          for (std::int64_t r = begin; r < end; ++r) {
            const std::int64_t at = (place.instance * grid.rows + r) * grid.channels + channel;
            const T g = gradient.template of<S>(at, coefficient);
            sum += g;
            if (x) product += g * (convert_value<T>(x[at]) - gradient.all.centre[coefficient]);
          }
        });
        shared[lane * columns + column] = Sums{static_cast<double>(sum), static_cast<double>(product)};
      }
      team.sync();
      if (lane == 0 && is_there) {
        for (int l = 0; l < lanes && round + l * channel_norm_block < place.end; ++l) {
          const Sums part = shared[l * columns + column];
          all.sum += part.sum;
          all.product += part.product;
        }
      }
      team.sync();
    }
    if (lane != 0 || !is_there) return;
    double* const to = partial + (place.instance * grid.stretches + place.stretch) * 2 * grid.channels + channel;
    to[0] = all.sum;
    to[grid.channels] = all.product;
  }
};

/// Whether the gradient passes a tail that decides by n, which is not rounded yet.
template <class S>
THIMBLE_DEVICE inline bool passes_tail(NormTail tail, float n) {
  return is_positive_as<S>(n) && (tail == NormTail::relu || is_below_six_as<S>(n));
}

// The same with four neighbouring channels a thread.
template <class S>
struct StretchSumsOfWords {
  static constexpr int threads = 128, words = StretchGrid::word_columns / columns_together;
  static_assert(threads / words * channel_norm_block == channel_norm_stretch);  // a lane for each block
  StretchGrid grid;
  NormTail tail;
  Coefficients<float> all;
  const S* x;  // null to skip products
  const S* dy;
  const std::uint8_t* mask;
  double* partial;

  using Word = Words<float, columns_together>;
  // Rows from element `first` on.
  template <NormTail end>
  THIMBLE_DEVICE void add_rows(std::int64_t rows, std::int64_t first, std::int64_t coefficient, Word& sum,
                               Word& product) const {
    Word centre{}, scale{}, offset{};
    if (x) centre = words_at<columns_together>(all.more(0), coefficient);
    if constexpr (kernels::reads_x(end)) {
      scale = words_at<columns_together>(all.more(1), coefficient);
      offset = words_at<columns_together>(all.more(2), coefficient);
    }
    const auto take = [&](std::int64_t row, const ColumnWord<S>& dy_word, const ColumnWord<S>& x_word) {
      unsigned bits = 0xFu;
      if constexpr (end == NormTail::add_relu) {
        const std::int64_t at = first + row * grid.channels;
        bits = static_cast<unsigned>(mask[at / 8]) >> (at % 8);
      }
      THIMBLE_UNROLL
      for (int e = 0; e < columns_together; ++e) {
        const float d = widened(x_word.values[e]) - centre.values[e];
        bool passes = (bits >> e) & 1u;
        if constexpr (kernels::reads_x(end)) passes = passes_tail<S>(end, d * scale.values[e] + offset.values[e]);
        const float g = passes ? widened(dy_word.values[e]) : 0.0f;
        sum.values[e] += g;
        product.values[e] += g * d;
      }
    };
    if (x) {
      for_each_row<2>({dy + first, x + first}, rows, grid.channels,
                      [&](std::int64_t row, const ColumnWord<S>(&both)[2]) { take(row, both[0], both[1]); });
    } else {
      for_each_row<1>({dy + first}, rows, grid.channels,
                      [&](std::int64_t row, const ColumnWord<S>(&one)[1]) { take(row, one[0], {}); });
    }
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    constexpr int columns = StretchGrid::word_columns;
    using Sums = typename StretchSums<float>::Sums;
    const StretchGrid::Place place = grid.place(job);
    const Shared<Sums> shared = team.template shared<Sums>();  // (lanes, columns)
    const int lane = team.rank() / words, column = team.rank() % words * columns_together;
    const std::int64_t begin = place.begin + lane * channel_norm_block, left = place.end - begin;
    if (column < place.count && left > 0) {
      const std::int64_t rows = left < channel_norm_block ? left : channel_norm_block;
      const std::int64_t channel = place.channel + column, coefficient = place.instance * grid.channels + channel;
      const std::int64_t first = (place.instance * grid.rows + begin) * grid.channels + channel;
      Word sum{}, product{};
      if (tail == NormTail::none) add_rows<NormTail::none>(rows, first, coefficient, sum, product);
      if (tail == NormTail::relu) add_rows<NormTail::relu>(rows, first, coefficient, sum, product);
      if (tail == NormTail::relu6) add_rows<NormTail::relu6>(rows, first, coefficient, sum, product);
      if (tail == NormTail::add_relu) add_rows<NormTail::add_relu>(rows, first, coefficient, sum, product);
      THIMBLE_UNROLL
      for (int e = 0; e < columns_together; ++e) {
        shared[lane * columns + column + e] =
            Sums{static_cast<double>(sum.values[e]), static_cast<double>(product.values[e])};
      }
    }
    team.sync();
    if (team.rank() >= place.count) return;
    Sums total{0, 0};
    for (int l = 0; place.begin + l * channel_norm_block < place.end; ++l) {
      const Sums part = shared[l * columns + team.rank()];
      total.sum += part.sum;
      total.product += part.product;
    }
    double* const to =
        partial + (place.instance * grid.stretches + place.stretch) * 2 * grid.channels + place.channel + team.rank();
    to[0] = total.sum;
    to[grid.channels] = total.product;
  }
};

// Adds up the ranges of each channel in the first one's place; the products become sums of dy xhat.
template <class T>
struct AddStretches {
  StretchGrid grid;
  std::int64_t groups;
  const T* rstd;
  double* partial;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t instance = at / grid.channels, channel = at % grid.channels;
    double* const sums = partial + instance * grid.stretches * 2 * grid.channels + channel;
    const std::int64_t apart = 2 * grid.channels, more = grid.stretches - 1;
    const double sum = sum_in_order(sums[0], sums + apart, more, apart);
    double product = sum_in_order(sums[grid.channels], sums + grid.channels + apart, more, apart);
    if (rstd) product *= static_cast<double>(rstd[instance * groups + channel / (grid.channels / groups)]);
    sums[0] = sum;
    sums[grid.channels] = product;
  }
};

// The term of dx that goes through the statistics: with g = dy weight, dx = (g - mean(g) - xhat mean(g xhat)) rstd.
template <class T>
struct GradientCoefficients {
  StretchGrid grid;
  std::int64_t groups;
  const T* weight;
  const T* rstd;
  const double* partial;
  Coefficients<T> all;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t size = grid.channels / groups, instance = at / groups, first = at % groups * size;
    const double* const sums = partial + instance * grid.stretches * 2 * grid.channels;
    double sum = 0, product = 0;
    for (std::int64_t channel = first; channel < first + size; ++channel) {
      const double w = weight ? static_cast<double>(weight[channel]) : 1;
      sum += w * sums[channel];
      product += w * sums[grid.channels + channel];
    }
    const double scale = static_cast<double>(rstd[at]), elements = static_cast<double>(grid.rows * size);
    for (std::int64_t channel = first; channel < first + size; ++channel) {
      all.more(3)[instance * grid.channels + channel] = static_cast<T>(scale * (sum / elements));
      all.more(4)[instance * grid.channels + channel] = static_cast<T>(scale * scale * (product / elements));
    }
  }
};

// Sums each channel over the instances.
struct ParameterGradient {
  std::int64_t instances, stride;
  const double* sums;
  void* to;
  DType dtype;
  THIMBLE_DEVICE void operator()(std::int64_t channel) const {
    double total = 0;
    for (std::int64_t i = 0; i < instances; ++i) total += sums[i * stride + channel];
    store_total(to, dtype, channel, total);
  }
};

template <class T>
struct InputGradients {
  std::int64_t rows, channels;
  bool has_fixed_statistics;
  BeforeTail<T> gradient;
  void* dx;
  void* dresidual;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    visit_met<T>(gradient.dtype, [&]<class S>() { run<S>(at); });
  }

 private:
  template <class S>
  THIMBLE_DEVICE void run(std::int64_t at) const {
    const std::int64_t coefficient = at / channels / rows * channels + at % channels;
    const Coefficients<T>& all = gradient.all;
    const T g = gradient.template of<S>(at, coefficient);
    T result = 0;
    if (dx) {
      result = all.scale(coefficient) * g;
      if (!has_fixed_statistics) {
        const T d = convert_value<T>(static_cast<const S*>(gradient.x)[at]) - all.centre[coefficient];
        result = input_gradient(g, all.scale(coefficient), d, all.more(3)[coefficient], all.more(4)[coefficient]);
      }
    }
    if (dresidual) static_cast<S*>(dresidual)[at] = convert_value<S>(g);
    if (dx) static_cast<S*>(dx)[at] = convert_value<S>(result);
  }
};

// Input gradients for rows in eights; reads everything before it writes, because buffers may alias.
template <class S>
struct InputGradientsEights {
  EightGrid grid;
  NormTail tail;
  bool reads_x, has_fixed_statistics;
  Coefficients<float> all;
  const S* x;
  const S* dy;
  const std::uint8_t* mask;
  S* dx;
  S* dresidual;

  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t at = grid.coefficient(i);
    const Eight<S> gradient = words_at<8>(dy, 8 * i);
    Eight<S> from{};
    Eight<float> centre{}, scale{}, offset{}, part{}, product{};
    if (reads_x) from = words_at<8>(x, 8 * i), centre = words_at<8>(all.more(0), at);
    if (dx || kernels::reads_x(tail)) scale = words_at<8>(all.more(1), at);
    if (kernels::reads_x(tail)) offset = words_at<8>(all.more(2), at);
    if (dx && !has_fixed_statistics) part = words_at<8>(all.more(3), at), product = words_at<8>(all.more(4), at);
    const unsigned bits = tail == NormTail::add_relu ? mask[i] : 0xFFu;
    float d[8], g[8], result[8];
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      d[e] = widened(from.values[e]) - centre.values[e];
      result[e] = d[e] * scale.values[e] + offset.values[e];
    }
    unsigned passing = bits;
    if (kernels::reads_x(tail)) {
      passing = 0;
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) passing |= (passes_tail<S>(tail, result[e]) ? 1u : 0u) << e;
    }
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      g[e] = (passing >> e) & 1u ? widened(gradient.values[e]) : 0.0f;
      result[e] = has_fixed_statistics ? scale.values[e] * g[e]
                                       : input_gradient(g[e], scale.values[e], d[e], part.values[e], product.values[e]);
    }
    if (dresidual) put_words(dresidual, 8 * i, narrowed<S>(g));
    if (dx) put_words(dx, 8 * i, narrowed<S>(result));
  }
};

template <class T>
void backward(const ChannelNormGradArgs& args) {
  const bool reads_coefficients = kernels::reads_x(args.tail) || args.dweight || args.dx;
  const bool reads_sums = args.dweight || args.dbias || (args.dx && !args.has_fixed_statistics);
  const Coefficients<T> all = reads_coefficients ? fill_coefficients<T>(args)
                                                 : Coefficients<T>(args.coefficients, args.instances * args.channels);
  const StretchGrid grid(args.rows, args.channels);
  const BeforeTail<T> gradient{args.dtype, args.tail, all, args.x, args.dy, args.mask};
  const T* const rstd = static_cast<const T*>(args.rstd);
  if (reads_sums) {
    BeforeTail<T> summed = gradient;
    if (!reads_coefficients) summed.x = nullptr;  // only the bias's gradient: skips products
    using Sums = typename StretchSums<T>::Sums;
    const bool is_done =
        in_columns<T>(args, {summed.x, args.dy, args.coefficients}, [&]<class S>(const StretchGrid& words) {
          const Coefficients<float> coefficients(args.coefficients, all.count);
          for_each_team(words.jobs(args.instances),
                        StretchSumsOfWords<S>{words, args.tail, coefficients, static_cast<const S*>(summed.x),
                                              static_cast<const S*>(args.dy), args.mask, args.partial},
                        StretchSumsOfWords<S>::threads * columns_together * sizeof(Sums));
        });
    if (!is_done) {
      for_each_team(grid.jobs(args.instances), StretchSums<T>{grid, summed, args.partial},
                    StretchSums<T>::threads * sizeof(Sums));
    }
    for_each_item(args.instances * args.channels, AddStretches<T>{grid, args.groups, rstd, args.partial});
    const std::int64_t stride = grid.stretches * 2 * args.channels;
    if (args.dweight) {
      for_each_item(args.channels, ParameterGradient{args.instances, stride, args.partial + args.channels, args.dweight,
                                                     args.parameter_dtype});
    }
    if (args.dbias) {
      for_each_item(args.channels,
                    ParameterGradient{args.instances, stride, args.partial, args.dbias, args.parameter_dtype});
    }
    if (args.dx && !args.has_fixed_statistics) {
      for_each_item(
          args.instances * args.groups,
          GradientCoefficients<T>{grid, args.groups, static_cast<const T*>(args.weight), rstd, args.partial, all});
    }
  }
  if (!args.dx && !args.dresidual) return;
  const bool reads_x = kernels::reads_x(args.tail) || (args.dx && !args.has_fixed_statistics);
  const bool is_done = in_eights<T>(
      args, {args.x, args.dy, args.dx, args.dresidual, args.coefficients},
      [&]<class S>(EightGrid eight_grid, auto eights) {
        for_each_item(eights,
                      InputGradientsEights<S>{eight_grid, args.tail, reads_x, args.has_fixed_statistics,
                                              Coefficients<float>(args.coefficients, all.count),
                                              static_cast<const S*>(args.x), static_cast<const S*>(args.dy), args.mask,
                                              static_cast<S*>(args.dx), static_cast<S*>(args.dresidual)});
      });
  if (is_done) return;
  for_each_item(
      args.instances * args.rows * args.channels,
      InputGradients<T>{args.rows, args.channels, args.has_fixed_statistics, gradient, args.dx, args.dresidual});
}

}  // namespace channel_norm_cuda_detail

void channel_norm_backward(const kernels::ChannelNormGradArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() { channel_norm_cuda_detail::backward<T>(args); });
}

}  // namespace thimble::cuda_kernels
