// Layer norm and RMS norm on the CPU: statistics over rows (norm.h).

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/kernels/cpu/norm/norm_cpu.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace layer_norm_detail {

// Elements of a row that are converted at once; a row up to this length is converted once per pass.
constexpr std::int64_t room = 4096;
// Elements of one block of a row's sums.
constexpr std::int64_t block = 1024;
constexpr std::int64_t grain_elements = 1 << 14;

// Sums run in independent chains: element i of a block is added to chain i % width, width being the elements of 256
// bytes. Chains a quarter apart are added in the compute type, the rest pairwise in f64: the same order in every
// instruction set.
template <class T, Isa target>
struct Chains {
  using V = Simd<T, target>;
  static constexpr int vectors = 256 / V::bytes;
  static constexpr std::int64_t width = 256 / sizeof(T);
  using Vector = typename V::Vector;
  Vector sums[vectors]{};

  /// The total of all chains, after the terms of the elements behind the last whole width.
  template <class F>
  THIMBLE_ALWAYS_INLINE double total(std::int64_t whole, std::int64_t n, F&& term) const {
    constexpr std::int64_t lanes = width / 4;
    T values[width];
    double pairs[lanes];
    for (int v = 0; v < vectors; ++v) V::at(values + v * V::lanes) = sums[v];
    for (std::int64_t i = whole; i < n; ++i) values[i - whole] += term(i);
    for (std::int64_t i = 0; i < lanes; ++i) {
      pairs[i] = static_cast<double>((values[i] + values[lanes + i]) + (values[2 * lanes + i] + values[3 * lanes + i]));
    }
    for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
      for (std::int64_t i = 0; i < half; ++i) pairs[i] += pairs[i + half];
    }
    return pairs[0];
  }

  /// Calls f(v, i) for the whole widths of n elements, i being a vector's first element and v its place in `sums`:
  /// `at_once` vectors of every width, then the next ones. Choose it to leave registers for the sums; more than one
  /// pass suits elements that are in the cache.
  template <int at_once, class F>
  static THIMBLE_ALWAYS_INLINE std::int64_t for_each(std::int64_t n, F&& f) {
    const std::int64_t whole = n / width * width;
    for_groups<at_once>(whole, f, std::make_integer_sequence<int, (vectors + at_once - 1) / at_once>{});
    return whole;
  }

  /// Moments of at most `block` elements.
  static THIMBLE_ALWAYS_INLINE Moments moments(const T* x, std::int64_t n) {
    Chains sum;
    std::int64_t whole = for_each<8>(n, [&](auto v, std::int64_t i) { sum.sums[v] += V::at(x + i); });
    const T shift = static_cast<T>(sum.total(whole, n, [&](std::int64_t i) { return x[i]; }) / static_cast<double>(n));
    Vector shifts;
    V::broadcast(shifts, shift);
    Chains first, second;
    for_each<4>(n, [&](auto v, std::int64_t i) {
      const Vector d = V::at(x + i) - shifts;
      first.sums[v] += d;
      second.sums[v] += d * d;
    });
    const auto square = [&](std::int64_t i) { return (x[i] - shift) * (x[i] - shift); };
    return shifted_moments(static_cast<double>(n), static_cast<double>(shift),
                           first.total(whole, n, [&](std::int64_t i) { return x[i] - shift; }),
                           second.total(whole, n, square));
  }

  static THIMBLE_ALWAYS_INLINE double squares(const T* x, std::int64_t n) {
    Chains sum;
    const std::int64_t whole = for_each<8>(n, [&](auto v, std::int64_t i) {
      const Vector a = V::at(x + i);
      sum.sums[v] += a * a;
    });
    return sum.total(whole, n, [&](std::int64_t i) { return x[i] * x[i]; });
  }

 private:
  template <int at_once, class F, int... group>
  static THIMBLE_ALWAYS_INLINE void for_groups(std::int64_t whole, F& f, std::integer_sequence<int, group...>) {
    (for_group<group * at_once>(whole, f, std::make_integer_sequence<int, std::min(at_once, vectors)>{}), ...);
  }
  template <int first, class F, int... v>
  static THIMBLE_ALWAYS_INLINE void for_group(std::int64_t whole, F& f, std::integer_sequence<int, v...>) {
    for (std::int64_t at = 0; at < whole; at += width) {
      (f(std::integral_constant<int, first + v>{}, at + (first + v) * V::lanes), ...);
    }
  }
};

// Mean and reciprocal standard deviation of one row, as backward reads them.
template <class T>
struct RowStatistics {
  T mean, rstd;
};

