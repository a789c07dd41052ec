// Layer norm and RMS norm on CUDA devices: a team for each row; the parameters' gradients in blocks of rows, in the
// CPU's order.

#include <cmath>

#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/norm/norm.h>

namespace thimble::cuda_kernels {
namespace row_norm_cuda_detail {

using kernels::RowNormArgs;
using kernels::RowNormGradArgs;

template <class T>
struct Forward {
  static constexpr int threads = 256;
  DType dtype;
  std::int64_t length;
  bool is_centred;
  double epsilon;
  const void* x;
  const T* weight;
  const T* bias;
  void* y;
  T* mean;
  T* rstd;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const std::int64_t base = row * length;
    const double count = static_cast<double>(length);
    double centre = 0;
    if (is_centred) {
      T own = 0;
      for (std::int64_t i = team.rank(); i < length; i += Team::size) own += load<T>(x, dtype, base + i);
      centre = team.sum(static_cast<double>(own)) / count;
    }
    // Deviations from the rounded mean, whose own error is taken off.
    const T shift = static_cast<T>(centre);
    T first = 0, second = 0;
    for (std::int64_t i = team.rank(); i < length; i += Team::size) {
      const T d = load<T>(x, dtype, base + i) - shift;
      first += d;
      second += d * d;
    }
    const double sum = team.sum(static_cast<double>(first)), squares = team.sum(static_cast<double>(second));
    double variance = squares / count;
    T row_mean = 0;
    if (is_centred) {
      variance = (squares - sum * sum / count) / count;
      if (variance < 0) variance = 0;
      row_mean = static_cast<T>(static_cast<double>(shift) + sum / count);
    }
    const T row_rstd = static_cast<T>(1 / std::sqrt(variance + epsilon));
    for (std::int64_t i = team.rank(); i < length; i += Team::size) {
      T value = (load<T>(x, dtype, base + i) - row_mean) * row_rstd;
      if (weight) value *= weight[i];
      if (bias) value += bias[i];
      store<T>(y, dtype, base + i, value);
    }
    if (team.rank() != 0) return;
    if (mean) mean[row] = row_mean;
    if (rstd) rstd[row] = row_rstd;
  }
};

// xhat of an element.
template <class T>
struct Normalized {
  DType dtype;
  const void* x;
  const T* mean;
  const T* rstd;
  THIMBLE_DEVICE T at(std::int64_t row, std::int64_t element) const {
    return (load<T>(x, dtype, element) - (mean ? mean[row] : T(0))) * rstd[row];
  }
};

// dx = (g - mean(g) - xhat mean(g xhat)) rstd with g = dy weight; dx may be dy.
template <class T>
struct InputGradient {
  static constexpr int threads = 256;
  std::int64_t length;
  bool is_centred;
  Normalized<T> xhat;
  const void* dy;
  const T* weight;
  void* dx;

  THIMBLE_DEVICE T gradient(std::int64_t base, std::int64_t i) const {
    const T g = load<T>(dy, xhat.dtype, base + i);
    return weight ? g * weight[i] : g;
  }
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const std::int64_t base = row * length;
    T own_g = 0, own_product = 0;
    for (std::int64_t i = team.rank(); i < length; i += Team::size) {
      const T g = gradient(base, i);
      own_g += g;
      own_product += g * xhat.at(row, base + i);
    }
    const double count = static_cast<double>(length);
    const T mean_g = is_centred ? static_cast<T>(team.sum(static_cast<double>(own_g)) / count) : T(0);
    const T mean_product = static_cast<T>(team.sum(static_cast<double>(own_product)) / count);
    for (std::int64_t i = team.rank(); i < length; i += Team::size) {
      const T g = gradient(base, i);
      store<T>(dx, xhat.dtype, base + i, (g - mean_g - xhat.at(row, base + i) * mean_product) * xhat.rstd[row]);
    }
  }
};

// Sums of dy xhat and dy over one block of rows, for one column.
template <class T>
struct BlockSums {
  std::int64_t rows, length, stride, bias_offset;
  Normalized<T> xhat;
  const void* dy;
  DType dtype;
  bool wants_weight, wants_bias;
  T* partial;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t block = i / length, column = i % length, begin = block * kernels::row_norm_block;
    const std::int64_t end = begin + kernels::row_norm_block < rows ? begin + kernels::row_norm_block : rows;
    T product = 0, sum = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const T g = load<T>(dy, dtype, row * length + column);
      if (wants_weight) product += g * xhat.at(row, row * length + column);
      sum += g;
    }
    if (wants_weight) partial[block * stride + column] = product;
    if (wants_bias) partial[block * stride + bias_offset + column] = sum;
  }
};

template <class T>
struct AddBlocks {
  std::int64_t blocks, stride;
  const T* partial;
  void* to;
  DType dtype;
  THIMBLE_DEVICE void operator()(std::int64_t column) const {
    double total = 0;
    for (std::int64_t b = 0; b < blocks; ++b) total += static_cast<double>(partial[b * stride + column]);
    store_total(to, dtype, column, total);
  }
};

template <class T>
void backward(const RowNormGradArgs& args) {
  const bool wants_weight = args.dweight != nullptr, wants_bias = args.dbias != nullptr;
  const Normalized<T> xhat{args.dtype, args.x, static_cast<const T*>(args.mean), static_cast<const T*>(args.rstd)};
  const std::int64_t blocks = (args.rows + kernels::row_norm_block - 1) / kernels::row_norm_block;
  const std::int64_t stride = args.length * ((wants_weight ? 1 : 0) + (wants_bias ? 1 : 0));
  const std::int64_t bias_offset = wants_weight ? args.length : 0;
  T* const partial = static_cast<T*>(args.partial);
  if (wants_weight || wants_bias) {  // before dx, which may lie where dy does
    for_each_item(blocks * args.length, BlockSums<T>{args.rows, args.length, stride, bias_offset, xhat, args.dy,
                                                     args.dtype, wants_weight, wants_bias, partial});
  }
  if (wants_weight) {
    for_each_item(args.length, AddBlocks<T>{blocks, stride, partial, args.dweight, args.parameter_dtype});
  }
  if (wants_bias) {
    for_each_item(args.length, AddBlocks<T>{blocks, stride, partial + bias_offset, args.dbias, args.parameter_dtype});
  }
  if (!args.dx || args.length == 0) return;
  for_each_team(args.rows, InputGradient<T>{args.length, args.is_centred, xhat, args.dy,
                                            static_cast<const T*>(args.weight), args.dx});
}

}  // namespace row_norm_cuda_detail

void row_norm_forward(const kernels::RowNormArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() {
    for_each_team(args.rows,
                  row_norm_cuda_detail::Forward<T>{args.dtype, args.length, args.is_centred, args.epsilon, args.x,
                                                   static_cast<const T*>(args.weight), static_cast<const T*>(args.bias),
                                                   args.y, static_cast<T*>(args.mean), static_cast<T*>(args.rstd)});
  });
}

void row_norm_backward(const kernels::RowNormGradArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() { row_norm_cuda_detail::backward<T>(args); });
}

}  // namespace thimble::cuda_kernels
