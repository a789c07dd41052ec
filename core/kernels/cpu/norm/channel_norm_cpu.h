#pragma once
// How the CPU kernels of batch norm and group norm walk over (instances, rows, channels), and the coefficients of each
// channel, which forward and backward must compute alike.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/elementwise/mask_bits.h>
#include <thimble/core/kernels/cpu/norm/norm_cpu.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::channel_norm_detail {

// Channels that are summed side by side.
inline constexpr std::int64_t channel_tile = 256;
// Elements that are normalised at once; a multiple of 8, so that chunks share no byte of a mask.
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

// Channels of a tile: fewer than fit only where some threads would get no job otherwise, because short runs of rows are
// slow to read. Sums of a channel do not depend on it.
inline std::int64_t tile_channels(std::int64_t instances, std::int64_t rows, std::int64_t channels) {
  constexpr std::int64_t least = 32;
  const std::int64_t threads = thread_count(), jobs = threads > 1 ? 2 * threads : 1;
  std::int64_t tile = channel_tile;
  while (tile > least && instances * stretch_count(rows) * ((channels + tile - 1) / tile) < jobs) tile /= 2;
  return tile;
}

// Calls body(TileJob) for all tiles, in parallel: a thread takes the next one when it has finished one.
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

// Room for one block of a tile; f64 is used in place.
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

// Calls body(count, row) for rows four at a time, the last ones singly; `count` is a constant. Sums over four rows pass
// through registers once.
template <class F>
inline void by_fours(std::int64_t rows, F&& body) {
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) body(std::integral_constant<int, 4>{}, row);
  for (; row < rows; ++row) body(std::integral_constant<int, 1>{}, row);
}

// Calls body(i, coefficient, n) for runs of neighbouring channels in the n elements from `element` on: elements element
// + i ... belong to coefficients coefficient ..., which are counted over (instances, channels).
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

// n = (x - centre) scale + offset, three arrays one after the other.
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

// Calls body(element, n) for the chunks of [begin, end), the last ones first: the previous pass over these elements
// left them in the caches.
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
// with it where values are rounded only at the store. 8-bit values are rounded before instead, because E4M3 makes NaN
// of large ones.
template <class T>
inline T round_for_relu(T* values, DType dtype, std::int64_t n) {
  if (dtype == DType::f16) return static_cast<T>(0x1p-25);
  if (dtype == DType::bf16) return static_cast<T>(0x1p-134);
  round_elements(values, dtype, n);
  return T(0);
}

}  // namespace thimble::kernels::channel_norm_detail
