// Tensors of random numbers: their words, the moments of the distributions, and equal numbers for every thread count,
// instruction set and position in a batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/shared/normal_quantile.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/numbers/philox.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/nn/layers/init.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/near.h"

using namespace thimble;

namespace {

constexpr RandomSite site{42, 7, 0, 0xabcdef01u};

struct Moments {
  double mean = 0, variance = 0, skew = 0, kurtosis = 0;
};

Moments moments_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Moments m;
  m.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  for (const double x : values) {
    const double d = x - m.mean;
    m.variance += d * d / n;
    m.skew += d * d * d / n;
    m.kurtosis += d * d * d * d / n;
  }
  m.skew /= std::pow(m.variance, 1.5);
  m.kurtosis /= m.variance * m.variance;
  return m;
}

// FNV-1a over the bytes of a tensor.
std::uint64_t hash_of(const Tensor& t) {
  const Tensor bytes = contiguous(t);
  const memory::Pin pin(bytes);
  const auto* at = static_cast<const unsigned char*>(pin.data());
  std::uint64_t hash = 14695981039346656037u;
  for (std::size_t i = 0; i < bytes.bytes(); ++i) hash = (hash ^ at[i]) * 1099511628211u;
  return hash;
}

}  // namespace

TEST_CASE("random: a tensor's numbers are the site's words") {
  const std::int64_t n = 4099;  // several chunks and an incomplete block
  const auto word = [](std::int64_t i) {
    const PhiloxBlock b = kernels::random_block(site, static_cast<std::uint32_t>(i / 4), 0);
    return b.word[i % 4];
  };
  const auto bits = [&](std::int64_t i) { return std::uint64_t{word(2 * i + 1)} << 32 | word(2 * i); };
  const auto uniform32 = to_host<float>(rand({n}, DType::f32, cpu, site));
  const auto uniform64 = to_host<double>(rand({n}, DType::f64, cpu, site));
  const auto coins = to_host<std::uint8_t>(bernoulli({n}, 0.25, DType::u8, cpu, site));
  const auto normal32 = to_host<float>(randn({n}, DType::f32, cpu, site));
  const auto normal64 = to_host<double>(randn({n}, DType::f64, cpu, site));
  double worst32 = 0, worst64 = 0;
  bool is_exact = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    is_exact = is_exact && uniform32[at] == std::ldexp(static_cast<float>(word(i) >> 8), -24);
    is_exact = is_exact && uniform64[at] == std::ldexp(static_cast<double>(bits(i) >> 11), -53);
    is_exact = is_exact && coins[at] == (word(i) < (1u << 30) ? 1 : 0);
    const std::int64_t pair = i / 2 * 2;
    const auto box_muller = [&](double u, double turns) {
      const double radius = std::sqrt(-2 * std::log(u));
      return radius * (i % 2 == 0 ? std::cos(turns * 2 * M_PI) : std::sin(turns * 2 * M_PI));
    };
    worst32 = thimble_test::worse(
        worst32, std::abs(normal32[at] - box_muller((word(pair) + 0.5) * 0x1p-32, word(pair + 1) * 0x1p-32)));
    worst64 = thimble_test::worse(
        worst64, std::abs(normal64[at] - box_muller(1 - static_cast<double>(bits(pair) >> 11) * 0x1p-53,
                                                    static_cast<double>(bits(pair + 1)) * 0x1p-64)));
  }
  CHECK(is_exact);
  CHECK(worst32 < 3e-6);
  CHECK(worst64 < 1e-14);
}

TEST_CASE("random: bits are frozen") {
  // Computed by an implementation of Philox in another language, written from the paper.
  CHECK(hash_of(rand({1000}, DType::f32, cpu, site)) == 16749917661330925145u);
  CHECK(hash_of(rand({1000}, DType::f64, cpu, site)) == 4195157518414681649u);
  CHECK(hash_of(uniform({1000}, -1, 3, DType::bf16, cpu, site)) == 16342874791496433642u);
  CHECK(hash_of(bernoulli({1000}, 0.3, DType::u8, cpu, site)) == 851944168759026356u);
  const auto normals = to_host<float>(randn({4}, DType::f32, cpu, site));
  const std::array<double, 4> expected{0.8895533971198483, 1.488837220556099, -0.5660209448482797, 0.4176318556861326};
  for (std::size_t i = 0; i < 4; ++i) CHECK(normals[i] == Approx(expected[i]).epsilon(1e-6));
}

