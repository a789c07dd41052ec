// Layer norm and RMS norm on the CPU: statistics over rows (norm.h).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/norm/norm_cpu.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace layer_norm_detail {

// Elements of a row that are converted at once; a row up to this length is converted once per pass.
constexpr std::int64_t room = 4096;
// Elements of one block of a row's sums.
constexpr std::int64_t block = 1024;
constexpr std::int64_t grain_elements = 1 << 14;

// Sums run in independent chains, one for each element of four 64-byte vectors. The four are added in the compute type,
// the rest pairwise in f64.
template <class T>
struct Chains {
  typedef T Vector __attribute__((vector_size(64)));
  static constexpr std::int64_t lanes = 64 / sizeof(T), width = 4 * lanes;
  Vector sums[4]{};

  double total() const {
    const Vector sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double pairs[lanes];
    for (std::int64_t i = 0; i < lanes; ++i) pairs[i] = static_cast<double>(sum[i]);
    for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
      for (std::int64_t i = 0; i < half; ++i) pairs[i] += pairs[i + half];
    }
    return pairs[0];
  }
};

// Calls f(chain, vector of a, vector of b) over n elements; missing ones at the end count as `fill`.
template <class T, class F>
inline void for_each_vector(const T* a, const T* b, std::int64_t n, T fill, F&& f) {
  using Vector = typename Chains<T>::Vector;
  constexpr std::int64_t lanes = Chains<T>::lanes, width = Chains<T>::width;
  T rest_a[width], rest_b[width];
  for (std::int64_t at = 0; at < n; at += width) {
    const T *from_a = a + at, *from_b = b + at;
    if (n - at < width) {
      std::fill(rest_a, rest_a + width, fill);
      std::fill(rest_b, rest_b + width, fill);
      std::copy(from_a, a + n, rest_a);
      std::copy(from_b, b + n, rest_b);
      from_a = rest_a;
      from_b = rest_b;
    }
    for (int chain = 0; chain < 4; ++chain) {
      Vector va, vb;
      std::memcpy(&va, from_a + chain * lanes, sizeof va);
      std::memcpy(&vb, from_b + chain * lanes, sizeof vb);
      f(chain, va, vb);
    }
  }
}

// Moments of at most `block` elements.
template <class T>
inline Moments block_moments(const T* x, std::int64_t n) {
  Chains<T> sum;
  for_each_vector(x, x, n, T(0), [&](int chain, const auto& v, const auto&) { sum.sums[chain] += v; });
  const T shift = static_cast<T>(sum.total() / static_cast<double>(n));
  Chains<T> first, second;
  for_each_vector(x, x, n, shift, [&](int chain, const auto& v, const auto&) {
    const auto d = v - shift;
    first.sums[chain] += d;
    second.sums[chain] += d * d;
  });
  return shifted_moments(static_cast<double>(n), static_cast<double>(shift), first.total(), second.total());
}

template <class T>
inline double block_dot(const T* a, const T* b, std::int64_t n) {
  Chains<T> sum;
  for_each_vector(a, b, n, T(0), [&](int chain, const auto& va, const auto& vb) { sum.sums[chain] += va * vb; });
  return sum.total();
}

template <class T>
inline double block_sum(const T* a, std::int64_t n) {
  Chains<T> sum;
  for_each_vector(a, a, n, T(0), [&](int chain, const auto& va, const auto&) { sum.sums[chain] += va; });
  return sum.total();
}

// Mean and reciprocal standard deviation of one row, as backward will read them.
template <class T>
struct RowStatistics {
  T mean, rstd;
};