template <class T, Isa target>
THIMBLE_ALWAYS_INLINE RowStatistics<T> row_statistics(const RowNormArgs& args, std::int64_t row, T* buffer) {
  const double length = static_cast<double>(args.length);
  Moments moments;
  double squares = 0;
  for (std::int64_t at = 0; at < args.length; at += room) {
    const std::int64_t n = std::min(room, args.length - at);
    const T* const x = read_elements(args.x, args.dtype, row * args.length + at, n, buffer);
    for (std::int64_t i = 0; i < n; i += block) {
      const std::int64_t count = std::min(block, n - i);
      if (args.is_centred) {
        moments.merge(Chains<T, target>::moments(x + i, count));
      } else {
        squares += Chains<T, target>::squares(x + i, count);
      }
    }
  }
  if (std::is_same_v<T, float> && leaves_f32(args.is_centred ? moments.m2 : squares, args.epsilon)) {
    moments = {}, squares = 0;
    double wide[block];
    for (std::int64_t at = 0; at < args.length; at += block) {
      const std::int64_t n = std::min(block, args.length - at);
      load_elements(args.x, args.dtype, row * args.length + at, 1, wide, n);
      if (args.is_centred) {
        moments.merge(Chains<double, target>::moments(wide, n));
      } else {
        squares += Chains<double, target>::squares(wide, n);
      }
    }
  }
  const double variance = args.is_centred ? moments.variance() : squares / length;
  return {static_cast<T>(moments.mean), static_cast<T>(1 / std::sqrt(variance + args.epsilon))};
}

// (x - mean) rstd of n elements of a row whose deviations may overflow.
template <class T>
inline const T* far_row(RowStatistics<T> row, const T* x, T* xhat, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) xhat[i] = far_scaled(x[i], row.mean, row.rstd);
  return xhat;
}

// y = (x - mean) rstd weight + bias over n elements.
template <class T>
inline void normalize(RowStatistics<T> row, const T* __restrict x, const T* __restrict weight, const T* __restrict bias,
                      T* __restrict y, std::int64_t n) {
  if (weight && bias) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - row.mean) * row.rstd * weight[i] + bias[i];
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - row.mean) * row.rstd;
  if (weight) {
    for (std::int64_t i = 0; i < n; ++i) y[i] *= weight[i];
  }
  if (bias) {
    for (std::int64_t i = 0; i < n; ++i) y[i] += bias[i];
  }
}

template <class T, Isa target>
struct Forward {
  static void run(const RowNormArgs& args, std::int64_t begin, std::int64_t end) {
    alignas(64) T in[room], out[room];
    const T* const weight = static_cast<const T*>(args.weight);
    const T* const bias = static_cast<const T*>(args.bias);
    const bool is_stored_directly = args.dtype == dtype_of<T>;
    for (std::int64_t row = begin; row < end; ++row) {
      const RowStatistics<T> statistics = row_statistics<T, target>(args, row, in);
      for (std::int64_t at = 0; at < args.length; at += room) {
        const std::int64_t n = std::min(room, args.length - at), element = row * args.length + at;
        const bool is_in_buffer = args.length <= room && !is_stored_directly;
        const T* const x = is_in_buffer ? in : read_elements(args.x, args.dtype, element, n, in);
        T* const y = is_stored_directly ? static_cast<T*>(args.y) + element : out;
        const bool is_far = std::is_same_v<T, float> && statistics.rstd < T(far_rstd);
        normalize(is_far ? RowStatistics<T>{0, 1} : statistics, is_far ? far_row(statistics, x, in, n) : x,
                  weight ? weight + at : nullptr, bias ? bias + at : nullptr, y, n);
        if (!is_stored_directly) store_elements(y, args.y, args.dtype, element, n);
      }
      if (args.mean) static_cast<T*>(args.mean)[row] = statistics.mean;
      if (args.rstd) static_cast<T*>(args.rstd)[row] = statistics.rstd;
    }
  }
};

// One run of a row in backward: xhat = (x - mean) rstd and g = dy weight.
template <class T>
struct Piece {
  alignas(64) T xhat[room + 256];  // the next array lies in other sets of the cache
  alignas(64) T g[room];
};

// Rows [begin, end) of one block: dx, and the block's sums of dy xhat and of dy, each unless null.
template <class T, Isa target>
struct Backward {
  using C = Chains<T, target>;
  using V = Simd<T, target>;
  using Vector = typename V::Vector;

