// The operators of sequence parallelism against plain loops, several ranks against one, bit for bit, and norms and
// dropout over sharded tokens against the whole sequence.

#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/sharding/loss.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/dist/sharding/sequence.h>
#include <thimble/nn/parallel/tokens.h>

#include "dist/by_rank.h"
#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;

namespace {

constexpr std::int64_t samples = 3, tokens = 8, width = 5;

Tensor drawn(std::uint64_t seed, const Shape& shape, DType dtype = DType::f32) {
  RandomGenerator generator(seed);
  const GeneratorScope scope(generator);
  return randn(shape, dtype);
}

/// (B, T, C) -> (parts B, T / parts, C), element by element.
template <class T>
std::vector<T> in_parts(const std::vector<T>& x, std::int64_t parts, std::int64_t columns = width) {
  std::vector<T> cut;
  const std::int64_t each = tokens / parts;
  for (std::int64_t p = 0; p < parts; ++p) {
    for (std::int64_t b = 0; b < samples; ++b) {
      const auto begin = x.begin() + (b * tokens + p * each) * columns;
      cut.insert(cut.end(), begin, begin + each * columns);
    }
  }
  return cut;
}

}  // namespace

TEST_CASE("sequence: tokens of one rank's parts lie part after part", "[sequence]") {
  const int parts = GENERATE(2, 4, 8);
  const dist::ShardGroup group{parts, nullptr, true};
  const Tensor x = drawn(1, {samples, tokens, width}), y = drawn(2, {samples, tokens, width});
  const std::vector<float> expected = in_parts(to_host<float>(add(x, y)), parts);
  std::vector<Tensor> terms{x, y};
  for (int p = 2; p < parts; ++p) terms.push_back(zeros(x.shape()));
  const Tensor cut = dist::sum_shards(group, terms);
  CHECK(cut.shape() == Shape{parts * samples, tokens / parts, width});
  CHECK(to_host<float>(cut) == expected);
  CHECK(to_host<float>(apply(dist::AllGather{group}, cut)) == to_host<float>(add(x, y)));
}

TEST_CASE("sequence: gradients of all parts on one rank", "[sequence]") {
  const dist::ShardGroup group{2, nullptr, true};
  const auto function = [&](std::span<const Tensor> in) {
    const auto terms =
        dist::for_each_shard(group, in[0], [&](std::size_t p, const Tensor& x) { return mul(x, in[p + 1]); });
    return dist::sum_shards(group, terms);
  };
  const std::vector<Tensor> inputs{drawn(1, {6, 4, 2}, DType::f64), drawn(2, {3, 8, 2}, DType::f64),
                                   drawn(3, {3, 8, 2}, DType::f64)};
  const GradcheckResult result = gradcheck(function, inputs);
  INFO(result.report);
  CHECK(result.passed);
}

TEST_CASE("sequence: a group of ranks has the values and gradients of one rank", "[sequence]") {
  const int parts = GENERATE(2, 4);
  const std::int64_t b = GENERATE(1, 3);
  const Tensor x = drawn(1, {parts * b, tokens / parts, width});  // shard after shard
  const auto weight = [&](int p) { return mul(drawn(10 + static_cast<std::uint64_t>(p), {b, tokens, width}), 1e3); };
  struct Result {
    std::vector<float> y, dx;
  };
  const auto run = [&](const dist::ShardGroup& group) {
    Tensor own = contiguous(view::slice(x, 0, group.first() * b, (group.first() + group.count()) * b));
    own.require_grad();
    Tape tape;
    Tensor sum;
    {
      const Recording on(tape);
      const auto terms = dist::for_each_shard(group, own, [&](std::size_t p, const Tensor& in) {
        return mul(in, weight(group.first() + static_cast<int>(p)));
      });
      sum = dist::sum_shards(group, terms);
    }
    tape.backward(sum, mul(sum.detach(), 1e-6));
    return Result{to_host<float>(sum), to_host<float>(own.grad())};
  };
  const Result one = run({parts, nullptr, true});
  struct OfRank {
    Result own;
    std::uint64_t sent = 0;
    memory::Category of_whole = memory::Category::communication;
  };
  const auto all = testing::by_rank(parts, [&](dist::Communicator& ranks) {
    const dist::ShardGroup group{parts, &ranks, true};
    Result own = run(group);
    const std::uint64_t sent = ranks.volume().bytes_sent;
    const Tensor whole = apply(dist::AllGather{group}, view::slice(x, 0, group.first() * b, (group.first() + 1) * b));
    return OfRank{std::move(own), sent, whole.storage()->category()};
  });
  std::vector<float> y, dx;
  for (const auto& [own, sent, of_whole] : all) {
    CHECK(of_whole == memory::Category::temporary);
    y.insert(y.end(), own.y.begin(), own.y.end());
    dx.insert(dx.end(), own.dx.begin(), own.dx.end());
    // Two of each operator, each sends a rank's tokens to every other rank.
    CHECK(sent == 4 * static_cast<std::uint64_t>(parts - 1) * 4 * own.y.size());
  }
  CHECK((y == one.y));
  CHECK((dx == one.dx));
}