TEST_CASE("random: the moments are those of the distributions") {
  const std::int64_t n = 400000;
  const double sigma = 1 / std::sqrt(static_cast<double>(n));  // of a mean of n numbers with variance 1
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Moments z = moments_of(to_host<double>(randn({n}, dtype, cpu, site)));
    CHECK(std::abs(z.mean) < 5 * sigma);
    CHECK(std::abs(z.variance - 1) < 5 * sigma * std::sqrt(2.0));
    CHECK(std::abs(z.skew) < 5 * sigma * std::sqrt(6.0));
    CHECK(std::abs(z.kurtosis - 3) < 5 * sigma * std::sqrt(24.0));

    const Moments u = moments_of(to_host<double>(uniform({n}, 2, 5, dtype, cpu, site)));
    CHECK(std::abs(u.mean - 3.5) < 5 * sigma * std::sqrt(0.75));
    CHECK(std::abs(u.variance - 0.75) < 5 * sigma * 0.75);
    CHECK(std::abs(u.kurtosis - 1.8) < 0.02);
  }
  const Moments coin = moments_of(to_host<double>(bernoulli({n}, 0.3, DType::f32, cpu, site)));
  CHECK(std::abs(coin.mean - 0.3) < 5 * sigma * std::sqrt(0.21));

  // Normal numbers beyond 2 and 3 deviations, and uniform ones in 64 cells (chi-squared, 63 degrees of freedom).
  const auto z = to_host<float>(randn({n}, DType::f32, cpu, site));
  for (const double cut : {1.0, 2.0, 3.0}) {
    const double p = std::erfc(cut / std::sqrt(2.0));
    const auto beyond =
        static_cast<double>(std::count_if(z.begin(), z.end(), [&](float v) { return std::abs(v) > cut; }));
    CHECK(std::abs(beyond / static_cast<double>(n) - p) < 5 * sigma * std::sqrt(p * (1 - p)));
  }
  std::array<double, 64> cells{};
  for (const float u : to_host<float>(rand({n}, DType::f32, cpu, site))) cells[static_cast<std::size_t>(u * 64)] += 1;
  double chi = 0;
  for (const double count : cells) chi += (count - n / 64.0) * (count - n / 64.0) / (n / 64.0);
  CHECK(chi > 25);
  CHECK(chi < 120);
  // Neighbours, and the two numbers of a pair, are uncorrelated.
  for (const std::size_t lag : {1u, 2u, 3u, 4u}) {
    double product = 0;
    for (std::size_t i = 0; i + lag < z.size(); ++i) product += static_cast<double>(z[i]) * z[i + lag];
    CHECK(std::abs(product / static_cast<double>(n)) < 5 * sigma);
  }
}

TEST_CASE("random: truncated normals") {
  for (const double p : {1e-300, 1e-20, 1e-5, 0.01, 0.0749, 0.2, 0.5, 0.8, 0.93, 0.999, 1 - 1e-12}) {
    const double z = kernels::normal_quantile(p);
    CHECK(0.5 * std::erfc(-z / std::sqrt(2.0)) == Approx(p).epsilon(1e-12));
  }
  CHECK(kernels::normal_quantile(0.975) == Approx(1.959963984540054).epsilon(1e-15));

  const std::int64_t n = 200000;
  struct Case {
    double mean, deviation, low, high;
  };
  for (const Case c :
       {Case{0, 1, -2, 2}, Case{1, 0.5, 0, 1.25}, Case{0, 1, 5, 7}, Case{0, 1, -7, -5}, Case{0, 0.02, -0.04, 0.04}}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Moments m =
          moments_of(to_host<double>(truncated_normal({n}, c.mean, c.deviation, c.low, c.high, dtype, cpu, site)));
      const auto values = to_host<double>(truncated_normal({n}, c.mean, c.deviation, c.low, c.high, dtype, cpu, site));
      CHECK(*std::min_element(values.begin(), values.end()) >= c.low - 1e-6);
      CHECK(*std::max_element(values.begin(), values.end()) <= c.high + 1e-6);
      const double a = (c.low - c.mean) / c.deviation, b = (c.high - c.mean) / c.deviation;
      const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); };
      // From the nearer tail, so that nothing cancels.
      const double mass = a > 0 ? 0.5 * (std::erfc(a / std::sqrt(2.0)) - std::erfc(b / std::sqrt(2.0)))
                                : 0.5 * (std::erfc(-b / std::sqrt(2.0)) - std::erfc(-a / std::sqrt(2.0)));
      const double shift = (density(a) - density(b)) / mass;
      const double variance = 1 + (a * density(a) - b * density(b)) / mass - shift * shift;
      const double sigma = std::sqrt(variance / static_cast<double>(n));
      CHECK(std::abs((m.mean - c.mean) / c.deviation - shift) < 5 * sigma);
      CHECK(m.variance / (c.deviation * c.deviation) == Approx(variance).epsilon(0.03));
    }
  }
}

