#pragma once
// Draws one token from the logits of a position.

#include <cstdint>
#include <span>
#include <vector>

namespace thimble::nn {

/// The distribution is softmax(logits / temperature) over the `top_k` most likely tokens, cut to the first tokens whose
/// probabilities sum to `top_p` (the nucleus of Holtzman et al. 2020, arXiv:1904.09751, section 3.1) and renormalised.
/// Of equal logits, the smaller token counts as more likely.
struct SamplingOptions {
  double temperature = 0.8;  ///< 0 takes the most likely token
  std::int64_t top_k = 0;    ///< 0 keeps all tokens
  double top_p = 1;          ///< in (0, 1]

  /// Throws ValueError naming the option, its value and the expected one.
  void check() const;
};

/// A token that may be drawn, and its probability.
struct TokenChance {
  std::int64_t token;
  double probability;
};

/// Tokens that may be drawn, with f64 probabilities that sum to 1: the most likely first if top_k or top_p cut,
/// otherwise by token. Throws ValueError as check(), for no logits, for a NaN or +infinity, and for only -infinity.
std::vector<TokenChance> token_chances(std::span<const float> logits, const SamplingOptions& options);

/// The first of token_chances at which their running sum exceeds `uniform`, in [0, 1).
std::int64_t draw_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

/// The number in [0, 1) that draws token `index` of a sequence, from Philox4x32-10 with the seed as key.
double token_uniform(std::uint64_t seed, std::int64_t index, std::int64_t sequence);

}  // namespace thimble::nn