TEST_CASE("sequence: gradients of a norm's parameters are those of parts, from the last one on", "[sequence][cuda]") {
  const int parts = GENERATE(1, 2, 4);
  const bool is_centred = GENERATE(false, true);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const bool is_on_gpu = GENERATE(false, true);
  if (is_on_gpu && !testing::has_cuda()) return;
  const memory::Device device = is_on_gpu ? cuda() : cpu;
  struct Result {
    std::vector<double> y, dx, dweight, dbias;
  };
  const auto host = [](const Tensor& t) { return to_host<double>(to_dtype(to_device(t, cpu), DType::f64)); };
  const Tensor all = to_dtype(drawn(1, {parts * samples, tokens, width}), dtype);
  const Tensor all_dy = to_dtype(drawn(2, all.shape()), dtype);
  const auto run = [&](std::int64_t begin, std::int64_t end, std::int64_t groups) {
    const auto rows = [&](const Tensor& t) { return to_device(contiguous(view::slice(t, 0, begin, end)), device); };
    const auto parameter = [&](std::uint64_t seed) {
      return to_device(to_dtype(drawn(seed, {width}), dtype), device).require_grad();
    };
    Tensor x = rows(all), weight = parameter(3), bias = parameter(4);
    x.require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = is_centred ? apply(ops::LayerNorm{1, 1e-5, groups}, x, weight, bias)
                     : apply(ops::RmsNorm{1, 1e-5, groups}, x, weight);
    }
    tape.backward(y, rows(all_dy));
    return Result{host(y), host(x.grad()), host(weight.grad()), is_centred ? host(bias.grad()) : std::vector<double>()};
  };
  const Result together = run(0, parts * samples, parts);
  const Result plain = run(0, parts * samples, 1);
  CHECK(together.y == plain.y);
  CHECK(together.dx == plain.dx);
  Tensor dweight, dbias;
  for (int p = parts; p-- > 0;) {
    const Result part = run(p * samples, (p + 1) * samples, 1);
    const auto add_term = [&](Tensor& sum, const std::vector<double>& term) {
      if (term.empty()) return;
      const Tensor t = to_dtype(from_host(term, {width}), dtype);
      sum = sum.defined() ? add(sum, t) : t;
    };
    add_term(dweight, part.dweight);
    add_term(dbias, part.dbias);
  }
  CHECK(together.dweight == host(dweight));
  if (is_centred) CHECK(together.dbias == host(dbias));
}

TEST_CASE("sequence: tokens in parts draw what they draw in the whole sequence", "[sequence][cuda]") {
  const int parts = GENERATE(2, 4);
  const bool is_textbook = GENERATE(false, true);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const bool is_on_gpu = GENERATE(false, true);
  if (is_on_gpu && !testing::has_cuda()) return;
  constexpr std::int64_t columns = 4;
  const RandomSite site{7, 2, 100, 1234};
  const auto drop = [&](const Tensor& x, const ops::SampleParts& of) {
    const Tensor there = is_on_gpu ? to_device(x, cuda()) : x;
    const Tensor y =
        is_textbook ? apply(ops::DropoutTextbook{0.4, site, of}, there) : apply(ops::Dropout{0.4, site, of}, there);
    return to_host<float>(to_dtype(to_device(y, cpu), DType::f32));
  };
  const Tensor ones = full({samples, tokens, columns}, 1, dtype, cpu);
  const std::vector<float> expected = in_parts(drop(ones, {}), parts, columns);
  const Tensor cut = full({parts * samples, tokens / parts, columns}, 1, dtype, cpu);
  CHECK(drop(cut, {parts, 0}) == expected);
  const auto n = static_cast<std::ptrdiff_t>(expected.size()) / parts;
  for (int p = 0; p < parts; ++p) {
    const Tensor own = full({samples, tokens / parts, columns}, 1, dtype, cpu);
    CHECK(drop(own, {1, p}) == std::vector<float>(expected.begin() + p * n, expected.begin() + (p + 1) * n));
  }
}

