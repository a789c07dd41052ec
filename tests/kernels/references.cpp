// The oracles of the CPU kernels, as plain loops.

#include "references.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/kernels/shared/quant_rows.h>
#include <thimble/core/kernels/shared/random_bits.h>

namespace thimble::kernels {

// ---- A stored value, widened; and activations from the standard library.

/// Element `at` of `base`, stored as S.
template <class T, class S>
T reference_value(const void* base, std::int64_t at) noexcept {
  const S value = static_cast<const S*>(base)[at];
  if constexpr (std::is_arithmetic_v<S>) {
    return static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

/// act(x); integers support none and relu.
template <class T>
T reference_activation(Activation activation, T x) noexcept {
  if (activation == Activation::relu) return x < T{0} ? T{0} : x;
  if constexpr (std::is_floating_point_v<T>) {
    if (activation == Activation::gelu_tanh) {
      return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
    if (activation == Activation::gelu_erf) return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
  }
  return x;
}

// ---- Products: the definition of GemmArgs, literally.

namespace gemm_reference_detail {

/// Integers sum unsigned, wrapping around.
template <class T>
using Sum = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

/// The sum over p of a[i, p] b[p, j], for operands of type S.
template <class T, class S>
Sum<T> dot(const GemmArgs& args, std::int64_t a_first, std::int64_t b_first) noexcept {
  Sum<T> sum = 0;
  for (std::int64_t p = 0; p < args.k; ++p) {
    sum += static_cast<Sum<T>>(reference_value<T, S>(args.a, a_first + p * args.a_column_stride)) *
           static_cast<Sum<T>>(reference_value<T, S>(args.b, b_first + p * args.b_row_stride));
  }
  return sum;
}

template <class T>
void multiply(const GemmArgs& args, std::int64_t a0, std::int64_t b0, std::int64_t c0, std::int64_t bias0) noexcept {
  const auto dot_product =
      visit(args.dtype, []<class S>() -> Sum<T> (*)(const GemmArgs&, std::int64_t, std::int64_t) { return dot<T, S>; });
  const auto read = [&](const void* base, std::int64_t at) {
    T value;
    load_elements(base, args.c_dtype, at, 1, &value, 1);
    return static_cast<Sum<T>>(value);
  };
  for (std::int64_t i = 0; i < args.m; ++i) {
    for (std::int64_t j = 0; j < args.n; ++j) {
      Sum<T> sum = dot_product(args, a0 + i * args.a_row_stride, b0 + j * args.b_column_stride);
      sum *= static_cast<Sum<T>>(static_cast<T>(args.alpha));
      if (args.bias != nullptr) sum += read(args.bias, bias0 + j);
      const std::int64_t at = c0 + i * args.c_row_stride + j * args.c_column_stride;
      T value = static_cast<T>(sum);
      if (args.pre_activation != nullptr) store_elements(&value, args.pre_activation, args.c_dtype, at, 1);
      value = reference_activation(args.activation, value);
      if (args.accumulate) value = static_cast<T>(static_cast<Sum<T>>(value) + read(args.c, at));
      store_elements(&value, args.c, args.c_dtype, at, 1);
    }
  }
}

}  // namespace gemm_reference_detail

void gemm_reference(const GemmArgs& args) noexcept {
  std::int64_t matrices = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.batch_rank); ++i) matrices *= args.batch[i].size;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    std::int64_t rest = matrix, a = 0, b = 0, c = 0, bias = 0;
    for (std::size_t i = static_cast<std::size_t>(args.batch_rank); i-- > 0;) {
      const GemmBatchDim& dim = args.batch[i];
      const std::int64_t at = rest % dim.size;
      rest /= dim.size;
      a += at * dim.a;
      b += at * dim.b;
      c += at * dim.c;
      bias += at * dim.bias;
    }
    if (compute_type(args.dtype) == ComputeType::i64) {
      gemm_reference_detail::multiply<std::int64_t>(args, a, b, c, bias);
    } else {
      gemm_reference_detail::multiply<double>(args, a, b, c, bias);
    }
  }
}

// ---- Convolutions: the formulas of conv.h as seven loops each.

namespace conv_reference_detail {

void write(void* base, DType dtype, std::int64_t at, double value, bool accumulate = false) noexcept {
  if (accumulate) {
    double there = 0;
    load_elements(base, dtype, at, 1, &there, 1);
    value += there;
  }
  store_elements(&value, base, dtype, at, 1);
}

/// Offsets of elements.
struct Index {
  const ConvShape& s;
  std::int64_t channels = s.channels / s.groups;  // of a group
  std::int64_t filters = s.filters / s.groups;    // of a group

