// Batch norm and group norm on CUDA devices, backward: the sums over each channel in the CPU's order, then dx.

#include <thimble/cuda/norm/channel_norm.h>
#include <thimble/cuda/norm/norm.h>

namespace thimble::cuda_kernels {
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
    return convert_value<T>(convert_value<S>(n)) > T(0) ? g : T(0);
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
    if constexpr (end == NormTail::relu) {
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
        if constexpr (end == NormTail::relu) passes = is_positive_as<S>(d * scale.values[e] + offset.values[e]);
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

// The instances' sums of each channel.
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

// The same for rows in eights: reads everything before writing, because buffers may alias.
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
    if (dx || tail == NormTail::relu) scale = words_at<8>(all.more(1), at);
    if (tail == NormTail::relu) offset = words_at<8>(all.more(2), at);
    if (dx && !has_fixed_statistics) part = words_at<8>(all.more(3), at), product = words_at<8>(all.more(4), at);
    const unsigned bits = tail == NormTail::add_relu ? mask[i] : 0xFFu;
    float d[8], g[8], result[8];
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      d[e] = widened(from.values[e]) - centre.values[e];
      result[e] = d[e] * scale.values[e] + offset.values[e];
    }
    unsigned passing = bits;
    if (tail == NormTail::relu) {
      passing = 0;
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) passing |= (is_positive_as<S>(result[e]) ? 1u : 0u) << e;
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
  const bool reads_coefficients = args.tail == NormTail::relu || args.dweight || args.dx;
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
  const bool reads_x = args.tail == NormTail::relu || (args.dx && !args.has_fixed_statistics);
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
