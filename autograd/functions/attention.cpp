#include <thimble/autograd/functions/attention.h>

#include <cmath>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/autograd/functions/reduction.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/random.h>

namespace thimble {

namespace {

// (B, S, G, D) -> (B, S, G times, D): repeats each head, a copy unless `times` is 1.
Tensor repeat_heads(const Tensor& x, std::int64_t times) {
  if (times == 1) return x;
  const std::int64_t batch = x.size(0), length = x.size(1), heads = x.size(2), width = x.size(3);
  const Tensor repeated = expand(unsqueeze(x, 3), {batch, length, heads, times, width});
  return dense(reshape(repeated, {batch, length, heads * times, width}));  // reshape of a single head is a view
}

// Evaluation drops nothing. The operator still gets and refuses a probability out of range.
double dropped(double p) { return p > 0 && p < 1 && is_evaluating() ? 0 : p; }

}  // namespace

Tensor rotary(const Tensor& x, const RotaryOptions& o) {
  return apply(ops::Rotary{o.theta, o.first_position, o.scaling}, x);
}

Tensor attention(const Tensor& qkv, std::int64_t heads, const AttentionOptions& o) {
  const double p = dropped(o.dropout);
  return apply(ops::Attention{heads, o.causal, o.scale, p, next_random_site(), o.window}, qkv, o.mask);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  const double p = dropped(o.dropout);
  return apply(ops::ScaledDotProductAttention{o.causal, o.scale, p, next_random_site(), o.window}, q, k, v, o.mask);
}

Tensor attention_textbook(const Tensor& qkv, std::int64_t heads, const AttentionOptions& o) {
  if (heads < 1) throw ValueError("attention_textbook: " + std::to_string(heads) + " heads, expected at least 1");
  if (qkv.rank() != 3 || qkv.size(2) == 0 || qkv.size(2) % (3 * heads) != 0) {
    throw ShapeError("attention_textbook: " + describe(qkv) + " is not (B, T, 3 C) with C divisible by " +
                     std::to_string(heads) + " heads");
  }
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), channels = qkv.size(2) / 3;
  const auto third = [&](std::int64_t i) {  // (B, T, H, D), a view
    return reshape(slice(qkv, 2, i * channels, (i + 1) * channels), {batch, length, heads, channels / heads});
  };
  return reshape(attention_textbook(third(0), third(1), third(2), o), {batch, length, channels});
}

Tensor attention_textbook(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4 || q.size(3) == 0 || k.size(2) == 0 || k.size(2) != v.size(2) ||
      q.size(2) % k.size(2) != 0) {
    throw ShapeError("attention_textbook: q " + describe(q) + ", k " + describe(k) + ", v " + describe(v) +
                     "; expected (B, T, H, D), (B, S, G, D), (B, S, G, D) where G divides H");
  }
  if (o.window != 0 || o.mask.defined()) {
    throw ValueError("attention_textbook: it has no window and no mask; use attention()");
  }
  const std::int64_t group = q.size(2) / k.size(2);
  const double scale = o.scale ? *o.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  const auto heads_first = [](const Tensor& x) { return permute(x, {0, 2, 1, 3}); };  // (B, H, T or S, D), a view
  const auto of_all = [&](const Tensor& x) { return heads_first(repeat_heads(x, group)); };
  Tensor scores = matmul(heads_first(q), of_all(k), false, true);  // (B, H, T, S)
  const Tensor softened = o.causal ? causal_softmax(scores, scale) : softmax(scores, -1, scale);
  scores = Tensor();
  const Tensor probabilities = dropout_textbook(softened, o.dropout);
  return permute(matmul(probabilities, of_all(v)), {0, 2, 1, 3});
}

}  // namespace thimble