  static void run(const RowNormGradArgs& args, std::int64_t begin, std::int64_t end, T* weight_sums, T* bias_sums) {
    Piece<T> piece;
    const auto length = static_cast<double>(args.length);
    for (std::int64_t row = begin; row < end; ++row) {
      const RowStatistics<T> statistics{args.mean ? static_cast<const T*>(args.mean)[row] : T(0),
                                        args.rstd ? static_cast<const T*>(args.rstd)[row] : T(0)};
      double sum_g = 0, sum_g_xhat = 0;
      for (std::int64_t at = 0; at < args.length; at += room) {
        const std::int64_t n = std::min(room, args.length - at);
        load(args, row, statistics, at, n, weight_sums, bias_sums, sum_g, sum_g_xhat, piece);
      }
      if (args.dx) {
        store_gradient(args, row, statistics, static_cast<T>(sum_g / length), static_cast<T>(sum_g_xhat / length),
                       piece);
      }
    }
  }

  // Fills a piece with the n elements of a row from `at` on, and adds them to the sums.
  static THIMBLE_ALWAYS_INLINE void load(const RowNormGradArgs& args, std::int64_t row, RowStatistics<T> statistics,
                                         std::int64_t at, std::int64_t n, T* weight_sums, T* bias_sums, double& sum_g,
                                         double& sum_g_xhat, Piece<T>& piece) {
    const std::int64_t element = row * args.length + at;
    const T* const dy = read_elements(args.dy, args.dtype, element, n, piece.g);
    if (!args.x) {  // only the bias's gradient
      for (std::int64_t i = 0; i < n; ++i) bias_sums[at + i] += dy[i];
      return;
    }
    const T* x = read_elements(args.x, args.dtype, element, n, piece.xhat);
    if (std::is_same_v<T, float> && statistics.rstd < T(far_rstd)) {
      x = far_row(statistics, x, piece.xhat, n);
      statistics = {0, 1};
    }
    const T* const weight = args.weight && args.dx ? static_cast<const T*>(args.weight) + at : nullptr;
    T* const of_weight = weight_sums ? weight_sums + at : nullptr;
    T* const of_bias = bias_sums ? bias_sums + at : nullptr;
    for (std::int64_t i = 0; i < n; i += block) {
      const std::int64_t count = std::min(block, n - i);
      T* const more_of_weight = of_weight ? of_weight + i : nullptr;
      T* const more_of_bias = of_bias ? of_bias + i : nullptr;
      if (weight && of_weight && of_bias) {
        load_block<true>(statistics, x + i, dy + i, weight + i, more_of_weight, more_of_bias, count, sum_g, sum_g_xhat,
                         piece.xhat + i, piece.g + i);
      } else {
        load_block<false>(statistics, x + i, dy + i, weight ? weight + i : nullptr, more_of_weight, more_of_bias, count,
                          sum_g, sum_g_xhat, piece.xhat + i, piece.g + i);
      }
    }
  }

  /// `has_all`: none of the pointers is null.
  template <bool has_all>
  static THIMBLE_ALWAYS_INLINE void load_block(const RowStatistics<T>& row, const T* x, const T* dy, const T* weight,
                                               T* of_weight, T* of_bias, std::int64_t n, double& sum_g,
                                               double& sum_g_xhat, T* xhat, T* g) {
    Vector mean, rstd, ones;
    V::broadcast(mean, row.mean);
    V::broadcast(rstd, row.rstd);
    V::broadcast(ones, 1);
    // All loads come first: rows of a power of two put these arrays a multiple of 4 KiB apart, and a processor assumes
    // that a load behind a store to such an address depends on it.
    C sum, product;
    constexpr bool has_room = C::vectors == 4;  // in registers, for the sums too
    const std::int64_t whole = C::template for_each<C::vectors>(n, [&](auto v, std::int64_t i) {
      const Vector h = (V::at(x + i) - mean) * rstd, d = V::at(dy + i);
      const Vector w = has_all || weight ? Vector(V::at(weight + i)) : ones;
      Vector with_x{}, plain{};
      if (has_all || of_weight) with_x = V::at(of_weight + i);
      if (has_all || of_bias) plain = V::at(of_bias + i);
      const Vector gradient = d * w;
      if constexpr (has_room) {
        sum.sums[v] += gradient;
        product.sums[v] += gradient * h;
      }
      if (has_all || of_weight) V::at(of_weight + i) = with_x + d * h;
      if (has_all || of_bias) V::at(of_bias + i) = plain + d;
      V::at(xhat + i) = h;
      V::at(g + i) = gradient;
    });
    if constexpr (!has_room) {
      C::template for_each<4>(n, [&](auto v, std::int64_t i) {
        const Vector gradient = V::at(g + i);
        sum.sums[v] += gradient;
        product.sums[v] += gradient * V::at(xhat + i);
      });
    }
    for (std::int64_t i = whole; i < n; ++i) {
      const T h = (x[i] - row.mean) * row.rstd, d = dy[i];
      if (of_weight) of_weight[i] += d * h;
      if (of_bias) of_bias[i] += d;
      xhat[i] = h;
      g[i] = weight ? d * weight[i] : d;
    }
    sum_g += sum.total(whole, n, [&](std::int64_t at) { return g[at]; });
    sum_g_xhat += product.total(whole, n, [&](std::int64_t at) { return g[at] * xhat[at]; });
  }