  std::int64_t x(std::int64_t n, std::int64_t ih, std::int64_t iw, std::int64_t channel) const noexcept {
    return ((n * s.height + ih) * s.width + iw) * s.channels + channel;
  }
  std::int64_t weight(std::int64_t o, std::int64_t kh, std::int64_t kw, std::int64_t c) const noexcept {
    return ((o * s.kernel_h + kh) * s.kernel_w + kw) * channels + c;
  }
  std::int64_t y(std::int64_t n, std::int64_t oh, std::int64_t ow, std::int64_t o) const noexcept {
    return ((n * s.out_height() + oh) * s.out_width() + ow) * s.filters + o;
  }
  std::int64_t ih(std::int64_t oh, std::int64_t kh) const noexcept {
    return oh * s.stride_h + kh * s.dilation_h - s.pad_top;
  }
  std::int64_t iw(std::int64_t ow, std::int64_t kw) const noexcept {
    return ow * s.stride_w + kw * s.dilation_w - s.pad_left;
  }
  bool is_inside(std::int64_t ih, std::int64_t iw) const noexcept {
    return ih >= 0 && ih < s.height && iw >= 0 && iw < s.width;
  }
};

template <class S>
double output_value(const ConvForwardArgs& args, std::int64_t n, std::int64_t oh, std::int64_t ow,
                    std::int64_t o) noexcept {
  const Index at{args.shape};
  const std::int64_t first_channel = o / at.filters * at.channels;
  double sum = 0;
  for (std::int64_t kh = 0; kh < args.shape.kernel_h; ++kh) {
    for (std::int64_t kw = 0; kw < args.shape.kernel_w; ++kw) {
      const std::int64_t ih = at.ih(oh, kh), iw = at.iw(ow, kw);
      if (!at.is_inside(ih, iw)) continue;
      for (std::int64_t c = 0; c < at.channels; ++c) {
        sum += reference_value<double, S>(args.x, at.x(n, ih, iw, first_channel + c)) *
               reference_value<double, S>(args.weight, at.weight(o, kh, kw, c));
      }
    }
  }
  return sum;
}

template <class S>
double input_grad_value(const ConvInputGradArgs& args, std::int64_t n, std::int64_t ih, std::int64_t iw,
                        std::int64_t channel) noexcept {
  const Index at{args.shape};
  const std::int64_t group = channel / at.channels;
  double sum = 0;
  for (std::int64_t oh = 0; oh < args.shape.out_height(); ++oh) {
    for (std::int64_t ow = 0; ow < args.shape.out_width(); ++ow) {
      for (std::int64_t kh = 0; kh < args.shape.kernel_h; ++kh) {
        for (std::int64_t kw = 0; kw < args.shape.kernel_w; ++kw) {
          if (at.ih(oh, kh) != ih || at.iw(ow, kw) != iw) continue;
          for (std::int64_t o = group * at.filters; o < (group + 1) * at.filters; ++o) {
            sum += reference_value<double, S>(args.dy, at.y(n, oh, ow, o)) *
                   reference_value<double, S>(args.weight, at.weight(o, kh, kw, channel % at.channels));
          }
        }
      }
    }
  }
  return sum;
}

template <class S>
double weight_grad_value(const ConvWeightGradArgs& args, std::int64_t o, std::int64_t kh, std::int64_t kw,
                         std::int64_t c) noexcept {
  const Index at{args.shape};
  const std::int64_t channel = o / at.filters * at.channels + c;
  double sum = 0;
  for (std::int64_t n = 0; n < args.shape.images; ++n) {
    for (std::int64_t oh = 0; oh < args.shape.out_height(); ++oh) {
      for (std::int64_t ow = 0; ow < args.shape.out_width(); ++ow) {
        const std::int64_t ih = at.ih(oh, kh), iw = at.iw(ow, kw);
        if (!at.is_inside(ih, iw)) continue;
        sum += reference_value<double, S>(args.dy, at.y(n, oh, ow, o)) *
               reference_value<double, S>(args.x, at.x(n, ih, iw, channel));
      }
    }
  }
  return sum;
}

/// Calls f(i, j, k, l) for all indices below the four sizes, the last fastest.
template <class F>
void for_each(std::int64_t size0, std::int64_t size1, std::int64_t size2, std::int64_t size3, F&& f) noexcept {
  for (std::int64_t i = 0; i < size0; ++i) {
    for (std::int64_t j = 0; j < size1; ++j) {
      for (std::int64_t k = 0; k < size2; ++k) {
        for (std::int64_t l = 0; l < size3; ++l) f(i, j, k, l);
      }
    }
  }
}

}  // namespace conv_reference_detail

void conv_forward_reference(const ConvForwardArgs& args) noexcept {
  using namespace conv_reference_detail;
  const ConvShape& s = args.shape;
  visit(args.dtype, [&]<class S> {
    for_each(s.images, s.out_height(), s.out_width(), s.filters, [&](auto n, auto oh, auto ow, auto o) {
      double value = output_value<S>(args, n, oh, ow, o);
      double bias = 0;
      if (args.bias != nullptr) load_elements(args.bias, args.out_dtype, o, 1, &bias, 1);
      value += bias;
      const std::int64_t at = Index{s}.y(n, oh, ow, o);
      if (args.pre_activation != nullptr) write(args.pre_activation, args.out_dtype, at, value);
      write(args.y, args.out_dtype, at, reference_activation(args.activation, value));
    });
  });
}

void conv_input_grad_reference(const ConvInputGradArgs& args) noexcept {
  using namespace conv_reference_detail;
  const ConvShape& s = args.shape;
  visit(args.dtype, [&]<class S> {
    for_each(s.images, s.height, s.width, s.channels, [&](auto n, auto ih, auto iw, auto channel) {
      write(args.dx, args.out_dtype, Index{s}.x(n, ih, iw, channel), input_grad_value<S>(args, n, ih, iw, channel),
            args.accumulate);
    });
  });
}

void conv_weight_grad_reference(const ConvWeightGradArgs& args) noexcept {
  using namespace conv_reference_detail;
  const ConvShape& s = args.shape;
  visit(args.dtype, [&]<class S> {
    for_each(s.filters, s.kernel_h, s.kernel_w, s.channels / s.groups, [&](auto o, auto kh, auto kw, auto c) {
      write(args.dweight, args.out_dtype, Index{s}.weight(o, kh, kw, c), weight_grad_value<S>(args, o, kh, kw, c),
            args.accumulate);
    });
  });
}

void column_sum_reference(const ColumnSumArgs& args) noexcept {
  visit(args.dtype, [&]<class S> {
    for (std::int64_t j = 0; j < args.columns; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < args.rows; ++i) sum += reference_value<double, S>(args.in, i * args.columns + j);
      conv_reference_detail::write(args.out, args.out_dtype, j, sum, args.accumulate);
    }
  });
}

