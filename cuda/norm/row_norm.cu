// Layer norm and RMS norm on CUDA devices. A warp or a team takes a row, in words; the parameters' gradients are summed
// in blocks of rows, in the CPU's order.

#include <cmath>

#include <thimble/core/kernels/shared/moments.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/rows.h>
#include <thimble/cuda/norm/norm.h>
#include <thimble/cuda/reduce/ordered_sum.h>

namespace thimble::cuda_kernels {
namespace row_norm_cuda_detail {

using kernels::RowNormArgs;
using kernels::RowNormGradArgs;

// Reads a parameter's elements for a word of a row; `other` if the parameter is null.
template <class T, int count>
THIMBLE_DEVICE inline void read_parameter(const T* from, std::int64_t at, int n, T other, T (&values)[count]) {
  constexpr int together = 16 / static_cast<int>(sizeof(T));
  if (from && n == count && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    THIMBLE_UNROLL
    for (int first = 0; first < count; first += together) {
      const Words<T, together> word = words_at<together>(from, at + first);
      THIMBLE_UNROLL
      for (int e = 0; e < together; ++e) values[first + e] = word.values[e];
    }
    return;
  }
  THIMBLE_UNROLL
  for (int e = 0; e < count; ++e) values[e] = from && e < n ? from[at + e] : other;
}

template <class S>
struct Forward {
  using T = Wide<S>;
  static constexpr int count = word_elements<S>;
  std::int64_t length;
  bool is_centred;
  double inverse_length, epsilon;
  const S* x;
  const T* weight;
  const T* bias;
  S* y;
  T* mean;
  T* rstd;

  template <class Threads>
  THIMBLE_DEVICE void operator()(Threads& threads, std::int64_t row) const {
    const RowReader<S> from(x + row * length, length);
    double centre = 0;
    if (is_centred) {
      T own = 0;
      for_each_word<count>(threads, length, [&](std::int64_t w, auto n) {
        T values[count];
        from.read(w, values);
        THIMBLE_UNROLL
        for (int e = 0; e < count; ++e) own += e < n ? values[e] : T(0);
      });
      centre = threads.sum(static_cast<double>(own)) * inverse_length;
    }
    // Deviations from the rounded mean, corrected for its error.
    const T shift = static_cast<T>(centre);
    T first = 0, second = 0;
    for_each_word<count>(threads, length, [&](std::int64_t w, auto n) {
      T values[count];
      from.read(w, values);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) {
        const T d = e < n ? values[e] - shift : T(0);
        first += d;
        second = multiply_add(d, d, second);
      }
    });
    double variance = threads.sum(static_cast<double>(second)) * inverse_length;
    T row_mean = 0, row_rstd = 0;
    constexpr bool may_leave =
        std::is_same_v<S, float> || std::is_same_v<S, bf16>;  // other types have smaller exponents
    if (may_leave && kernels::leaves_f32(variance, epsilon)) {
      row_mean = static_cast<T>(is_centred ? wide_mean(threads, from, 0.0, false) : 0);
      row_rstd = static_cast<T>(1 / std::sqrt(wide_mean(threads, from, static_cast<double>(row_mean), true) + epsilon));
    } else if (is_centred) {
      const double off = threads.sum(static_cast<double>(first)) * inverse_length;
      variance -= off * off;
      if (variance < 0) variance = 0;
      row_mean = static_cast<T>(static_cast<double>(shift) + off);
    }
    if (row_rstd == T(0)) row_rstd = T(1) / std::sqrt(static_cast<T>(variance + epsilon));
    const RowWriter<S> to(y + row * length);
    for_each_word<count>(threads, length, [&](std::int64_t w, auto n) {
      T values[count], factors[count], offsets[count];
      from.read(w, values);
      read_parameter(weight, w * count, n, T(1), factors);
      read_parameter(bias, w * count, n, T(0), offsets);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) {
        const T xhat = (values[e] - row_mean) * row_rstd;
        values[e] = bias ? multiply_add(xhat, factors[e], offsets[e]) : xhat * factors[e];
      }
      to.write(w, values, n);
    });
    if (threads.rank() != 0) return;
    if (mean) mean[row] = row_mean;
    if (rstd) rstd[row] = row_rstd;
  }

