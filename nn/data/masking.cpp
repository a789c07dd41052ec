#include <thimble/nn/data/masking.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/nn/data/require.h>
#include <thimble/nn/data/sampler.h>
#include <thimble/nn/data/splitmix.h>

namespace thimble::data {
namespace {

constexpr std::uint64_t purpose = 0x6d61736b;  // separates these random numbers from the sampler's

void require_share(const char* which, double share) {
  if (!(share >= 0 && share <= 1)) {
    throw ValueError(std::string("masking: ") + which + " " + std::to_string(share) + " is not in [0, 1]");
  }
}

}  // namespace

std::int64_t masked_count(std::int64_t seq, double share) {
  require_between("masking: tokens of a window", seq, 1, std::int64_t{1} << 40);
  require_share("share", share);
  return std::max<std::int64_t>(1, std::llround(share * static_cast<double>(seq)));
}

void mask_window(std::span<std::int64_t> tokens, std::span<std::int64_t> targets, std::uint64_t key,
                 const MaskingOptions& options) {
  if (tokens.size() != targets.size()) {
    throw ShapeError("masking: " + std::to_string(tokens.size()) + " tokens and room for " +
                     std::to_string(targets.size()) + " targets");
  }
  const auto seq = static_cast<std::int64_t>(tokens.size());
  const std::int64_t count = masked_count(seq, options.share);
  require_share("masked", options.masked);
  require_share("replaced", options.replaced);
  require_share("masked and replaced", options.masked + options.replaced);
  require_between("masking: vocabulary", options.vocabulary, 1, std::int64_t{1} << 40);

  std::fill(targets.begin(), targets.end(), options.ignored);
  const Permutation places(seq, key);
  SplitMix random(splitmix64(key));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(places(i));
    targets[at] = tokens[at];
    const double draw = random.uniform(0, 1);
    const auto other = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(options.vocabulary)));
    if (draw < options.masked) {
      tokens[at] = options.mask_token;
    } else if (draw < options.masked + options.replaced) {
      tokens[at] = other;
    }
  }
}

void mask_windows(std::span<std::int64_t> tokens, std::span<std::int64_t> targets, std::int64_t seq, std::uint64_t seed,
                  std::int64_t step, const MaskingOptions& options, std::int64_t first) {
  if (seq < 1 || tokens.size() % static_cast<std::size_t>(seq) != 0 || tokens.size() != targets.size()) {
    throw ShapeError("masking: " + std::to_string(tokens.size()) + " tokens and room for " +
                     std::to_string(targets.size()) + " targets are not windows of " + std::to_string(seq));
  }
  const auto width = static_cast<std::size_t>(seq);
  SplitMix keys(splitmix64(splitmix64(seed + purpose) + static_cast<std::uint64_t>(step)));
  for (std::int64_t i = 0; i < first; ++i) keys.next();
  for (std::size_t at = 0; at < tokens.size(); at += width) {
    mask_window(tokens.subspan(at, width), targets.subspan(at, width), keys.next(), options);
  }
}

}  // namespace thimble::data