// ---- Attention: the definition in double, a query at a time.

namespace attention_reference_detail {

using Row = std::vector<double>;

// Row t of head h of sample b.
Row read_row(const AttentionProblem& p, const AttentionOperand& x, std::int64_t b, std::int64_t h, std::int64_t t) {
  Row row(static_cast<std::size_t>(p.width));
  load_elements(x.data, p.dtype, b * x.batch + t * x.row + h * x.head, 1, row.data(), p.width);
  return row;
}

// Row t of keys or values, in their stored dtype and times its factor.
Row read_kept_row(const AttentionProblem& p, const AttentionOperand& x, const AttentionScales& scales, std::int64_t b,
                  std::int64_t h, std::int64_t t) {
  AttentionProblem kept = p;
  kept.dtype = p.kept.value_or(p.dtype);
  Row row = read_row(kept, x, b, h, t);
  if (scales.data == nullptr) return row;
  for (double& value : row)
    value *= static_cast<double>(scales.data[b * scales.batch + t * scales.row + h * scales.head]);
  return row;
}

void write_row(const AttentionProblem& p, const AttentionResult& x, std::int64_t b, std::int64_t h, std::int64_t t,
               const double* row) {
  if (x.data) store_elements(row, x.data, p.dtype, b * x.batch + t * x.row + h * x.head, 1, p.width);
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

// 0, 1, or 1 / (1 - p): dropout's factor of probability (h, t, s) of sample b.
double dropout_factor(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) {
  if (!p.has_dropout) return 1;
  const std::int64_t i = (h * p.queries + t) * p.keys + s;
  const PhiloxBlock block =
      random_block(p.site, static_cast<std::uint32_t>(i / 4), static_cast<std::uint32_t>(p.site.first_sample + b));
  return block.word[i % 4] < p.threshold ? 0 : p.keep_scale;
}

// The mask's addend to a score.
double mask_value(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) {
  if (!p.has_mask) return 0;
  const std::int64_t at = b * p.mask.batch + h * p.mask.head + t * p.mask.query + s * p.mask.key;
  if (p.mask.dtype == DType::boolean) return static_cast<const std::uint8_t*>(p.mask.data)[at] != 0 ? 0 : -INFINITY;
  double value = 0;
  load_elements(p.mask.data, p.mask.dtype, at, 1, &value, 1);
  return value;
}

bool is_seen(const AttentionProblem& p, std::int64_t b, std::int64_t t, std::int64_t s) {
  const std::int64_t own = t + p.keys - p.queries;
  if (s < p.first_key || (p.is_causal && s > own)) return false;
  if (p.window > 0 && (s <= own - p.window || s >= own + p.window)) return false;
  const std::int32_t* const documents = p.documents ? p.documents + b * p.documents_batch : nullptr;
  return !documents || documents[s] == documents[own];
}

// softmax(scale q k^T + mask) of a query over the keys, 0 for hidden keys, and the logarithm of the sum.
struct Probabilities {
  Row of_key;
  double lse;
};
Probabilities probabilities(const AttentionProblem& p, const Row& q, std::int64_t b, std::int64_t h, std::int64_t t) {
  Probabilities result{Row(static_cast<std::size_t>(p.keys), -INFINITY), 0};
  double largest = -INFINITY, sum = 0;
  for (std::size_t s = 0; s < result.of_key.size(); ++s) {
    const auto key = static_cast<std::int64_t>(s);
    if (!is_seen(p, b, t, key)) continue;
    result.of_key[s] =
        p.scale * dot(q, read_kept_row(p, p.k, p.k_scale, b, h / p.group, key)) + mask_value(p, b, h, t, key);
    largest = std::max(largest, result.of_key[s]);
  }
  if (largest == -INFINITY && p.has_mask) return {Row(static_cast<std::size_t>(p.keys)), 0};
  for (const double score : result.of_key) sum += std::exp(score - largest);
  result.lse = largest + std::log(sum);
  for (double& score : result.of_key) score = std::exp(score - result.lse);
  return result;
}

// Adds the gradients of one head to dk and dv (S, D).
void differentiate_head(const AttentionGradArgs& p, std::int64_t b, std::int64_t h, Row& dk, Row& dv) {
  const auto width = static_cast<std::size_t>(p.width);
  for (std::int64_t t = 0; t < p.queries; ++t) {
    const Row q = read_row(p, p.q, b, h, t), dout = read_row(p, p.dout, b, h, t);
    const Row probability = probabilities(p, q, b, h, t).of_key;
    Row gradient(probability.size()), dq(width);  // of the probabilities; of q
    double delta = 0;
    for (std::size_t s = 0; s < probability.size(); ++s) {
      const auto key = static_cast<std::int64_t>(s);
      const double factor = dropout_factor(p, b, h, t, key);
      gradient[s] = factor * dot(dout, read_row(p, p.v, b, h / p.group, key));
      delta += probability[s] * gradient[s];
      for (std::size_t d = 0; d < width; ++d) dv[s * width + d] += probability[s] * factor * dout[d];
    }
    for (std::size_t s = 0; s < probability.size(); ++s) {
      const double of_score = p.scale * probability[s] * (gradient[s] - delta);
      const Row k = read_row(p, p.k, b, h / p.group, static_cast<std::int64_t>(s));
      for (std::size_t d = 0; d < width; ++d) {
        dq[d] += of_score * k[d];
        dk[s * width + d] += of_score * q[d];
      }
    }
    write_row(p, p.dq, b, h, t, dq.data());
  }
}

}  // namespace attention_reference_detail

void attention_reference(const AttentionArgs& p) {
  using namespace attention_reference_detail;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t t = 0; t < p.queries; ++t) {
        const Probabilities row = probabilities(p, read_row(p, p.q, b, h, t), b, h, t);
        Row out(static_cast<std::size_t>(p.width));
        for (std::size_t s = 0; s < row.of_key.size(); ++s) {
          const auto key = static_cast<std::int64_t>(s);
          const Row v = read_kept_row(p, p.v, p.v_scale, b, h / p.group, key);
          const double weight = row.of_key[s] * dropout_factor(p, b, h, t, key);
          for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * v[d];
        }
        write_row(p, p.out, b, h, t, out.data());
        if (!p.lse) continue;
        const DType dtype = p.dtype == DType::f64 ? DType::f64 : DType::f32;
        store_elements(&row.lse, p.lse, dtype, (b * p.heads + h) * p.queries + t, 1, 1);
      }
    }
  }
}