  // The mean of x - centre, or of its square, in f64.
  template <class Threads>
  THIMBLE_DEVICE double wide_mean(Threads& threads, const RowReader<S>& from, double centre, bool is_squared) const {
    double own = 0;
    for_each_word<count>(threads, length, [&](std::int64_t w, auto n) {
      T values[count];
      from.read(w, values);
      for (int e = 0; e < count; ++e) {
        const double d = e < n ? static_cast<double>(values[e]) - centre : 0;
        own += is_squared ? d * d : d;
      }
    });
    return threads.sum(own) * inverse_length;
  }
};

// dx = (g - mean(g) - xhat mean(g xhat)) rstd with g = dy weight; dx may be dy.
template <class S>
struct InputGradient {
  using T = Wide<S>;
  static constexpr int count = word_elements<S>;
  std::int64_t length;
  bool is_centred;
  double inverse_length;
  const S* x;
  const T* mean;
  const T* rstd;
  const S* dy;
  const T* weight;
  S* dx;

  template <class Threads>
  THIMBLE_DEVICE void operator()(Threads& threads, std::int64_t row) const {
    const RowReader<S> of_x(x + row * length, length), of_dy(dy + row * length, length);
    const T row_mean = mean ? mean[row] : T(0), row_rstd = rstd[row];
    const auto read = [&](std::int64_t w, int n, T(&g)[count], T(&xhat)[count]) {
      T factors[count];
      of_dy.read(w, g);
      of_x.read(w, xhat);
      read_parameter(weight, w * count, n, T(1), factors);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) {
        g[e] *= factors[e];
        xhat[e] = (xhat[e] - row_mean) * row_rstd;
      }
    };
    T own_g = 0, own_product = 0;
    for_each_word<count>(threads, length, [&](std::int64_t w, auto n) {
      T g[count], xhat[count];
      read(w, n, g, xhat);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) {
        own_g += e < n ? g[e] : T(0);
        own_product = e < n ? multiply_add(g[e], xhat[e], own_product) : own_product;
      }
    });
    const T mean_g = is_centred ? static_cast<T>(threads.sum(static_cast<double>(own_g)) * inverse_length) : T(0);
    const T mean_product = static_cast<T>(threads.sum(static_cast<double>(own_product)) * inverse_length);
    const RowWriter<S> to(dx + row * length);
    for_each_word<count>(threads, length, [&](std::int64_t w, auto n) {
      T g[count], xhat[count];
      read(w, n, g, xhat);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) g[e] = multiply_add(xhat[e], -mean_product, g[e] - mean_g) * row_rstd;
      to.write(w, g, n);
    });
  }
};

// Sums of dy xhat and dy over one block of rows. `partial` has a row for each block: first the weight's, then the
// bias's.
template <class T>
struct Sums {
  std::int64_t rows, length, stride, bias_offset;
  const T* mean;
  const T* rstd;
  bool wants_weight, wants_bias;
  T* partial;
  THIMBLE_DEVICE std::int64_t begin(std::int64_t block) const { return block * kernels::row_norm_block; }
  THIMBLE_DEVICE std::int64_t rows_of(std::int64_t block) const {
    const std::int64_t left = rows - begin(block);
    return left < kernels::row_norm_block ? left : kernels::row_norm_block;
  }
  THIMBLE_DEVICE T xhat(std::int64_t row, T x) const { return (x - (mean ? mean[row] : T(0))) * rstd[row]; }
};

// Block sums of one column.
template <class T>
struct BlockSums {
  Sums<T> sums;
  const void* x;
  const void* dy;
  DType dtype;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t block = i / sums.length, column = i % sums.length, begin = sums.begin(block);
    T product = 0, sum = 0;
    for (std::int64_t row = begin; row < begin + sums.rows_of(block); ++row) {
      const std::int64_t at = row * sums.length + column;
      const T g = load<T>(dy, dtype, at);
      if (sums.wants_weight) product += g * sums.xhat(row, load<T>(x, dtype, at));
      sum += g;
    }
    if (sums.wants_weight) sums.partial[block * sums.stride + column] = product;
    if (sums.wants_bias) sums.partial[block * sums.stride + sums.bias_offset + column] = sum;
  }
};

