#include <thimble/autograd/functions/attention.h>

#include <cmath>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/dropout.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/autograd/functions/softmax.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/random/random.h>

namespace thimble {

Tensor attention(const Tensor& qkv, std::int64_t heads, const AttentionOptions& o) {
  return apply(ops::Attention{heads, o.causal, o.scale, o.dropout, next_random_site()}, qkv);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  return apply(ops::ScaledDotProductAttention{o.causal, o.scale, o.dropout, next_random_site()}, q, k, v);
}

Tensor attention_textbook(const Tensor& qkv, std::int64_t heads, const AttentionOptions& o) {
  if (heads < 1) {
    throw ValueError("attention_textbook: " + std::to_string(heads) + " heads, allowed are 1 and more");
  }
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
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4 || q.size(3) == 0) {
    throw ShapeError("attention_textbook: q " + describe(q) + ", k " + describe(k) + ", v " + describe(v) +
                     "; (B, T, H, D), (B, S, H, D), (B, S, H, D) are needed");
  }
  const double scale = o.scale ? *o.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  const auto heads_first = [](const Tensor& x) { return permute(x, {0, 2, 1, 3}); };  // (B, H, T or S, D), a view
  Tensor scores = matmul(heads_first(q), heads_first(k), false, true);                // (B, H, T, S)
  const Tensor softened = o.causal ? causal_softmax(scores, scale) : softmax(scores, -1, scale);
  scores = Tensor();
  const Tensor probabilities = dropout_textbook(softened, o.dropout);
  return permute(matmul(probabilities, heads_first(v)), {0, 2, 1, 3});
}

}  // namespace thimble