template <class T>
inline RowStatistics<T> row_statistics(const RowNormArgs& args, std::int64_t row, T* buffer) {
  const double length = static_cast<double>(args.length);
  Moments moments;
  double squares = 0;
  for (std::int64_t at = 0; at < args.length; at += room) {
    const std::int64_t n = std::min(room, args.length - at);
    const T* const x = read_elements(args.x, args.dtype, row * args.length + at, n, buffer);
    for (std::int64_t i = 0; i < n; i += block) {
      const std::int64_t count = std::min(block, n - i);
      if (args.is_centred) {
        moments.merge(block_moments(x + i, count));
      } else {
        squares += block_dot(x + i, x + i, count);
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
        moments.merge(block_moments(wide, n));
      } else {
        squares += block_dot(wide, wide, n);
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

template <class T>
struct Forward {
  static void run(const RowNormArgs& args, std::int64_t begin, std::int64_t end) {
    alignas(64) T in[room], out[room];
    const T* const weight = static_cast<const T*>(args.weight);
    const T* const bias = static_cast<const T*>(args.bias);
    const bool is_stored_directly = args.dtype == dtype_of<T>;
    for (std::int64_t row = begin; row < end; ++row) {
      const RowStatistics<T> statistics = row_statistics(args, row, in);
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
  alignas(64) T xhat[room];
  alignas(64) T g[room];

  // Before the weight is applied g is dy. Only the bias's gradient needs no x.
  void load(const RowNormGradArgs& args, RowStatistics<T> row, std::int64_t element, std::int64_t n) {
    load_elements(args.dy, args.dtype, element, 1, g, n);
    if (!args.x) return;
    const T* const x = read_elements(args.x, args.dtype, element, n, xhat);
    if (std::is_same_v<T, float> && row.rstd < T(far_rstd)) {
      far_row(row, x, xhat, n);
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) xhat[i] = (x[i] - row.mean) * row.rstd;
  }
  void apply_weight(const void* weight, std::int64_t at, std::int64_t n) {
    if (!weight) return;
    const T* __restrict w = static_cast<const T*>(weight) + at;
    for (std::int64_t i = 0; i < n; ++i) g[i] *= w[i];
  }
};

template <class T>
inline void add_product(T* __restrict sums, const T* __restrict a, const T* __restrict b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] += a[i] * b[i];
}
template <class T>
inline void add_values(T* __restrict sums, const T* __restrict a, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] += a[i];
}

// Rows [begin, end) of one block: dx, and the block's sums of dy xhat and dy.
template <class T>
struct Backward {
  static void run(const RowNormGradArgs& args, std::int64_t begin, std::int64_t end, T* weight_sums, T* bias_sums) {
    Piece<T> piece;
    const auto length = static_cast<double>(args.length);
    for (std::int64_t row = begin; row < end; ++row) {
      const RowStatistics<T> statistics{args.mean ? static_cast<const T*>(args.mean)[row] : T(0),
                                        args.rstd ? static_cast<const T*>(args.rstd)[row] : T(0)};
      double sum_g = 0, sum_g_xhat = 0;
      for (std::int64_t at = 0; at < args.length; at += room) {
        const std::int64_t n = std::min(room, args.length - at);
        piece.load(args, statistics, row * args.length + at, n);
        if (weight_sums) add_product(weight_sums + at, piece.g, piece.xhat, n);
        if (bias_sums) add_values(bias_sums + at, piece.g, n);
        if (!args.dx) continue;
        piece.apply_weight(args.weight, at, n);
        for (std::int64_t i = 0; i < n; i += block) {
          const std::int64_t count = std::min(block, n - i);
          if (args.is_centred) sum_g += block_sum(piece.g + i, count);
          sum_g_xhat += block_dot(piece.g + i, piece.xhat + i, count);
        }
      }
      if (args.dx) {
        store_gradient(args, row, statistics, static_cast<T>(sum_g / length), static_cast<T>(sum_g_xhat / length),
                       piece);
      }
    }
  }

  // dx = (g - mean(g) - xhat mean(g xhat)) rstd.
  static void store_gradient(const RowNormGradArgs& args, std::int64_t row, RowStatistics<T> statistics, T mean_g,
                             T mean_g_xhat, Piece<T>& piece) {
    for (std::int64_t at = 0; at < args.length; at += room) {
      const std::int64_t n = std::min(room, args.length - at);
      if (args.length > room) {
        piece.load(args, statistics, row * args.length + at, n);
        piece.apply_weight(args.weight, at, n);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        piece.g[i] = (piece.g[i] - mean_g - piece.xhat[i] * mean_g_xhat) * statistics.rstd;
      }
      store_elements(piece.g, args.dx, args.dtype, row * args.length + at, n);
    }
  }
};

template <class T>
void forward(const RowNormArgs& args) {
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / std::max<std::int64_t>(1, args.length));
  parallel_for(args.rows, grain,
               [&](std::int64_t begin, std::int64_t end) { run_variant<Forward<T>>(args, begin, end); });
}

// Adds up the blocks' rows of sums and stores them.
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
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      T* const sums = stride > 0 ? partial + b * stride : nullptr;
      std::fill(sums, sums + stride, T(0));
      run_variant<Backward<T>>(args, b * row_norm_block, std::min(args.rows, (b + 1) * row_norm_block),
                               wants_weight ? sums : nullptr, wants_bias ? sums + bias_offset : nullptr);
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