TEST_CASE("random: neither threads nor instruction sets nor layouts change a number") {
  const auto draw = [](DType dtype) {
    return std::vector<std::uint64_t>{hash_of(rand({20000}, dtype, cpu, site)),
                                      hash_of(randn({20000}, dtype, cpu, site)),
                                      hash_of(truncated_normal({20000}, 0, 1, -1, 3, dtype, cpu, site)),
                                      hash_of(bernoulli({20000}, 0.7, dtype, cpu, site))};
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const auto expected = draw(dtype);
    const int before = thread_count();
    for (const int threads : {1, 2, 5}) {
      set_thread_count(threads);
      CHECK(draw(dtype) == expected);
    }
    set_thread_count(before);
    const kernel_test::Settings settings;
    for (const kernels::Isa isa : kernel_test::supported()) {
      kernels::set_isa(isa);
      CHECK(draw(dtype) == expected);
    }
  }
  const Tensor across = Tensor::empty({30, 50});
  fill_normal(view::transpose(across), 0, 1, site);
  CHECK(to_host<float>(view::transpose(across)) == to_host<float>(randn({50, 30}, DType::f32, cpu, site)));
  // A longer tensor begins with the shorter one's numbers.
  const auto longer = to_host<float>(randn({5000}, DType::f32, cpu, site));
  CHECK(to_host<float>(randn({1001}, DType::f32, cpu, site)) ==
        std::vector<float>(longer.begin(), longer.begin() + 1001));
}

TEST_CASE("random: sites, steps, seeds and paths give different numbers, the same ones the same") {
  const auto draw = [](const RandomSite& s) { return to_host<float>(rand({16}, DType::f32, cpu, s)); };
  const auto base = draw(site);
  CHECK(draw({43, 7, 0, site.site}) != base);
  CHECK(draw({42 + (std::uint64_t{1} << 40), 7, 0, site.site}) != base);
  CHECK(draw({42, 8, 0, site.site}) != base);
  CHECK(draw({42, 7, 0, site.site + 1}) != base);

  RandomGenerator generator(5);
  const GeneratorScope scope(generator);
  generator.start_pass();
  const auto first = to_host<float>(rand({16})), second = to_host<float>(rand({16}));
  CHECK(first != second);
  generator.start_pass();
  CHECK(to_host<float>(rand({16})) == first);
  {
    const PathScope path("layer");
    const auto third = to_host<float>(rand({16}));  // the first of this path
    CHECK(third != first);
    CHECK(third != second);
  }
  CHECK(to_host<float>(rand({16})) == second);
  generator.set_step(1);
  generator.start_pass();
  CHECK(to_host<float>(rand({16})) != first);
}

