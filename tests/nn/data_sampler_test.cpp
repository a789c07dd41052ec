#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/data/masking.h>
#include <thimble/nn/data/sampler.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/splitmix.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/data/text.h>

#include "support/catch.h"

using namespace thimble;
using namespace thimble::data;

namespace {

// FNV-1a over bytes: synthetic data must be the same on every machine.
template <class Bytes>
std::uint64_t fnv(const Bytes& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto b : bytes) hash = (hash ^ static_cast<unsigned char>(b)) * 0x100000001b3u;
  return hash;
}

// Sum over cells of (count - mean)^2 / mean.
double chi_squared(const std::vector<int>& counts) {
  const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double sum = 0;
  for (const int count : counts) sum += (count - mean) * (count - mean) / mean;
  return sum;
}

}  // namespace

TEST_CASE("data sampler: SplitMix64 gives the published sequence", "[data]") {
  // The reference implementation (Vigna, prng.di.unimi.it/splitmix64.c) seeded with 1234567.
  SplitMix random(1234567);
  for (const std::uint64_t expected :
       {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u, 16408922859458223821u})
    CHECK(random.next() == expected);
  CHECK(splitmix64(0) == 0xe220a8397b1dcdafu);
}

TEST_CASE("data sampler: a permutation hits every value once", "[data]") {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4096, 4097, 60000})
    for (const std::uint64_t key : {0u, 1u, 2u}) {
      const Permutation permutation(count, key);
      std::vector<bool> is_hit(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) is_hit.at(static_cast<std::size_t>(permutation(i))) = true;
      INFO(count << " values, key " << key);
      CHECK(std::count(is_hit.begin(), is_hit.end(), true) == count);
    }
  const Permutation large(std::int64_t{1} << 62, 3);
  CHECK(large(0) >= 0);
  CHECK(large(0) != large(1));
  CHECK_THROWS_AS(Permutation(0, 1), ValueError);
  CHECK_THROWS_AS(Permutation((std::int64_t{1} << 62) + 1, 1), ValueError);
}

TEST_CASE("data sampler: permutations look random", "[data]") {
  // Positions of the first and the last value, and the orders of four values (24), over many keys. The limits are the
  // 99.99 % quantiles of chi-squared with 9 and 23 degrees of freedom.
  constexpr int keys = 24000;
  std::vector<int> first(10), last(10), order(24);
  for (int key = 0; key < keys; ++key) {
    const Permutation ten(10, splitmix64(static_cast<std::uint64_t>(key))),
        four(4, splitmix64(static_cast<std::uint64_t>(key)));
    ++first[static_cast<std::size_t>(ten(0))];
    ++last[static_cast<std::size_t>(ten(9))];
    std::size_t rank = 0;
    for (std::int64_t i = 0; i < 4; ++i) {
      std::size_t smaller = 0;
      for (std::int64_t j = i + 1; j < 4; ++j) smaller += four(j) < four(i) ? 1 : 0;
      rank = rank * static_cast<std::size_t>(4 - i) + smaller;
    }
    ++order[rank];
  }
  CHECK(chi_squared(first) < 33.7);
  CHECK(chi_squared(last) < 33.7);
  CHECK(chi_squared(order) < 56.7);
}

TEST_CASE("data sampler: every epoch has every sample once", "[data]") {
  struct Row {
    std::int64_t count, batch;
  };
  for (const Row row : {Row{10, 3}, Row{12, 4}, Row{1, 1}, Row{5, 13}, Row{1000, 64}}) {
    const BatchSampler sampler(row.count, row.batch, 7);
    std::vector<std::int64_t> stream;
    for (std::int64_t step = 0; static_cast<std::int64_t>(stream.size()) < 4 * row.count; ++step) {
      CHECK(sampler.epoch(step) == static_cast<std::int64_t>(stream.size()) / row.count);
      for (const std::int64_t index : sampler.indices(step)) stream.push_back(index);
    }
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      const auto begin = stream.begin() + epoch * row.count;
      const std::set<std::int64_t> seen(begin, begin + row.count);
      INFO(row.count << " samples, batch " << row.batch << ", epoch " << epoch);
      CHECK(static_cast<std::int64_t>(seen.size()) == row.count);
      CHECK(*seen.begin() == 0);
      CHECK(*seen.rbegin() == row.count - 1);
    }
    if (row.count >= 10)
      CHECK_FALSE(std::equal(stream.begin(), stream.begin() + row.count, stream.begin() + row.count));
  }
}

