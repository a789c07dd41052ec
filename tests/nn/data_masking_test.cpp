// Hidden tokens of masked-language-model samples: how many, which, how, and what they depend on.

#include <set>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/data/masking.h>

#include "support/catch.h"

using namespace thimble;
using namespace thimble::data;

namespace {

struct Windows {
  std::vector<std::int64_t> tokens, targets;
  friend bool operator==(const Windows&, const Windows&) = default;
};

// Tokens 0 .. 9; 10 is [MASK].
Windows masked(std::int64_t count, std::int64_t seq, std::uint64_t seed, std::int64_t step, std::int64_t first = 0) {
  Windows windows;
  for (std::int64_t i = first * seq; i < (first + count) * seq; ++i) windows.tokens.push_back(i * i % 10);
  windows.targets.resize(windows.tokens.size());
  MaskingOptions options;
  options.mask_token = 10, options.vocabulary = 10;
  mask_windows(windows.tokens, windows.targets, seq, seed, step, options, first);
  return windows;
}

}  // namespace

TEST_CASE("data masking: 15 % of each window are hidden", "[data][masking][quick]") {
  CHECK(masked_count(1) == 1);
  CHECK(masked_count(3) == 1);
  CHECK(masked_count(64) == 10);
  CHECK(masked_count(512) == 77);
  for (const std::int64_t seq : {1, 3, 20, 64}) {
    const std::int64_t count = 50;
    const Windows windows = masked(count, seq, 1, 0);
    for (std::int64_t w = 0; w < count; ++w) {
      std::int64_t hidden = 0;
      for (std::int64_t t = 0; t < seq; ++t) {
        const auto i = static_cast<std::size_t>(w * seq + t);
        const auto original = static_cast<std::int64_t>(i) * static_cast<std::int64_t>(i) % 10;
        if (windows.targets[i] == -100) {
          CHECK(windows.tokens[i] == original);  // the others stay
        } else {
          CHECK(windows.targets[i] == original);
          ++hidden;
        }
      }
      CHECK(hidden == masked_count(seq));
    }
  }
}

TEST_CASE("data masking: of the hidden ones 80 % are masks, 10 % random, 10 % as they were", "[data][masking][quick]") {
  const Windows windows = masked(2000, 64, 7, 3);
  double hidden = 0, masks = 0, same = 0;
  std::set<std::int64_t> random;
  for (std::size_t i = 0; i < windows.targets.size(); ++i) {
    if (windows.targets[i] == -100) continue;
    ++hidden;
    masks += windows.tokens[i] == 10 ? 1 : 0;
    same += windows.tokens[i] == windows.targets[i] ? 1 : 0;
    if (windows.tokens[i] != 10) random.insert(windows.tokens[i]);
  }
  CHECK(hidden == 2000 * 10);
  CHECK(masks / hidden == Approx(0.8).margin(0.015));
  CHECK(same / hidden == Approx(0.1 + 0.1 / 10).margin(0.012));  // a random token may be the true one
  CHECK(random.size() == 10);
}

TEST_CASE("data masking: places are spread evenly over the window", "[data][masking][quick]") {
  const std::int64_t seq = 20, count = 4000;
  const Windows windows = masked(count, seq, 5, 1);
  std::vector<double> hits(static_cast<std::size_t>(seq), 0.0);
  for (std::size_t i = 0; i < windows.targets.size(); ++i) {
    hits[i % static_cast<std::size_t>(seq)] += windows.targets[i] == -100 ? 0 : 1;
  }
  for (const double h : hits) CHECK(h / static_cast<double>(count) == Approx(0.15).margin(0.025));
}

TEST_CASE("data masking: a function of seed and step alone", "[data][masking][quick]") {
  CHECK(masked(8, 32, 1, 5) == masked(8, 32, 1, 5));
  CHECK(masked(8, 32, 1, 5).targets != masked(8, 32, 1, 6).targets);
  CHECK(masked(8, 32, 1, 5).targets != masked(8, 32, 2, 5).targets);
  const Windows two = masked(2, 30, 1, 5);  // the windows of a batch hide different places
  std::set<std::size_t> first, second;
  for (std::size_t i = 0; i < 30; ++i) {
    if (two.targets[i] != -100) first.insert(i);
    if (two.targets[30 + i] != -100) second.insert(i);
  }
  CHECK(first != second);
  const Windows whole = masked(7, 30, 1, 5);  // a micro-batch hides the tokens that its batch hides there
  const Windows middle = masked(3, 30, 1, 5, 2);
  CHECK(std::equal(middle.tokens.begin(), middle.tokens.end(), whole.tokens.begin() + 60));
  CHECK(std::equal(middle.targets.begin(), middle.targets.end(), whole.targets.begin() + 60));
}

TEST_CASE("data masking: what does not fit is refused", "[data][masking][quick]") {
  std::vector<std::int64_t> tokens(10, 1), targets(10), few(9);
  MaskingOptions options;
  CHECK_THROWS_AS(mask_window(tokens, targets, 1, options), ValueError);  // no vocabulary
  options.vocabulary = 5;
  CHECK_THROWS_AS(mask_window(tokens, few, 1, options), ShapeError);
  CHECK_THROWS_AS(mask_windows(tokens, targets, 3, 1, 0, options), ShapeError);
  CHECK_THROWS_AS(mask_windows(tokens, targets, 0, 1, 0, options), ShapeError);
  options.share = 1.5;
  CHECK_THROWS_AS(mask_window(tokens, targets, 1, options), ValueError);
  options.share = 0.15, options.masked = 0.95;
  CHECK_THROWS_AS(mask_window(tokens, targets, 1, options), ValueError);
  CHECK_THROWS_AS(masked_count(0), ValueError);
}
