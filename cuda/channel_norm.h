#pragma once
// What forward and backward of batch norm and group norm on CUDA devices share: cutting, coefficients, relu.

#include <algorithm>
#include <cstdint>

#include <thimble/core/kernels/norm.h>
#include <thimble/cuda/element.h>

namespace thimble::cuda_kernels::channel_norm_cuda_detail {

using kernels::channel_norm_block;
using kernels::channel_norm_stretch;
using kernels::NormTail;

/// Teams that take one stretch of rows of up to `columns` channels: block after block in the lanes, as cuda/reduce.cu.
struct StretchGrid {
  static constexpr int columns = 32;
  std::int64_t rows, channels, stretches, groups;

  StretchGrid(std::int64_t rows_, std::int64_t channels_)
      : rows(rows_),
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

/// A value as the dtype can hold it.
template <class T>
THIMBLE_DEVICE inline T rounded(DType dtype, T value) {
  visit_met<T>(dtype, [&]<class S>() { value = convert_value<T>(convert_value<S>(value)); });
  return value;
}

}  // namespace thimble::cuda_kernels::channel_norm_cuda_detail