TEST_CASE("data sampler: a step's batch depends on seed and step alone", "[data]") {
  const BatchSampler a(1000, 32, 5), resumed(1000, 32, 5), other(1000, 32, 6);
  for (std::int64_t step = 0; step < 100; ++step) a.indices(step);
  CHECK(a.indices(77) == resumed.indices(77));
  CHECK(a.indices(77) != a.indices(78));
  CHECK(a.indices(77) != other.indices(77));
  const WindowSampler w(1000, 16, 8, 5), again(1000, 16, 8, 5), different(1000, 16, 8, 6);
  CHECK(w.starts(3) == again.starts(3));
  CHECK(w.starts(3) != w.starts(4));
  CHECK(w.starts(3) != different.starts(3));
}

TEST_CASE("data sampler: windows are uniform and within the text", "[data]") {
  const WindowSampler sampler(30, 10, 100, 1);
  std::vector<int> counts(20);
  for (std::int64_t step = 0; step < 200; ++step)
    for (const std::int64_t start : sampler.starts(step)) ++counts.at(static_cast<std::size_t>(start));
  CHECK(chi_squared(counts) < 50.8);  // 99.99 % of chi-squared with 19 degrees of freedom
  CHECK(WindowSampler(11, 10, 2, 1).starts(0) == std::vector<std::int64_t>{0, 0});
}

TEST_CASE("data sampler: arguments are checked", "[data]") {
  CHECK_THROWS_AS(BatchSampler(0, 1, 0), ValueError);
  CHECK_THROWS_AS(BatchSampler(1, 0, 0), ValueError);
  CHECK_THROWS_AS(BatchSampler(1, 1, 0).indices(-1), ValueError);
  CHECK_THROWS_AS(BatchSampler(10, 4, 0).indices(std::int64_t{1} << 60), ValueError);
  CHECK_NOTHROW(BatchSampler(10, 4, 0).indices((std::int64_t{1} << 60) - 1));
  std::vector<std::int64_t> room(3);
  CHECK_THROWS_AS(BatchSampler(10, 4, 0).indices(0, room), ShapeError);
  CHECK_THROWS_AS(WindowSampler(10, 10, 1, 0), ValueError);
  CHECK_THROWS_AS(WindowSampler(1, 1, 1, 0), ValueError);
  CHECK_THROWS_AS(WindowSampler(10, 0, 1, 0), ValueError);
  CHECK_THROWS_AS(WindowSampler(10, 4, 0, 0), ValueError);
  CHECK_THROWS_AS(WindowSampler(10, 4, 2, 0).starts(-1), ValueError);
  CHECK_THROWS_AS(WindowSampler(10, 4, 2, 0).starts(0, room), ShapeError);
}