// Block sums of four neighbouring columns.
template <class S>
struct BlockSumsOfWords {
  Sums<float> sums;
  const S* x;
  const S* dy;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const auto words = static_cast<std::uint32_t>(sums.length / columns_together);
    const std::int64_t block = i / words, column = (i - block * words) * columns_together, begin = sums.begin(block);
    const std::int64_t at = begin * sums.length + column;
    float* const to = sums.partial + block * sums.stride + column;
    if (!sums.wants_weight) {
      return put_words(to, sums.bias_offset, sum_of_rows(dy + at, sums.rows_of(block), sums.length));
    }
    Words<float, columns_together> products{}, plain{};
    for_each_row<2>({dy + at, x + at}, sums.rows_of(block), sums.length,
                    [&](std::int64_t row, const ColumnWord<S>(&words_of)[2]) {
                      THIMBLE_UNROLL
                      for (int e = 0; e < columns_together; ++e) {
                        const float g = widened(words_of[0].values[e]);
                        products.values[e] += g * sums.xhat(begin + row, widened(words_of[1].values[e]));
                        plain.values[e] += g;
                      }
                    });
    put_words(to, 0, products);
    if (sums.wants_bias) put_words(to, sums.bias_offset, plain);
  }
};

template <class T>
struct AddBlocks {
  std::int64_t blocks;
  Sums<T> sums;
  void* dweight;
  void* dbias;
  DType dtype;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const bool is_bias = i >= sums.bias_offset && sums.wants_bias;
    store_total(is_bias ? dbias : dweight, dtype, is_bias ? i - sums.bias_offset : i,
                sum_in_order(0.0, sums.partial + i, blocks, sums.stride));
  }
};

template <class T>
void parameter_gradients(const RowNormGradArgs& args) {
  const bool wants_weight = args.dweight != nullptr, wants_bias = args.dbias != nullptr;
  const std::int64_t blocks = (args.rows + kernels::row_norm_block - 1) / kernels::row_norm_block;
  const Sums<T> sums{args.rows,
                     args.length,
                     args.length * ((wants_weight ? 1 : 0) + (wants_bias ? 1 : 0)),
                     wants_weight ? args.length : 0,
                     static_cast<const T*>(args.mean),
                     static_cast<const T*>(args.rstd),
                     wants_weight,
                     wants_bias,
                     static_cast<T*>(args.partial)};
  bool is_done = false;
  if constexpr (std::is_same_v<T, float>) {
    if (args.length % columns_together == 0 && args.length < (std::int64_t{1} << 32) &&
        are_aligned({args.dy, args.x, args.partial})) {
      is_done = with_word_dtype(args.dtype, [&]<class S>() {
        for_each_item(blocks * args.length / columns_together,
                      BlockSumsOfWords<S>{sums, static_cast<const S*>(args.x), static_cast<const S*>(args.dy)});
      });
    }
  }
  if (!is_done) for_each_item(blocks * args.length, BlockSums<T>{sums, args.x, args.dy, args.dtype});
  for_each_item(sums.stride, AddBlocks<T>{blocks, sums, args.dweight, args.dbias, args.parameter_dtype});
}

}  // namespace row_norm_cuda_detail

void row_norm_forward(const kernels::RowNormArgs& args) {
  with_floating(args.dtype, [&]<class S>() {
    using T = Wide<S>;
    for_each_row_in_words<S>(
        args.rows, args.length,
        row_norm_cuda_detail::Forward<S>{
            args.length, args.is_centred, 1 / static_cast<double>(args.length), args.epsilon,
            static_cast<const S*>(args.x), static_cast<const T*>(args.weight), static_cast<const T*>(args.bias),
            static_cast<S*>(args.y), static_cast<T*>(args.mean), static_cast<T*>(args.rstd)});
  });
}

void row_norm_backward(const kernels::RowNormGradArgs& args) {
  if (args.dweight || args.dbias) {  // before dx, which may alias dy
    with_compute_type(args.dtype, [&]<class T>() { row_norm_cuda_detail::parameter_gradients<T>(args); });
  }
  if (!args.dx || args.length == 0) return;
  with_floating(args.dtype, [&]<class S>() {
    using T = Wide<S>;
    for_each_row_in_words<S>(
        args.rows, args.length,
        row_norm_cuda_detail::InputGradient<S>{args.length, args.is_centred, 1 / static_cast<double>(args.length),
                                               static_cast<const S*>(args.x), static_cast<const T*>(args.mean),
                                               static_cast<const T*>(args.rstd), static_cast<const S*>(args.dy),
                                               static_cast<const T*>(args.weight), static_cast<S*>(args.dx)});
  });
}

}  // namespace thimble::cuda_kernels
