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
#include <thimble/core/random.h>

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
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), channels = qkv.size(2) / 3, width = channels / heads;
  const double scale = o.scale ? *o.scale : 1 / std::sqrt(static_cast<double>(width));
  const auto third = [&](std::int64_t i) {  // (B, H, T, D), a view
    const Tensor part = slice(qkv, 2, i * channels, (i + 1) * channels);
    return permute(reshape(part, {batch, length, heads, width}), {0, 2, 1, 3});
  };
  const Tensor q = third(0), k = third(1), v = third(2);
  Tensor scores = matmul(q, k, false, true);  // (B, H, T, T)
  const Tensor softened = o.causal ? causal_softmax(scores, scale) : softmax(scores, -1, scale);
  scores = Tensor();
  const Tensor probabilities = dropout_textbook(softened, o.dropout);
  const Tensor heads_out = matmul(probabilities, v);  // (B, H, T, D)
  return reshape(permute(heads_out, {0, 2, 1, 3}), {batch, length, channels});
}

}  // namespace thimble