TEST_CASE("random: noise of before a step, between steps and of the step are three") {
  RandomGenerator generator(5);
  const GeneratorScope scope(generator);
  const auto draw = [] { return to_host<float>(randn({16})); };
  std::vector<std::vector<float>> all{draw(), draw()};
  std::vector<float> first_step;
  {
    tape::Transaction step;
    all.push_back(draw());
    first_step = all.back();
  }  // the step fails
  all.push_back(draw());
  {
    tape::Transaction step;
    CHECK(draw() == first_step);  // a retry
    all.push_back(draw());
    step.commit();
  }
  const auto after = draw();
  all.push_back(after);
  {
    tape::Transaction step;
    all.push_back(draw());
  }
  {
    tape::Transaction step;
    {
      const PassScope passes(generator);  // as in accumulate_gradients(): the count goes on after it
      generator.start_pass();
      draw();
    }
    const auto second = draw();
    generator.start_pass();
    CHECK(draw() != second);
    CHECK(draw() == second);
  }
  CHECK(!generator.is_in_pass());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) CHECK(all[i] != all[k]);
  }
  // A run that resumes after the step continues like this one.
  RandomGenerator resumed(5);
  const GeneratorScope other(resumed);
  resumed.set_step(1);
  CHECK(draw() == after);
  CHECK(draw() != after);
}

TEST_CASE("random: initial values have the numbers they always had, whatever is drawn beside them") {
  const auto initial = [] { return to_host<float>(nn::init::normal({16}, 1, DType::f32, cpu)); };
  RandomGenerator generator(5);
  const GeneratorScope scope(generator);
  randn({16});
  const auto first = initial(), second = initial();
  CHECK(first != second);
  generator.start_pass();
  CHECK(to_host<float>(randn({16})) == first);  // as in a pass at step 0
  CHECK(initial() == second);
  generator.end_pass();
  CHECK(initial() != second);
  generator.start_pass(5);
  generator.set_step(0);  // a new model: all counts begin again, and the pass is over
  CHECK(!generator.is_in_pass());
  CHECK(initial() == first);
  CHECK(generator.next_site(0).first_sample == 0);
  generator.set_step(3);
  const auto later = initial();
  generator.start_pass();
  CHECK(to_host<float>(randn({16})) != later);
}

TEST_CASE("random: micro-batches draw together what the whole batch would have drawn") {
  RandomGenerator generator(9);
  const GeneratorScope scope(generator);
  const std::int64_t samples = 700;
  const int before = thread_count();
  for (const std::int64_t width : {1, 3, 4, 7}) {
    const auto check = [&]<class T>(T, Tensor (*draw)(const Shape&, DType)) {
      CAPTURE(width, sizeof(T));
      generator.start_pass();
      const std::vector<T> whole = to_host<T>(draw({samples, width}, dtype_of<T>));
      for (const int threads : {1, 3}) {
        set_thread_count(threads);
        std::vector<T> parts;
        for (const auto& [first, end] : {std::pair{0, 1}, {1, 6}, {6, 351}, {351, 700}}) {
          generator.start_pass(first);
          const std::vector<T> part = to_host<T>(draw({end - first, width}, dtype_of<T>));
          parts.insert(parts.end(), part.begin(), part.end());
        }
        CHECK(parts == whole);
      }
      set_thread_count(before);
    };
    const auto all = [&]<class T>(T type) {
      check(type, [](const Shape& s, DType d) { return rand(s, d); });
      check(type, [](const Shape& s, DType d) { return uniform(s, -2, 3, d); });
      check(type, [](const Shape& s, DType d) { return randn(s, d); });
      check(type, [](const Shape& s, DType d) { return normal(s, 1, 2, d); });
      check(type, [](const Shape& s, DType d) { return truncated_normal(s, 0, 1, -1, 2, d); });
      check(type, [](const Shape& s, DType d) { return bernoulli(s, 0.3, d); });
      check(type, [](const Shape& s, DType d) {
        const Tensor t = Tensor::empty({s[1], s[0]}, d);  // its samples are not dense
        fill_normal(view::transpose(t), 0, 1);
        return contiguous(view::transpose(t));
      });
    };
    all(1.0f);
    all(1.0);
  }
  // Without samples every part draws the same number.
  generator.start_pass();
  const double one = item(randn({}));
  generator.start_pass(5);
  CHECK(item(randn({})) == one);
}

