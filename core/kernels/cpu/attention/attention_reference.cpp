// The oracle of attention_cpu.cpp and attention_backward_cpu.cpp: the definition in double, a query at a time.

#include <thimble/core/kernels/attention.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/shared/random_bits.h>

namespace thimble::kernels {
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

}  // namespace thimble::kernels