TEST_CASE("sequence: what does not divide is refused", "[sequence]") {
  const dist::ShardGroup group{3, nullptr, true};
  const Tensor x = zeros({3, 8, 2});
  CHECK_THROWS_WITH(dist::sum_shards(group, std::vector{x, x, x}), Catch::Contains("(B, T, C) whose T they divide"));
  CHECK_THROWS_WITH(apply(dist::AllGather{group}, zeros({4, 8, 2})), Catch::Contains("of P 3 shards"));
  CHECK_THROWS_WITH(apply(ops::LayerNorm{1, 1e-5, 5}, x, zeros({2}), zeros({2})),
                    Catch::Contains("5 groups of 24 rows; expected a divisor"));
  CHECK_THROWS_WITH(apply(ops::Dropout{0.5, {}, {2, 0}}, x), Catch::Contains("groups that divide the first axis"));
  CHECK_THROWS_WITH(apply(ops::Dropout{0.5, {}, {1, 1}}, zeros({3, 1, 2})), Catch::Contains("parts that 4 divides"));
}

// ---- The operators of context parallelism by heads against plain loops, several ranks against one, bit for bit, and
// sharded tokens against the whole sequence.

namespace {

constexpr std::int64_t heads_width = 8;

dist::ShardGroup group_of(int parts, dist::Communicator* ranks = nullptr) { return {parts, ranks, true, true}; }

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

/// Attention of sharded tokens: to heads, attend(p, ...), and back.
template <class Attend>
Tensor attended(const dist::ShardGroup& group, std::span<const Tensor> in, std::int64_t projections,
                const Attend& attend) {
  std::vector<Tensor> of_heads;
  for (const Tensor& x : in) of_heads.push_back(nn::to_heads(group, x, projections));
  return nn::attend_by_heads(group, of_heads, attend);
}

}  // namespace

TEST_CASE("heads: tokens become heads as a loop says, and come back", "[heads]") {
  const int parts = GENERATE(2, 4);
  const std::int64_t b = GENERATE(1, 3), projections = GENERATE(1, 3);
  const Tensor whole = drawn(1, {b, tokens, projections * heads_width}, DType::f64);
  const Tensor x = tokens_in_parts(whole, parts);
  const Tensor y = apply(dist::ExchangeHeads{group_of(parts), projections, true}, x);
  REQUIRE(y.shape() == Shape{parts * b, tokens, projections * heads_width / parts});
  const std::vector<double> from = to_host<double>(whole), to = to_host<double>(y);
  const std::int64_t own = heads_width / parts;
  std::size_t at = 0;
  for (std::int64_t p = 0; p < parts; ++p) {
    for (std::int64_t n = 0; n < b * tokens; ++n) {
      for (std::int64_t s = 0; s < projections; ++s) {
        for (std::int64_t k = 0; k < own; ++k) {
          REQUIRE(to[at++] == from[static_cast<std::size_t>((n * projections + s) * heads_width + p * own + k)]);
        }
      }
    }
  }
  CHECK(to_host<double>(apply(dist::ExchangeHeads{group_of(parts), projections, false}, y)) == to_host<double>(x));
}

TEST_CASE("heads: attention of parts is that of the whole", "[heads]") {
  const int parts = GENERATE(1, 2, 4);
  constexpr std::int64_t b = 2, heads = 4;
  const Tensor whole = drawn(1, {b, tokens, 3 * heads_width}, DType::f64);
  const Tensor cut = tokens_in_parts(whole, parts);
  AttentionOptions options;
  options.causal = true;
  const auto attend = [&](std::size_t, std::span<const Tensor> qkv) {
    return attention(qkv[0], heads / parts, options);
  };
  const Tensor y = attended(group_of(parts), {&cut, 1}, 3, attend);
  CHECK(to_host<double>(y) == to_host<double>(tokens_in_parts(attention(whole, heads, options), parts)));
}