TEST_CASE("random: what is refused") {
  CHECK_THROWS_AS(rand({4}, DType::i64), DTypeError);
  CHECK_THROWS_AS(randn({4}, DType::u8), DTypeError);
  CHECK_THROWS_AS(uniform({4}, 2, 1), ValueError);
  CHECK(item(uniform({1}, 2, 2)) == 2);
  CHECK_THROWS_AS(uniform({4}, 0, INFINITY), ValueError);
  CHECK_THROWS_AS(normal({4}, 0, -1), ValueError);
  CHECK_THROWS_AS(normal({4}, NAN, 1), ValueError);
  CHECK_THROWS_AS(truncated_normal({4}, 0, 0, -1, 1), ValueError);
  CHECK_THROWS_AS(truncated_normal({4}, 0, 1, 1, 1), ValueError);
  CHECK_THROWS_AS(truncated_normal({4}, 0, 1, 60, 70), ValueError);
  CHECK_THROWS_AS(bernoulli({4}, 1.5), ValueError);
  CHECK_THROWS_AS(bernoulli({4}, NAN), ValueError);
  CHECK_THROWS_AS(rand({4}, DType::f32, cpu, RandomSite{0, std::uint64_t{1} << 32, 0, 0}), ValueError);
  CHECK_THROWS_AS(rand({4}, DType::f32, cpu, RandomSite{0, 0, -1, 0}), ValueError);
  CHECK_THROWS_AS(rand({1, 4}, DType::f32, cpu, RandomSite{0, 0, std::int64_t{1} << 59, 0}), ValueError);
  CHECK_NOTHROW(rand({1, 4}, DType::f32, cpu, RandomSite{0, 0, std::int64_t{1} << 58, 0}));
  CHECK(to_host<float>(bernoulli({3}, 1)) == std::vector<float>{1, 1, 1});
  CHECK(to_host<float>(bernoulli({3}, 0)) == std::vector<float>{0, 0, 0});
  CHECK(to_host<float>(normal({3}, 2, 0)) == std::vector<float>{2, 2, 2});
  CHECK(rand({0, 3}).shape() == Shape{0, 3});
  CHECK(randn({4}, DType::f32, dry(cpu)).device() == dry(cpu));
}

// ---- The generator against its published answers, and its distributions.

namespace {

PhiloxBlock draw(std::uint32_t index, std::uint32_t stream) { return philox4x32({{index, 0, 0, 0}}, {{stream, 0}}); }

/// Normal numbers in double from the angle and radius that normal_pair documents.
struct ReferencePair {
  double first, second;
};
ReferencePair reference_normal(std::uint32_t radius_word, std::uint32_t angle_word) {
  const double u = (static_cast<float>(radius_word) + 0.5f) * 0x1p-32f;
  const double radius = std::sqrt(-2 * std::log(u));
  const double angle = angle_word / 4294967296.0 * 2 * std::acos(-1.0);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

std::vector<double> normal_sample(std::uint32_t blocks) {
  std::vector<double> values;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const PhiloxBlock block = draw(i, 42);
    for (int half = 0; half < 4; half += 2) {
      const NormalPair pair = normal_pair(block.word[half], block.word[half + 1]);
      values.push_back(pair.first);
      values.push_back(pair.second);
    }
  }
  return values;
}

}  // namespace

