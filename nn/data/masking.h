#pragma once
// Windows of text as masked-language-model samples: the model learns to predict tokens that are hidden in the input.

#include <cstdint>
#include <span>

namespace thimble::data {

/// After Devlin et al. 2018 (arXiv:1810.04805), appendix A.1.
struct MaskingOptions {
  double share = 0.15;          ///< fraction of hidden tokens per window, rounded to at least one token
  double masked = 0.8;          ///< fraction of hidden tokens that become mask_token
  double replaced = 0.1;        ///< fraction of hidden tokens that become a random token; the rest stay unchanged
  std::int64_t mask_token = 0;  ///< id of [MASK]
  std::int64_t vocabulary = 0;  ///< random tokens are below it
  std::int64_t ignored = -100;  ///< target of tokens that are not hidden
};

/// The number of hidden tokens in a window of `seq` tokens.
std::int64_t masked_count(std::int64_t seq, double share = 0.15);

/// Hides tokens of one window: `tokens` (T) become the input, `targets` (T) get the true token at hidden positions and
/// `ignored` elsewhere. Only `key` decides the positions and replacements. Throws ShapeError when the spans differ,
/// ValueError for an empty window, fractions outside of [0, 1], or a vocabulary below 1.
void mask_window(std::span<std::int64_t> tokens, std::span<std::int64_t> targets, std::uint64_t key,
                 const MaskingOptions& options);

/// Hides tokens of a batch's windows (B, T). A window's key comes from `seed`, `step` and its number, counted from
/// `first`.
void mask_windows(std::span<std::int64_t> tokens, std::span<std::int64_t> targets, std::int64_t seq, std::uint64_t seed,
                  std::int64_t step, const MaskingOptions& options, std::int64_t first = 0);

}  // namespace thimble::data
