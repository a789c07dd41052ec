#include <thimble/nn/generate/sampling.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/numbers/philox.h>
#include <thimble/memory/units.h>

namespace thimble::nn {
namespace {

/// Tokens with their logits, the largest first if top_k or top_p cut. Throws ValueError for logits without a softmax.
std::vector<TokenChance> candidates(std::span<const float> logits, const SamplingOptions& options) {
  if (logits.empty()) throw ValueError("sampling: no logits; at least one is needed");
  std::vector<TokenChance> list;
  list.reserve(logits.size());
  for (const float logit : logits) {
    const auto token = static_cast<std::int64_t>(list.size());
    if (std::isnan(logit) || logit == INFINITY) {
      throw ValueError("sampling: logit " + std::to_string(logit) + " of token " + std::to_string(token) +
                       "; expected logits below infinity");
    }
    list.push_back({token, logit});
  }
  const auto is_before = [](const TokenChance& a, const TokenChance& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  };
  const std::size_t kept = options.temperature == 0 ? 1
                           : options.top_k == 0     ? list.size()
                                                    : std::min(list.size(), static_cast<std::size_t>(options.top_k));
  if (kept < list.size()) {
    std::partial_sort(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(kept), list.end(), is_before);
    list.resize(kept);
  } else if (options.top_p < 1) {
    std::sort(list.begin(), list.end(), is_before);
  }
  return list;
}

}  // namespace

void SamplingOptions::check() const {
  if (!(temperature >= 0) || std::isinf(temperature)) {
    throw ValueError("sampling: `temperature` " + format_real(temperature) +
                     "; expected a finite number of at least 0");
  }
  if (top_k < 0) throw ValueError("sampling: `top_k` " + std::to_string(top_k) + "; expected at least 0");
  if (!(top_p > 0 && top_p <= 1)) {
    throw ValueError("sampling: `top_p` " + format_real(top_p) + "; expected a number above 0 and at most 1");
  }
  if (temperature == 0 && (top_k > 0 || top_p < 1)) {
    throw ValueError(std::string("sampling: ") + (top_k > 0 ? "`top_k`" : "`top_p`") +
                     ": not with `temperature` 0, where the most likely token is always taken");
  }
}

std::vector<TokenChance> token_chances(std::span<const float> logits, const SamplingOptions& options) {
  options.check();
  std::vector<TokenChance> list = candidates(logits, options);
  double most = -INFINITY;
  for (const TokenChance& c : list) most = std::max(most, c.probability);
  if (most == -INFINITY) throw ValueError("sampling: all logits are -infinity; one that is finite is needed");
  if (options.temperature == 0) return {{list.front().token, 1}};
  double sum = 0;
  for (TokenChance& c : list) sum += c.probability = std::exp((c.probability - most) / options.temperature);
  if (options.top_p < 1) {
    double running = 0;
    std::size_t kept = 0;
    while (kept < list.size() && running < options.top_p * sum) running += list[kept++].probability;
    list.resize(kept);
    sum = running;
  }
  for (TokenChance& c : list) c.probability /= sum;
  return list;
}

std::int64_t draw_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  const std::vector<TokenChance> list = token_chances(logits, options);
  double running = 0;
  for (const TokenChance& c : list) {
    running += c.probability;
    if (running > uniform) return c.token;
  }
  // The probabilities may round to a sum below 1. Then the last token with a positive probability is drawn.
  const auto last = std::find_if(list.rbegin(), list.rend(), [](const TokenChance& c) { return c.probability > 0; });
  return last->token;
}

double token_uniform(std::uint64_t seed, std::int64_t index, std::int64_t sequence) {
  constexpr std::uint32_t generate_tag = 0x67656e65;  // "gene"
  const PhiloxBlock bits =
      philox4x32({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(sequence), 0, generate_tag}},
                 {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
  return uniform_double(bits.word[0], bits.word[1]);
}

}  // namespace thimble::nn