TEST_CASE("data source: image batches", "[data]") {
  Images images{4, 1, 2, 2, 10, {}, {9, 1, 2, 3}};
  for (int i = 0; i < 16; ++i) images.pixels.push_back(static_cast<std::uint8_t>(i % 2 == 0 ? 10 * i : 7));
  const Normalization measured = measure_normalization(images, 1, 3);
  // Channel 0 of images 1 to 3: 40, 60, 80, 100, 120, 140; channel 1 is constant.
  CHECK(measured.mean[0] == Approx(90.0 / 255));
  CHECK(measured.deviation[0] == Approx(std::sqrt(3500.0 / 3) / 255));
  CHECK(measured.mean[1] == Approx(7.0 / 255));
  CHECK(measured.deviation[1] == 1.0f);

  const ImageSource source(images, 1, 3, 3, 1, {{0.5f, 0.0f}, {0.25f, 1.0f}});
  std::vector<float> pixels(3 * 4);
  std::vector<std::int32_t> labels(3);
  source.batch(0, std::span(pixels), std::span(labels));
  CHECK(std::set<std::int32_t>(labels.begin(), labels.end()) == std::set<std::int32_t>{1, 2, 3});
  for (std::size_t b = 0; b < 3; ++b)
    for (std::size_t i = 0; i < 4; ++i) {
      const float byte = images.pixels[static_cast<std::size_t>(labels[b]) * 4 + i];
      CHECK(pixels[b * 4 + i] == (i % 2 == 0 ? (byte / 255 - 0.5f) / 0.25f : byte / 255));
    }
  std::vector<std::int64_t> two(2);
  source.sequential(1, std::span(pixels).first(8), std::span(two));
  CHECK(two == std::vector<std::int64_t>{2, 3});
  CHECK(pixels[0] == (80.0f / 255 - 0.5f) / 0.25f);
  CHECK_THROWS_AS(source.sequential(2, std::span(pixels).first(8), std::span(two)), ValueError);
  CHECK_THROWS_AS(source.sequential(-1, std::span(pixels).first(8), std::span(two)), ValueError);
  CHECK_THROWS_AS(source.batch(0, std::span(pixels), std::span(two)), ShapeError);
  CHECK_THROWS_AS(source.batch(0, std::span(pixels).first(11), std::span(labels)), ShapeError);

  const Normalization good{{0, 0}, {1, 1}};
  CHECK_THROWS_AS(ImageSource(images, 0, 5, 1, 1, good), ValueError);
  CHECK_THROWS_AS(ImageSource(images, -1, 2, 1, 1, good), ValueError);
  CHECK_THROWS_AS(ImageSource(images, 0, 0, 1, 1, good), ValueError);
  CHECK_THROWS_AS(ImageSource(images, 0, 4, 1, 1, {{0}, {1, 1}}), ValueError);
  CHECK_THROWS_AS(ImageSource(images, 0, 4, 1, 1, {{0, 0}, {1, 0}}), ValueError);
  CHECK_THROWS_AS(measure_normalization(Images{}, 0, 1), ValueError);
  Images wide{1, 1, 1400, 3, 10, {}, {0}};  // more values than are read at a time
  for (int i = 0; i < 4200; ++i) wide.pixels.push_back(static_cast<std::uint8_t>(40 * (i % 3)));
  CHECK(measure_normalization(wide, 0, 1).mean == std::vector<float>{0, 40.0f / 255, 80.0f / 255});
}

TEST_CASE("data source: token batches", "[data]") {
  std::vector<std::uint16_t> tokens(23);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{100});
  const TokenSource<std::uint16_t> source(tokens, 5, 3, 1);
  std::vector<std::int64_t> inputs(15), targets(15);
  source.batch(4, std::span(inputs), std::span(targets));
  const auto starts = source.sampler().starts(4);
  for (std::size_t b = 0; b < 3; ++b)
    for (std::size_t t = 0; t < 5; ++t) {
      CHECK(inputs[b * 5 + t] == 100 + starts[b] + static_cast<std::int64_t>(t));
      CHECK(targets[b * 5 + t] == inputs[b * 5 + t] + 1);
    }
  CHECK(source.windows() == 4);  // 22 targets in windows of 5; the last 2 are left over
  std::vector<int> x(5), y(5);
  source.window(3, std::span(x), std::span(y));
  CHECK(x == std::vector<int>{115, 116, 117, 118, 119});
  CHECK(y == std::vector<int>{116, 117, 118, 119, 120});
  CHECK_THROWS_AS(source.window(4, std::span(x), std::span(y)), ValueError);
  CHECK_THROWS_AS(source.window(-1, std::span(x), std::span(y)), ValueError);
  CHECK_THROWS_AS(source.window(0, std::span(x), std::span(y).first(4)), ShapeError);
  CHECK_THROWS_AS(source.batch(0, std::span(inputs).first(14), std::span(targets)), ShapeError);
  CHECK(TokenSource<std::uint16_t>(std::span(tokens).first(21), 5, 1, 1).windows() == 4);
  CHECK(TokenSource<std::uint16_t>(std::span(tokens).first(20), 5, 1, 1).windows() == 3);
}

TEST_CASE("data synthetic: text", "[data]") {
  const std::string text = synthetic_text(1 << 20, 1);
  CHECK(text.size() == 1 << 20);
  CHECK(synthetic_text(1000, 1) == text.substr(0, 1000));
  CHECK(synthetic_text(1000, 2) != text.substr(0, 1000));
  CHECK(synthetic_text(0, 1).empty());
  CHECK(text.find('$') == std::string::npos);
  const CharVocabulary vocabulary(text);
  CHECK(vocabulary.size() == 55);
  CHECK(CharVocabulary(synthetic_text(1 << 20, 2)).symbols() == vocabulary.symbols());
  CHECK(fnv(text) == 0x390873cabebf27e5u);
}

