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

// Sums of g and of g (x - centre) over one stretch of rows, for every instance and channel.
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
    constexpr int columns = StretchGrid::columns, lanes = Team::size / columns;
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

// Adds up the stretches of each channel in the first one's place; the products become sums of dy xhat.
template <class T>
struct AddStretches {
  StretchGrid grid;
  std::int64_t groups;
  const T* rstd;
  double* partial;
  THIMBLE_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t instance = at / grid.channels, channel = at % grid.channels;
    double* const sums = partial + instance * grid.stretches * 2 * grid.channels + channel;
    double sum = sums[0], product = sums[grid.channels];
    for (std::int64_t s = 1; s < grid.stretches; ++s) {
      sum += sums[s * 2 * grid.channels];
      product += sums[(s * 2 + 1) * grid.channels];
    }
    if (rstd) product *= static_cast<double>(rstd[instance * groups + channel / (grid.channels / groups)]);
    sums[0] = sum;
    sums[grid.channels] = product;
  }
};

// The part of dx that goes through the statistics: with g = dy weight, dx = (g - mean(g) - xhat mean(g xhat)) rstd.
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

// The same for rows in eights: everything is read before anything is written, because buffers may be one.
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
    Eight<S> from{}, to, before;
    Eight<float> centre{}, scale{}, offset{}, part{}, product{};
    if (reads_x) from = words_at<8>(x, 8 * i), centre = words_at<8>(all.more(0), at);
    if (dx || tail == NormTail::relu) scale = words_at<8>(all.more(1), at);
    if (tail == NormTail::relu) offset = words_at<8>(all.more(2), at);
    if (dx && !has_fixed_statistics) part = words_at<8>(all.more(3), at), product = words_at<8>(all.more(4), at);
    const unsigned bits = tail == NormTail::add_relu ? mask[i] : 0xFFu;
    for (int e = 0; e < 8; ++e) {
      const float d = convert_value<float>(from.values[e]) - centre.values[e];
      bool passes = (bits >> e) & 1u;
      if (tail == NormTail::relu) {
        passes = convert_value<float>(convert_value<S>(d * scale.values[e] + offset.values[e])) > 0;
      }
      const float g = passes ? convert_value<float>(gradient.values[e]) : 0.0f;
      before.values[e] = convert_value<S>(g);
      to.values[e] = convert_value<S>(has_fixed_statistics
                                          ? scale.values[e] * g
                                          : input_gradient(g, scale.values[e], d, part.values[e], product.values[e]));
    }
    if (dresidual) put_words(dresidual, 8 * i, before);
    if (dx) put_words(dx, 8 * i, to);
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
    if (!reads_coefficients) summed.x = nullptr;  // the bias's gradient alone: products are not asked for
    for_each_team(grid.jobs(args.instances), StretchSums<T>{grid, summed, args.partial},
                  StretchSums<T>::threads * sizeof(typename StretchSums<T>::Sums));
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