void attention_grad_reference(const AttentionGradArgs& p) {
  using namespace attention_reference_detail;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; h += p.group) {
      Row dk(static_cast<std::size_t>(p.keys * p.width)), dv(dk.size());
      for (std::int64_t i = 0; i < p.group; ++i) differentiate_head(p, b, h + i, dk, dv);
      for (std::int64_t s = 0; s < p.keys; ++s) {
        write_row(p, p.dk, b, h / p.group, s, dk.data() + s * p.width);
        write_row(p, p.dv, b, h / p.group, s, dv.data() + s * p.width);
      }
    }
  }
}

// ---- Convolutions of codes: the definition in quant_conv.h, literally.

void quant_conv_reference(const QuantConvArgs& args, const std::int8_t* weight) noexcept {
  const ConvShape& s = args.shape;
  std::int64_t at = 0;
  for (std::int64_t n = 0; n < s.images; ++n) {
    for (std::int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (std::int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (std::int64_t o = 0; o < s.filters; ++o, ++at) {
          std::int64_t sum = args.bias[o];
          for (std::int64_t kh = 0; kh < s.kernel_h; ++kh) {
            for (std::int64_t kw = 0; kw < s.kernel_w; ++kw) {
              const std::int64_t ih = oh * s.stride_h + kh * s.dilation_h - s.pad_top;
              const std::int64_t iw = ow * s.stride_w + kw * s.dilation_w - s.pad_left;
              const bool is_inside = ih >= 0 && ih < s.height && iw >= 0 && iw < s.width;
              for (std::int64_t c = 0; c < s.channels; ++c) {
                const int x = is_inside ? args.x[((n * s.height + ih) * s.width + iw) * s.channels + c] : args.x_zero;
                sum += x * weight[((o * s.kernel_h + kh) * s.kernel_w + kw) * s.channels + c];
              }
            }
          }
          quant_detail::store_quant_conv(args, at, o, static_cast<std::int32_t>(sum));
        }
      }
    }
  }
}

}  // namespace thimble::kernels