  // dx = (g - mean(g) - xhat mean(g xhat)) rstd; without centring, mean(g) is left out.
  static void store_gradient(const RowNormGradArgs& args, std::int64_t row, RowStatistics<T> statistics, T mean_g,
                             T mean_g_xhat, Piece<T>& piece) {
    if (!args.is_centred) mean_g = 0;
    for (std::int64_t at = 0; at < args.length; at += room) {
      const std::int64_t n = std::min(room, args.length - at), element = row * args.length + at;
      double unused = 0;
      if (args.length > room) load(args, row, statistics, at, n, nullptr, nullptr, unused, unused, piece);
      const bool is_stored_directly = args.dtype == dtype_of<T>;
      T* const dx = is_stored_directly ? static_cast<T*>(args.dx) + element : piece.g;
      const T rstd = statistics.rstd;
      std::int64_t i = 0;
      for (; i + V::lanes <= n; i += V::lanes) {
        V::at(dx + i) = (V::at(piece.g + i) - mean_g - V::at(piece.xhat + i) * mean_g_xhat) * rstd;
      }
      for (; i < n; ++i) dx[i] = (piece.g[i] - mean_g - piece.xhat[i] * mean_g_xhat) * rstd;
      if (!is_stored_directly) store_elements(piece.g, args.dx, args.dtype, element, n);
    }
  }
};

template <class T>
void forward(const RowNormArgs& args) {
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / std::max<std::int64_t>(1, args.length));
  const auto run = with_target(isa(), []<Isa target>() {
    return compiled_for<target, Forward<T, target>, RowNormArgs, std::int64_t, std::int64_t>;
  });
  parallel_for(args.rows, grain, [&](std::int64_t begin, std::int64_t end) { run(args, begin, end); });
}

// Adds up the rows of sums of all blocks, and stores them.
template <class T>
void store_sums(const RowNormGradArgs& args, const T* partial, std::int64_t stride, void* to) {
  const std::int64_t blocks = (args.rows + row_norm_block - 1) / row_norm_block;
  constexpr std::int64_t columns = 256;
  parallel_for(args.length, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += columns) {
      const std::int64_t n = std::min(columns, end - at);
      double totals[columns] = {};
      for (std::int64_t b = 0; b < blocks; ++b) {
        for (std::int64_t i = 0; i < n; ++i) totals[i] += static_cast<double>(partial[b * stride + at + i]);
      }
      store_elements(totals, to, args.parameter_dtype, at, n);
    }
  });
}

template <class T>
void backward(const RowNormGradArgs& args) {
  const bool wants_weight = args.dweight != nullptr, wants_bias = args.dbias != nullptr;
  const std::int64_t stride = args.length * ((wants_weight ? 1 : 0) + (wants_bias ? 1 : 0));
  T* const partial = static_cast<T*>(args.partial);
  const std::int64_t bias_offset = wants_weight ? args.length : 0;
  const std::int64_t blocks = (args.rows + row_norm_block - 1) / row_norm_block;
  const auto run = with_target(isa(), []<Isa target>() {
    return compiled_for<target, Backward<T, target>, RowNormGradArgs, std::int64_t, std::int64_t, T*, T*>;
  });
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      T* const sums = stride > 0 ? partial + b * stride : nullptr;
      std::fill(sums, sums + stride, T(0));
      run(args, b * row_norm_block, std::min(args.rows, (b + 1) * row_norm_block), wants_weight ? sums : nullptr,
          wants_bias ? sums + bias_offset : nullptr);
    }
  });
  if (wants_weight) store_sums(args, partial, stride, args.dweight);
  if (wants_bias) store_sums(args, partial + bias_offset, stride, args.dbias);
}

}  // namespace layer_norm_detail

void row_norm_forward_cpu(const RowNormArgs& args) {
  if (args.dtype == DType::f64) return layer_norm_detail::forward<double>(args);
  layer_norm_detail::forward<float>(args);
}

void row_norm_backward_cpu(const RowNormGradArgs& args) {
  if (args.dtype == DType::f64) return layer_norm_detail::backward<double>(args);
  layer_norm_detail::backward<float>(args);
}

}  // namespace thimble::kernels
