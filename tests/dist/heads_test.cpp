// The operators of context parallelism by heads against plain loops, a team of ranks against one rank, bit for bit, and
// what they make of tokens in parts against the whole sequence.

#include <thimble/dist/parts/heads.h>

#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/parts/token_parts.h>
#include <thimble/nn/parallel/tokens.h>

#include "dist/by_rank.h"
#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;

namespace {

constexpr std::int64_t tokens = 8, width = 8;

Tensor drawn(std::uint64_t seed, const Shape& shape, DType dtype = DType::f32) {
  RandomGenerator generator(seed);
  const GeneratorScope scope(generator);
  return randn(shape, dtype);
}

dist::Team team_of(int parts, dist::Communicator* ranks = nullptr) { return {parts, ranks, true, true}; }

/// (B, T, C) -> (parts B, T / parts, C), element by element.
Tensor tokens_in_parts(const Tensor& whole, std::int64_t parts) {
  const std::vector<double> x = to_host<double>(to_dtype(whole, DType::f64));
  const std::int64_t b = whole.size(0), t = whole.size(1), c = whole.elements() / (b * t), each = t / parts;
  std::vector<double> cut;
  for (std::int64_t p = 0; p < parts; ++p) {
    for (std::int64_t n = 0; n < b; ++n) {
      for (std::int64_t i = p * each; i < (p + 1) * each; ++i) {
        for (std::int64_t k = 0; k < c; ++k) cut.push_back(x[static_cast<std::size_t>((n * t + i) * c + k)]);
      }
    }
  }
  const Shape shape = whole.rank() == 3 ? Shape{parts * b, each, c} : Shape{parts * b, each};
  return to_dtype(from_host(cut, shape), whole.dtype());
}

/// Attention of tokens in shards: to heads, attend(p, ...), and back.
template <class Attend>
Tensor attended(const dist::Team& team, std::span<const Tensor> in, std::int64_t stretches, const Attend& attend) {
  std::vector<Tensor> of_heads;
  for (const Tensor& x : in) of_heads.push_back(nn::to_heads(team, x, stretches));
  return nn::attend_by_heads(team, of_heads, attend);
}

}  // namespace

TEST_CASE("heads: tokens become heads as a loop says, and come back", "[heads]") {
  const int parts = GENERATE(2, 4);
  const std::int64_t b = GENERATE(1, 3), stretches = GENERATE(1, 3);
  const Tensor whole = drawn(1, {b, tokens, stretches * width}, DType::f64);
  const Tensor x = tokens_in_parts(whole, parts);
  const Tensor y = apply(dist::ExchangeHeads{team_of(parts), stretches, true}, x);
  REQUIRE(y.shape() == Shape{parts * b, tokens, stretches * width / parts});
  const std::vector<double> from = to_host<double>(whole), to = to_host<double>(y);
  const std::int64_t own = width / parts;
  std::size_t at = 0;
  for (std::int64_t p = 0; p < parts; ++p) {
    for (std::int64_t n = 0; n < b * tokens; ++n) {
      for (std::int64_t s = 0; s < stretches; ++s) {
        for (std::int64_t k = 0; k < own; ++k) {
          REQUIRE(to[at++] == from[static_cast<std::size_t>((n * stretches + s) * width + p * own + k)]);
        }
      }
    }
  }
  CHECK(to_host<double>(apply(dist::ExchangeHeads{team_of(parts), stretches, false}, y)) == to_host<double>(x));
}

TEST_CASE("heads: attention of parts is that of the whole", "[heads]") {
  const int parts = GENERATE(1, 2, 4);
  constexpr std::int64_t b = 2, heads = 4;
  const Tensor whole = drawn(1, {b, tokens, 3 * width}, DType::f64);
  const Tensor cut = tokens_in_parts(whole, parts);
  AttentionOptions options;
  options.causal = true;
  const auto attend = [&](std::size_t, std::span<const Tensor> qkv) {
    return attention(qkv[0], heads / parts, options);
  };
  const Tensor y = attended(team_of(parts), {&cut, 1}, 3, attend);
  CHECK(to_host<double>(y) == to_host<double>(tokens_in_parts(attention(whole, heads, options), parts)));
}

TEST_CASE("heads: gradients against differences", "[heads]") {
  const dist::Team team = team_of(2);
  const auto both = [&](std::span<const Tensor> in) {
    return attended(team, in, 1, [&](std::size_t p, std::span<const Tensor> x) {
      return mul(x[0], p == 0 ? x[1] : mul(x[1], x[1]));
    });
  };
  const GradcheckResult result =
      gradcheck(both, std::vector{drawn(1, {4, 4, 4}, DType::f64), drawn(2, {4, 4, 4}, DType::f64)});
  INFO(result.report);
  CHECK(result.passed);
  const Tensor targets = from_host(std::vector<std::int64_t>{0, 2, -100, 1, 2, 2, 0, -100}, {2, 4});
  const auto loss = [&](std::span<const Tensor> in) { return apply(dist::TokenPartsLoss{team}, in[0], targets); };
  const GradcheckResult of_loss = gradcheck(loss, std::vector{drawn(3, {8, 3}, DType::f64)});
  INFO(of_loss.report);
  CHECK(of_loss.passed);
}

