#pragma once
// Windows of text as masked-language-model samples: some tokens are hidden in the input and are what the model learns.

#include <cstdint>
#include <span>

namespace thimble::data {

/// What is hidden: Devlin et al. 2018 (arXiv:1810.04805), appendix A.1.
struct MaskingOptions {
  double share = 0.15;          ///< of the tokens of each window, rounded, at least one
  double masked = 0.8;          ///< of those: replaced by mask_token
  double replaced = 0.1;        ///< of those: replaced by a random token; the others stay as they are
  std::int64_t mask_token = 0;  ///< id of [MASK]
  std::int64_t vocabulary = 0;  ///< random tokens are below that
  std::int64_t ignored = -100;  ///< target of tokens that are not to be predicted
};

/// How many tokens of a window of `seq` are hidden: a function of its length alone.
std::int64_t masked_count(std::int64_t seq, double share = 0.15);

/// Hides tokens of one window: `tokens` (T) become the input, `targets` (T) gets the true token where one is to be
/// predicted, else `ignored`. Which ones, and how, is a function of `key` alone. Throws ShapeError when the spans
/// differ, ValueError for an empty window, shares outside of [0, 1], or a vocabulary below 1.
void mask_window(std::span<std::int64_t> tokens, std::span<std::int64_t> targets, std::uint64_t key,
                 const MaskingOptions& options);

/// Hides tokens of windows of a batch (B, T), with a key made of `seed`, the `step` and the window's number in its
/// batch, from `first` on.
void mask_windows(std::span<std::int64_t> tokens, std::span<std::int64_t> targets, std::int64_t seq, std::uint64_t seed,
                  std::int64_t step, const MaskingOptions& options, std::int64_t first = 0);

}  // namespace thimble::data
