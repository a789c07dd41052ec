// Sampling against brute force over all tokens, and its errors.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/numbers/philox.h>
#include <thimble/nn/generate/sampling.h>

#include "support/catch.h"
#include "support/refusal.h"

using namespace thimble;
using nn::SamplingOptions;
using refusal_test::refusal;

namespace sampling_test {

/// The definition, token by token: top_k and top_p keep a token depending on how many are more likely.
std::vector<double> oracle(const std::vector<float>& logits, const SamplingOptions& o) {
  const std::size_t n = logits.size();
  const double most = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  const auto before = [&](std::size_t i, std::size_t j) {
    return logits[i] > logits[j] || (logits[i] == logits[j] && i < j);
  };
  const auto weight = [&](std::size_t i) { return std::exp((static_cast<double>(logits[i]) - most) / o.temperature); };
  std::vector<double> p(n);
  const auto rank = [&](std::size_t i) {
    std::int64_t r = 0;
    for (std::size_t j = 0; j < n; ++j) r += before(j, i);
    return r;
  };
  if (o.temperature == 0) {
    for (std::size_t i = 0; i < n; ++i) p[i] = rank(i) == 0;
    return p;
  }
  for (std::size_t i = 0; i < n; ++i) p[i] = o.top_k > 0 && rank(i) >= o.top_k ? 0 : weight(i);
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  std::vector<double> q = p;
  for (std::size_t i = 0; i < n && o.top_p < 1; ++i) {
    double likelier = 0;
    for (std::size_t j = 0; j < n; ++j) likelier += before(j, i) ? p[j] : 0;
    if (likelier >= o.top_p * all) q[i] = 0;
  }
  const double left = std::accumulate(q.begin(), q.end(), 0.0);
  for (double& x : q) x /= left;
  return q;
}

std::vector<float> some_logits(std::size_t count, std::uint32_t seed) {
  std::vector<float> list;
  for (std::size_t i = 0; i < count; ++i) {
    const PhiloxBlock bits = philox4x32({{static_cast<std::uint32_t>(i), 0, 0, 0}}, {{seed, 0}});
    list.push_back(static_cast<float>(std::floor(uniform_double(bits.word[0], bits.word[1]) * 24) / 4 - 3));  // ties
  }
  return list;
}

}  // namespace sampling_test

using namespace sampling_test;

TEST_CASE("sampling: probabilities are those of the definition", "[nn][sampling]") {
  for (const std::size_t count : {1U, 2U, 17U, 100U}) {
    const std::vector<float> logits = some_logits(count, static_cast<std::uint32_t>(count));
    for (const double temperature : {0.0, 0.3, 1.0, 4.0}) {
      for (const std::int64_t top_k : {0, 1, 3, 50, 1000}) {
        for (const double top_p : {1e-9, 0.3, 0.9, 1.0}) {
          INFO(count << " tokens, temperature " << temperature << ", top_k " << top_k << ", top_p " << top_p);
          const SamplingOptions options{temperature, top_k, top_p};
          if (temperature == 0 && (top_k > 0 || top_p < 1)) {
            CHECK_THROWS_AS(options.check(), ValueError);
            continue;
          }
          std::vector<double> probabilities(count);
          for (const nn::TokenChance& c : nn::token_chances(logits, options)) {
            probabilities[static_cast<std::size_t>(c.token)] += c.probability;
          }
          const std::vector<double> expected = oracle(logits, options);
          for (std::size_t i = 0; i < count; ++i) {
            INFO("token " << i);
            CHECK(std::abs(probabilities[i] - expected[i]) <= 1e-12);
            CHECK((probabilities[i] > 0) == (expected[i] > 0));
          }
        }
      }
    }
  }
}

TEST_CASE("sampling: a draw is where the running sum passes the number", "[nn][sampling]") {
  const std::vector<float> logits = some_logits(40, 3);
  for (const SamplingOptions& options : {SamplingOptions{1, 0, 1}, {0.7, 5, 1}, {1.5, 0, 0.8}, {1, 9, 0.5}}) {
    const std::vector<nn::TokenChance> list = nn::token_chances(logits, options);
    constexpr int draws = 20000;
    std::vector<double> counts(logits.size());
    for (int i = 0; i < draws; ++i) {
      counts[static_cast<std::size_t>(nn::draw_token(logits, options, (i + 0.5) / draws))] += 1;
    }
    for (const nn::TokenChance& c : list) {
      CHECK(std::abs(counts[static_cast<std::size_t>(c.token)] - draws * c.probability) <= 1.001);
    }
    CHECK(nn::draw_token(logits, options, 0) == list.front().token);
    CHECK(nn::draw_token(logits, options, std::nextafter(1.0, 0.0)) == list.back().token);
  }
  CHECK(nn::token_chances(logits, {1, 0, 1}).front().token == 0);  // no cut-off: tokens keep their order
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  CHECK(nn::draw_token(std::vector<float>{0, lowest}, {1, 0, 1}, std::nextafter(1.0, 0.0)) == 0);
  CHECK(nn::draw_token(std::vector<float>{lowest, 0}, {1, 0, 1}, 0) == 1);
  CHECK(nn::draw_token(std::vector<float>{2, 2, 1}, {0, 0, 1}, 0.9) == 0);  // ties go to the smaller token
}

TEST_CASE("sampling: numbers are Philox's of seed, token and sequence", "[nn][sampling]") {
  const PhiloxBlock bits = philox4x32({{5, 2, 0, 0x67656e65}}, {{0x9abcdef0, 0x12345678}});
  CHECK(nn::token_uniform(0x123456789abcdef0, 5, 2) == uniform_double(bits.word[0], bits.word[1]));
  CHECK(nn::token_uniform(1, 0, 0) != nn::token_uniform(1, 0, 1));
  CHECK(nn::token_uniform(1, 0, 0) != nn::token_uniform(1, 1, 0));
  CHECK(nn::token_uniform(1, 0, 0) != nn::token_uniform(2, 0, 0));
}

TEST_CASE("sampling: errors name the option and its value", "[nn][sampling]") {
  const std::vector<float> logits{0, 1};
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, nan, inf}) CHECK_THROWS_AS(nn::draw_token(logits, {bad, 0, 1}, 0), ValueError);
  for (const double bad : {0.0, -0.5, 1.5, nan}) CHECK_THROWS_AS(nn::draw_token(logits, {1, 0, bad}, 0), ValueError);
  CHECK(refusal<ValueError>([&] {
          nn::draw_token(logits, {1, -3, 1}, 0);
        }) == "sampling: `top_k` -3; expected at least 0");
  CHECK(refusal<ValueError>([&] {
          nn::draw_token(logits, {1, 0, 2}, 0);
        }) == "sampling: `top_p` 2; expected a number above 0 and at most 1");
  CHECK(nn::token_chances(std::vector<float>{0, 0}, {1, 0, 0.5}).size() == 1);  // the first token has exactly 0.5
  CHECK_THROWS_AS(nn::draw_token({}, {}, 0), ValueError);
  constexpr auto nanf = std::numeric_limits<float>::quiet_NaN(), inff = std::numeric_limits<float>::infinity();
  CHECK(refusal<ValueError>([&] {
          nn::draw_token(std::vector<float>{0, nanf}, {}, 0);
        }).find("of token 1") != std::string::npos);
  CHECK_THROWS_AS(nn::draw_token(std::vector<float>{inff, 0}, {}, 0), ValueError);
  CHECK_THROWS_AS(nn::draw_token(std::vector<float>{-inff, -inff}, {}, 0), ValueError);
}