TEST_CASE("philox: known answers of Philox4x32-10", "[philox]") {
  struct Row {
    PhiloxCounter counter;
    PhiloxKey key;
    std::uint32_t answer[4];
  };
  const Row rows[] = {
      {{{0, 0, 0, 0}}, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       {{0xffffffff, 0xffffffff}},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {{0xa4093822, 0x299f31d0}},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Row& row : rows) {
    const PhiloxBlock block = philox4x32(row.counter, row.key);
    for (int i = 0; i < 4; ++i) CHECK(block.word[i] == row.answer[i]);
  }
  static_assert(philox4x32({{0, 0, 0, 0}}, {{0, 0}}).word[0] == 0x6627e8d5);
}

TEST_CASE("philox: every bit of counter and key matters", "[philox]") {
  const PhiloxBlock base = philox4x32({{1, 2, 3, 4}}, {{5, 6}});
  for (int bit = 0; bit < 192; ++bit) {
    PhiloxCounter counter{{1, 2, 3, 4}};
    PhiloxKey key{{5, 6}};
    (bit < 128 ? counter.word[bit / 32] : key.word[bit / 32 - 4]) ^= 1u << (bit % 32);
    const PhiloxBlock block = philox4x32(counter, key);
    int changed = 0;
    for (int i = 0; i < 4; ++i) changed += __builtin_popcount(block.word[i] ^ base.word[i]);
    CHECK(changed > 32);  // 64 expected, standard deviation 5.7
    CHECK(changed < 96);
  }
}

TEST_CASE("philox: uniform numbers", "[philox]") {
  CHECK(uniform_float(0) == 0.0f);
  CHECK(uniform_float(0xFFu) == 0.0f);
  CHECK(uniform_float(0x100u) == 0x1p-24f);
  CHECK(uniform_float(0xFFFFFFFFu) == 1.0f - 0x1p-24f);
  CHECK(uniform_double(0, 0) == 0.0);
  CHECK(uniform_double(0x800u, 0) == 0x1p-53);
  CHECK(uniform_double(0xFFFFFFFFu, 0xFFFFFFFFu) == 1.0 - 0x1p-53);
  CHECK(uniform_double(0, 0x80000000u) == 0.5);

  int cells[64] = {};
  constexpr int blocks = 16'000;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const PhiloxBlock block = draw(i, 7);
    for (const std::uint32_t word : block.word) ++cells[static_cast<int>(uniform_float(word) * 64)];
  }
  double chi_square = 0;
  constexpr double expected = 4.0 * blocks / 64;
  for (const int count : cells) chi_square += (count - expected) * (count - expected) / expected;
  CHECK(chi_square > 30);  // 63 degrees of freedom: the 0.01 % quantiles are 28.6 and 114
  CHECK(chi_square < 110);
}

TEST_CASE("philox: normal numbers follow the formula", "[philox]") {
  double largest_error = 0;
  for (std::uint32_t i = 0; i < 50'000; ++i) {
    const PhiloxBlock block = draw(i, 3);
    const NormalPair pair = normal_pair(block.word[0], block.word[1]);
    const ReferencePair reference = reference_normal(block.word[0], block.word[1]);
    largest_error =
        std::max({largest_error, std::fabs(pair.first - reference.first), std::fabs(pair.second - reference.second)});
  }
  CHECK(largest_error < 1e-6);

  struct Row {
    std::uint32_t angle_word;
    float cosine, sine;  // in units of the radius
  };
  const float half = std::sqrt(0.5f);
  const Row rows[] = {{0, 1, 0},
                      {0x20000000u, half, half},
                      {0x40000000u, 0, 1},
                      {0x60000000u, -half, half},
                      {0x80000000u, -1, 0},
                      {0xA0000000u, -half, -half},
                      {0xC0000000u, 0, -1},
                      {0xE0000000u, half, -half}};
  const float radius = normal_pair(0, 0).first;
  CHECK(radius == Approx(std::sqrt(-2 * std::log(0x1p-33))).epsilon(1e-6));
  for (const Row& row : rows) {
    const NormalPair pair = normal_pair(0, row.angle_word);
    CHECK(std::fabs(pair.first - radius * row.cosine) < 2e-6f);
    CHECK(std::fabs(pair.second - radius * row.sine) < 2e-6f);
  }
  CHECK(normal_pair(0xFFFFFFFFu, 0).first == 0.0f);
}

TEST_CASE("philox: normal numbers have the moments and the shape", "[philox]") {
  std::vector<double> values = normal_sample(50'000);
  const double n = static_cast<double>(values.size());
  double moments[5] = {};
  for (const double value : values) {
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(value, k) / n;
  }
  CHECK(std::fabs(moments[1]) < 4 / std::sqrt(n));
  CHECK(std::fabs(moments[2] - 1) < 4 * std::sqrt(2 / n));
  CHECK(std::fabs(moments[3]) < 4 * std::sqrt(15 / n));
  CHECK(std::fabs(moments[4] - 3) < 4 * std::sqrt(96 / n));

  std::sort(values.begin(), values.end());
  double distance = 0;  // Kolmogorov-Smirnov
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double cumulative = 0.5 * std::erfc(-values[i] / std::sqrt(2.0));
    distance = std::max(distance, std::fabs(cumulative - (static_cast<double>(i) + 0.5) / n));
  }
  CHECK(distance < 1.95 / std::sqrt(n));  // the 0.1 % level
}
