#pragma once
// Shared by forward and backward of batch norm and group norm on CUDA devices: cutting, coefficients, relu.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <thimble/core/kernels/norm.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/reduce/ordered_sum.h>

namespace thimble::cuda_kernels::channel_norm_cuda_detail {

using kernels::channel_norm_block;
using kernels::channel_norm_stretch;
using kernels::NormTail;

/// Teams that take one range of rows of up to `columns` channels: block after block in the lanes, as
/// cuda/reduce/reduce.cu.
struct StretchGrid {
  static constexpr int single_columns = 32;                  ///< where a thread has one
  static constexpr int word_columns = 4 * columns_together;  ///< where it has a word of them
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

/// The tail behind n = (x - centre) scale + offset; `round` rounds a value to the dtype.
template <class T, class Round>
THIMBLE_DEVICE inline T with_tail(NormTail tail, T n, T residual, Round&& round) {
  if (tail == NormTail::add_relu) n = round(n) + residual;
  n = round(n);
  return tail != NormTail::none && n < T(0) ? T(0) : n;
}

/// dx of an element whose gradient before the tail is g and whose distance to the centre is d; `part` and `product` are
/// the statistics' terms.
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

/// Elements in eights: rows are a whole number of them, and there are few enough for cheap divisions.
struct EightGrid {
  std::uint32_t instances, rows, parts;  // eights of a row

  /// The first of an eight's coefficients.
  THIMBLE_DEVICE std::int64_t coefficient(std::int64_t i) const {
    const std::uint32_t at = static_cast<std::uint32_t>(i), row = at / parts;
    const std::uint32_t instance = instances == 1 ? 0 : row / rows;
    return std::int64_t{8} * (std::int64_t{instance} * parts + (at - row * parts));
  }
};

/// f.template operator()<S>(grid, eights) where a kernel can take elements of S in eights: T is float, S f32, f16 or
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

/// f.template operator()<S>(grid) where a kernel can take four neighbouring channels of S together, as in_eights.
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
