// Batch norm and group norm on CUDA devices, forward, and the table of the family. Statistics have the CPU's order.

#include <cmath>

#include <thimble/core/kernels/shared/moments.h>
#include <thimble/cuda/norm/channel_norm.h>
#include <thimble/cuda/norm/norm.h>

namespace thimble::cuda_kernels {
namespace channel_norm_cuda_detail {

using kernels::ChannelNormArgs;
using kernels::Moments;
using kernels::RunningStatisticsArgs;
using kernels::shifted_moments;

// Moments of every range of rows, for every instance and channel: all means of a range, then all M2.
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

// Merges the channels of each group; mean, rstd and the running statistics.
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

// Eight neighbouring elements: one byte of a mask.
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

// The same for rows in eights.
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