TEST_CASE("data synthetic: images", "[data]") {
  const Images images = synthetic_images(500, 20, 3, 10, 1);
  CHECK(images.pixels.size() == 500 * 20 * 20 * 3);
  CHECK(*std::max_element(images.labels.begin(), images.labels.end()) == 9);
  CHECK(fnv(images.pixels) == 0x8f85194fde9ce3d6u);
  std::vector<int> counts(10);
  for (const auto label : images.labels) ++counts[label];
  CHECK(chi_squared(counts) < 33.7);
  // The first images do not depend on how many are made.
  const Images fewer = synthetic_images(3, 20, 3, 10, 1);
  CHECK(std::equal(fewer.pixels.begin(), fewer.pixels.end(), images.pixels.begin()));
  CHECK_FALSE(std::equal(fewer.pixels.begin(), fewer.pixels.end(), synthetic_images(3, 20, 3, 10, 2).pixels.begin()));
  CHECK(synthetic_images(0, 8, 1, 2, 1).pixels.empty());
  CHECK_THROWS_AS(synthetic_images(-1, 20, 1, 10, 1), ValueError);
  CHECK_THROWS_AS(synthetic_images(1, 7, 1, 10, 1), ValueError);
  CHECK_THROWS_AS(synthetic_images(1, 20, 5, 10, 1), ValueError);
  CHECK_THROWS_AS(synthetic_images(1, 20, 1, 65, 1), ValueError);
  CHECK_THROWS_AS(synthetic_images(1, 20, 1, 1, 1), ValueError);
}

namespace {

// A picture without its colours: each pixel's distance from the mean, clipped.
std::vector<double> contrast(const std::uint8_t* pixels, std::size_t elements) {
  const double mean = std::accumulate(pixels, pixels + elements, 0.0) / static_cast<double>(elements);
  std::vector<double> out;
  for (std::size_t i = 0; i < elements; ++i) out.push_back(std::min(std::abs(pixels[i] - mean), 80.0));
  return out;
}

// The index in `known` of the vector nearest to `one`.
std::size_t nearest(const std::vector<std::vector<double>>& known, const std::vector<double>& one) {
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < known.size(); ++k) {
    double sum = 0;
    for (std::size_t i = 0; i < one.size(); ++i) sum += (one[i] - known[k][i]) * (one[i] - known[k][i]);
    if (sum >= least) continue;
    least = sum;
    best = k;
  }
  return best;
}

}  // namespace

TEST_CASE("data synthetic: classes can be told apart, but not by single pixels", "[data]") {
  constexpr std::size_t elements = 16 * 16, classes = 4;
  const Images train = synthetic_images(800, 16, 1, classes, 1), test = synthetic_images(200, 16, 1, classes, 2);
  std::vector<std::vector<double>> means(classes, std::vector<double>(elements)), known;
  std::vector<double> counts(classes);
  for (std::size_t n = 0; n < train.labels.size(); ++n) {
    const std::uint8_t* pixels = train.pixels.data() + n * elements;
    for (std::size_t i = 0; i < elements; ++i) means[train.labels[n]][i] += pixels[i];
    ++counts[train.labels[n]];
    known.push_back(contrast(pixels, elements));
  }
  for (std::size_t c = 0; c < classes; ++c)
    for (double& mean : means[c]) mean /= counts[c];
  int right_by_mean = 0, right_by_shape = 0;
  for (std::size_t n = 0; n < test.labels.size(); ++n) {
    const std::uint8_t* pixels = test.pixels.data() + n * elements;
    const std::size_t label = test.labels[n];
    right_by_mean += nearest(means, {pixels, pixels + elements}) == label ? 1 : 0;
    right_by_shape += train.labels[nearest(known, contrast(pixels, elements))] == label ? 1 : 0;
  }
  INFO("of 200, 50 are right by chance; by class mean " << right_by_mean << ", by shape " << right_by_shape);
  CHECK(right_by_mean < 80);
  CHECK(right_by_shape > 120);
}

// ---- Hidden tokens of masked-language-model samples: how many, which, how, and their dependence on step and seed.

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
  const Windows two = masked(2, 30, 1, 5);  // windows of a batch hide different positions
  std::set<std::size_t> first, second;
  for (std::size_t i = 0; i < 30; ++i) {
    if (two.targets[i] != -100) first.insert(i);
    if (two.targets[30 + i] != -100) second.insert(i);
  }
  CHECK(first != second);
  const Windows whole = masked(7, 30, 1, 5);  // a micro-batch hides the tokens that the whole batch hides there
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