TEST_CASE("heads: the loss of tokens in parts is that of all tokens", "[heads][cuda]") {
  const int parts = GENERATE(1, 2, 4);
  const DType dtype = GENERATE(DType::f64, DType::f32, DType::bf16);
  const memory::Device device = GENERATE(false, true) && testing::has_cuda() ? cuda() : cpu;
  constexpr std::int64_t b = 3, classes = 7;
  const Tensor logits = to_dtype(drawn(1, {b, tokens, classes}), dtype);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < b * tokens; ++i) numbers.push_back(i % 5 == 3 ? -100 : i * i % classes);
  const Tensor targets = from_host(numbers, {b, tokens});
  const auto run = [&](const Tensor& x, const auto& loss_of) {
    Tensor leaf = to_device(view::reshape(x, {b * tokens, classes}), device);
    leaf.require_grad();
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = loss_of(leaf);
    }
    tape.backward(loss);
    return std::pair{to_host<double>(to_dtype(to_device(loss, cpu), DType::f64))[0], to_device(leaf.grad(), cpu)};
  };
  const auto whole = run(logits, [&](const Tensor& x) {
    return cross_entropy(x, to_device(view::reshape(targets, {b * tokens}), device));
  });
  const auto cut = run(tokens_in_parts(logits, parts), [&](const Tensor& x) {
    return apply(dist::TokenPartsLoss{team_of(parts)}, x, to_device(targets, device));
  });
  CHECK(cut.first == Approx(whole.first).epsilon(1e-6));
  const Tensor expected = tokens_in_parts(view::reshape(whole.second, {b, tokens, classes}), parts);
  CHECK(to_host<double>(to_dtype(cut.second, DType::f64)) == to_host<double>(to_dtype(expected, DType::f64)));
}

TEST_CASE("heads: a team of ranks has the values and gradients of one rank", "[heads]") {
  const int parts = GENERATE(2, 4);
  const std::int64_t b = GENERATE(1, 3);
  constexpr std::int64_t classes = 3;
  const Tensor x = drawn(1, {parts * b, tokens / parts, width});
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < b * tokens; ++i) numbers.push_back(i % 4 == 1 ? -100 : i % classes);
  const Tensor targets = from_host(numbers, {b, tokens});
  struct Result {
    std::vector<float> loss, dx, dweight, dhead, dbias;
  };
  const auto run = [&](const dist::Team& team) {
    Tensor own = contiguous(view::slice(x, 0, team.first() * b, (team.first() + team.count()) * b));
    Tensor w = drawn(2, {width}), h = drawn(3, {classes, width}), c = drawn(4, {classes});
    for (Tensor* t : {&own, &w, &h, &c}) t->require_grad();
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      const Tensor y = attended(team, {&own, 1}, 1, [&](std::size_t, std::span<const Tensor> of_part) {
        return mul(of_part[0], of_part[0]);
      });
      const Tensor logits = nn::linear_tokens(team, nn::add_to_tokens(team, y, w), h, c, {});
      loss = apply(dist::TokenPartsLoss{team}, reshape(logits, {-1, classes}), targets);
    }
    tape.backward(loss);
    return Result{to_host<float>(loss), to_host<float>(own.grad()), to_host<float>(w.grad()), to_host<float>(h.grad()),
                  to_host<float>(c.grad())};
  };
  const Result one = run(team_of(parts));
  std::vector<float> dx;
  for (const Result& own : testing::by_rank(parts, [&](auto& ranks) { return run(team_of(parts, &ranks)); })) {
    CHECK(own.loss == one.loss);
    CHECK(own.dweight == one.dweight);
    CHECK(own.dhead == one.dhead);
    CHECK(own.dbias == one.dbias);
    dx.insert(dx.end(), own.dx.begin(), own.dx.end());
  }
  CHECK((dx == one.dx));
}

TEST_CASE("heads: what does not divide is refused", "[heads]") {
  const dist::Team team = team_of(3);
  CHECK_THROWS_WITH(apply(dist::ExchangeHeads{team, 1, true}, zeros({3, 2, 8})),
                    Catch::Contains("whose C they divide"));
  CHECK_THROWS_WITH(apply(dist::ExchangeHeads{team, 1, false}, zeros({3, 8, 3})),
                    Catch::Contains("whose T they divide"));
  CHECK_THROWS_WITH(apply(dist::TokenPartsLoss{team}, zeros({3, 3}), zeros({1, 4}, DType::i64)),
                    Catch::Contains("in 3 parts of (B, T)"));
  CHECK_THROWS_AS(apply(dist::TokenPartsLoss{team}, zeros({6, 3}), zeros({2, 3}, DType::f32)), DTypeError);
}