TEST_CASE("heads: gradients against differences", "[heads]") {
  const dist::ShardGroup group = group_of(2);
  const auto both = [&](std::span<const Tensor> in) {
    return attended(group, in, 1, [&](std::size_t p, std::span<const Tensor> x) {
      return mul(x[0], p == 0 ? x[1] : mul(x[1], x[1]));
    });
  };
  const GradcheckResult result =
      gradcheck(both, std::vector{drawn(1, {4, 4, 4}, DType::f64), drawn(2, {4, 4, 4}, DType::f64)});
  INFO(result.report);
  CHECK(result.passed);
  const Tensor targets = from_host(std::vector<std::int64_t>{0, 2, -100, 1, 2, 2, 0, -100}, {2, 4});
  const auto loss = [&](std::span<const Tensor> in) { return apply(dist::TokenShardsLoss{group}, in[0], targets); };
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
    return apply(dist::TokenShardsLoss{group_of(parts)}, x, to_device(targets, device));
  });
  CHECK(cut.first == Approx(whole.first).epsilon(1e-6));
  const Tensor expected = tokens_in_parts(view::reshape(whole.second, {b, tokens, classes}), parts);
  CHECK(to_host<double>(to_dtype(cut.second, DType::f64)) == to_host<double>(to_dtype(expected, DType::f64)));
}

TEST_CASE("heads: a group of ranks has the values and gradients of one rank", "[heads]") {
  const int parts = GENERATE(2, 4);
  const std::int64_t b = GENERATE(1, 3);
  constexpr std::int64_t classes = 3;
  const Tensor x = drawn(1, {parts * b, tokens / parts, heads_width});
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < b * tokens; ++i) numbers.push_back(i % 4 == 1 ? -100 : i % classes);
  const Tensor targets = from_host(numbers, {b, tokens});
  struct Result {
    std::vector<float> loss, dx, dweight, dhead, dbias;
  };
  const auto run = [&](const dist::ShardGroup& group) {
    Tensor own = contiguous(view::slice(x, 0, group.first() * b, (group.first() + group.count()) * b));
    Tensor w = drawn(2, {heads_width}), h = drawn(3, {classes, heads_width}), c = drawn(4, {classes});
    for (Tensor* t : {&own, &w, &h, &c}) t->require_grad();
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      const Tensor y = attended(group, {&own, 1}, 1, [&](std::size_t, std::span<const Tensor> of_part) {
        return mul(of_part[0], of_part[0]);
      });
      const Tensor logits = nn::linear_tokens(group, nn::add_to_tokens(group, y, w), h, c, {});
      loss = apply(dist::TokenShardsLoss{group}, reshape(logits, {-1, classes}), targets);
    }
    tape.backward(loss);
    return Result{to_host<float>(loss), to_host<float>(own.grad()), to_host<float>(w.grad()), to_host<float>(h.grad()),
                  to_host<float>(c.grad())};
  };
  const Result one = run(group_of(parts));
  std::vector<float> dx;
  for (const Result& own : testing::by_rank(parts, [&](auto& ranks) { return run(group_of(parts, &ranks)); })) {
    CHECK(own.loss == one.loss);
    CHECK(own.dweight == one.dweight);
    CHECK(own.dhead == one.dhead);
    CHECK(own.dbias == one.dbias);
    dx.insert(dx.end(), own.dx.begin(), own.dx.end());
  }
  CHECK((dx == one.dx));
}

TEST_CASE("heads: what does not divide is refused", "[heads]") {
  const dist::ShardGroup group = group_of(3);
  CHECK_THROWS_WITH(apply(dist::ExchangeHeads{group, 1, true}, zeros({3, 2, 8})),
                    Catch::Contains("whose C they divide"));
  CHECK_THROWS_WITH(apply(dist::ExchangeHeads{group, 1, false}, zeros({3, 8, 3})),
                    Catch::Contains("whose T they divide"));
  CHECK_THROWS_WITH(apply(dist::TokenShardsLoss{group}, zeros({3, 3}), zeros({1, 4}, DType::i64)),
                    Catch::Contains("in 3 shards of (B, T)"));
  CHECK_THROWS_AS(apply(dist::TokenShardsLoss{group}, zeros({6, 3}), zeros({2, 3}, DType::f32)), DTypeError);
}
