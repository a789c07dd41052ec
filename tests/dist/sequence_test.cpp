// The operators of sequence parallelism against plain loops, a team of ranks against one rank, bit for bit, and what
// norms and dropout make of tokens in parts against the whole sequence.

#include <thimble/dist/parts/sequence.h>

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
#include <thimble/dist/parts/parts.h>

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
  const dist::Team team{parts, nullptr, true};
  const Tensor x = drawn(1, {samples, tokens, width}), y = drawn(2, {samples, tokens, width});
  const std::vector<float> expected = in_parts(to_host<float>(add(x, y)), parts);
  std::vector<Tensor> terms{x, y};
  for (int p = 2; p < parts; ++p) terms.push_back(zeros(x.shape()));
  const Tensor cut = dist::sum_shards(team, terms);
  CHECK(cut.shape() == Shape{parts * samples, tokens / parts, width});
  CHECK(to_host<float>(cut) == expected);
  CHECK(to_host<float>(apply(dist::AllGather{team}, cut)) == to_host<float>(add(x, y)));
}

TEST_CASE("sequence: gradients of all parts on one rank", "[sequence]") {
  const dist::Team team{2, nullptr, true};
  const auto function = [&](std::span<const Tensor> in) {
    const auto terms = dist::of_parts(team, in[0], [&](std::size_t p, const Tensor& x) { return mul(x, in[p + 1]); });
    return dist::sum_shards(team, terms);
  };
  const std::vector<Tensor> inputs{drawn(1, {6, 4, 2}, DType::f64), drawn(2, {3, 8, 2}, DType::f64),
                                   drawn(3, {3, 8, 2}, DType::f64)};
  const GradcheckResult result = gradcheck(function, inputs);
  INFO(result.report);
  CHECK(result.passed);
}

TEST_CASE("sequence: a team of ranks has the values and gradients of one rank", "[sequence]") {
  const int parts = GENERATE(2, 4);
  const std::int64_t b = GENERATE(1, 3);
  const Tensor x = drawn(1, {parts * b, tokens / parts, width});  // part after part
  const auto weight = [&](int p) { return mul(drawn(10 + static_cast<std::uint64_t>(p), {b, tokens, width}), 1e3); };
  struct Result {
    std::vector<float> y, dx;
  };
  const auto run = [&](const dist::Team& team) {
    Tensor own = contiguous(view::slice(x, 0, team.first() * b, (team.first() + team.count()) * b));
    own.require_grad();
    Tape tape;
    Tensor sum;
    {
      const Recording on(tape);
      const auto terms = dist::of_parts(team, own, [&](std::size_t p, const Tensor& in) {
        return mul(in, weight(team.first() + static_cast<int>(p)));
      });
      sum = dist::sum_shards(team, terms);
    }
    tape.backward(sum, mul(sum.detach(), 1e-6));
    return Result{to_host<float>(sum), to_host<float>(own.grad())};
  };
  const Result one = run({parts, nullptr, true});
  struct OfRank {
    Result own;
    std::uint64_t sent = 0;
  };
  const auto all = testing::by_rank(parts, [&](dist::Communicator& ranks) {
    Result own = run({parts, &ranks, true});
    return OfRank{std::move(own), ranks.volume().bytes_sent};
  });
  std::vector<float> y, dx;
  for (const auto& [own, sent] : all) {
    y.insert(y.end(), own.y.begin(), own.y.end());
    dx.insert(dx.end(), own.dx.begin(), own.dx.end());
    // Two of each operator: a rank's tokens to each of the others.
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
  const dist::Team team{3, nullptr, true};
  const Tensor x = zeros({3, 8, 2});
  CHECK_THROWS_WITH(dist::sum_shards(team, std::vector{x, x, x}), Catch::Contains("(B, T, C) whose T they divide"));
  CHECK_THROWS_WITH(apply(dist::AllGather{team}, zeros({4, 8, 2})), Catch::Contains("of P 3 parts"));
  CHECK_THROWS_WITH(apply(ops::LayerNorm{1, 1e-5, 5}, x, zeros({2}), zeros({2})),
                    Catch::Contains("5 groups of 24 rows; expected a divisor"));
  CHECK_THROWS_WITH(apply(ops::Dropout{0.5, {}, {2, 0}}, x), Catch::Contains("groups that divide the first axis"));
  CHECK_THROWS_WITH(apply(ops::Dropout{0.5, {}, {1, 1}}, zeros({3, 1, 2})), Catch::Contains("parts that 4 divides"));
}
