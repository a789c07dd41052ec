// Cross entropy over shards of the classes against the plain definition, and several ranks against one, bit for bit.

#include <thimble/dist/sharding/loss.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>

#include "dist/by_rank.h"
#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;

namespace {

constexpr std::int64_t rows = 9, classes = 37;

std::vector<double> scores_of(std::int64_t row_count, double scale) {
  RandomGenerator generator(7);
  const GeneratorScope scope(generator);
  return to_host<double>(mul(randn({row_count, classes}, DType::f64), scale));
}

// Every fourth row is ignored; every shard has targets.
std::vector<std::int64_t> targets_of(std::int64_t row_count) {
  std::vector<std::int64_t> list;
  for (std::int64_t r = 0; r < row_count; ++r) list.push_back(r % 4 == 3 ? -100 : (r * 11 + 36) % classes);
  return list;
}

struct Result {
  double loss;
  std::vector<double> gradient;  // (rows, classes of the local shards)
};

Result run(const dist::ShardGroup& group, const std::vector<double>& scores, const std::vector<std::int64_t>& targets,
           DType dtype, bool is_textbook, memory::Device device = cpu) {
  const auto n = static_cast<std::int64_t>(targets.size());
  const Tensor all = from_host(scores, {n, classes});
  const std::int64_t begin = group.begin(classes), end = group.begin(classes, group.count());
  Tensor leaf = to_device(to_dtype(contiguous(view::slice(all, 1, begin, end)), dtype), device);
  leaf.require_grad();
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = apply(dist::ClassShardsLoss{group, classes, is_textbook}, mul(leaf, 1.0), from_host(targets, {n}, device));
  }
  tape.backward(loss);
  const auto host = [](const Tensor& t) { return to_host<double>(to_dtype(to_device(t, cpu), DType::f64)); };
  return {host(loss)[0], host(leaf.grad())};
}

Result expected_of(const std::vector<double>& scores, const std::vector<std::int64_t>& targets) {
  Result result{0, std::vector<double>(scores.size(), 0)};
  double count = 0;
  for (const std::int64_t t : targets) count += t >= 0 ? 1 : 0;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    const double* const x = scores.data() + r * classes;
    double sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(x[c]);
    result.loss += (std::log(sum) - x[targets[r]]) / count;
    for (std::int64_t c = 0; c < classes; ++c) {
      result.gradient[r * classes + static_cast<std::size_t>(c)] =
          (std::exp(x[c]) / sum - (c == targets[r] ? 1 : 0)) / count;
    }
  }
  return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("sharded loss: loss and gradient are those of the definition", "[sharded_loss][cuda]") {
  const int shards = GENERATE(1, 2, 3, 5, 37);
  const bool is_textbook = GENERATE(false, true);
  const DType dtype = GENERATE(DType::f64, DType::f32, DType::bf16);
  const bool is_on_gpu = GENERATE(false, true);
  const memory::Device device = is_on_gpu ? cuda() : cpu;
  if (is_on_gpu && !testing::has_cuda()) return;
  INFO(shards << " shards, " << to_string(dtype) << (is_textbook ? ", textbook, " : ", ") << to_string(device));
  std::vector<double> scores = scores_of(rows, 3);
  scores = to_host<double>(to_dtype(to_dtype(from_host(scores, {rows, classes}), dtype), DType::f64));
  const Result own = run({.shards = shards}, scores, targets_of(rows), dtype, is_textbook, device);
  const Result expected = expected_of(scores, targets_of(rows));
  const double near = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-6 : 4e-3;
  // A log-probability kept in 16 bits is rounded, and so is its exponential.
  const double near_gradient = dtype == DType::bf16 && is_textbook ? 1e-2 : near;
  CHECK(std::abs(own.loss - expected.loss) < (dtype == DType::bf16 ? 1e-5 : 10 * near));
  CHECK(largest_difference(own.gradient, expected.gradient) < near_gradient);
}

TEST_CASE("sharded loss: a group of ranks has the bits of one rank", "[sharded_loss]") {
  const int shards = GENERATE(2, 3, 4);
  const bool is_textbook = GENERATE(false, true);
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f64);
  const std::vector<double> scores = scores_of(rows, 5);
  const Result one = run({.shards = shards}, scores, targets_of(rows), dtype, is_textbook);
  struct OfRank {
    Result own;
    std::uint64_t sent = 0;
  };
  const auto all = testing::by_rank(shards, [&](dist::Communicator& ranks) {
    Result own = run({shards, &ranks}, scores, targets_of(rows), dtype, is_textbook);
    return OfRank{std::move(own), ranks.volume().bytes_sent};
  });
  for (int r = 0; r < shards; ++r) {
    const auto& [own, sent] = all[static_cast<std::size_t>(r)];
    CHECK(own.loss == one.loss);
    const dist::ShardGroup group{.shards = shards};
    const auto begin = static_cast<std::size_t>(group.begin(classes, r)),
               n = static_cast<std::size_t>(group.size(classes, r));
    REQUIRE(own.gradient.size() == rows * n);
    for (std::size_t i = 0; i < own.gradient.size(); ++i) {
      REQUIRE(own.gradient[i] == one.gradient[i / n * classes + begin + i % n]);
    }
    // Three f64 per row, to each of the other ranks.
    CHECK(sent == static_cast<std::uint64_t>(shards - 1) * 3 * 8 * rows);
  }
}

TEST_CASE("sharded loss: scores far apart, and none at all in a shard", "[sharded_loss][cuda]") {
  const bool is_on_gpu = GENERATE(false, true);
  const memory::Device device = is_on_gpu ? cuda() : cpu;
  if (is_on_gpu && !testing::has_cuda()) return;
  constexpr double none = -std::numeric_limits<double>::infinity();
  std::vector<double> scores(2 * classes, 0);
  for (std::size_t c = 0; c < classes; ++c) scores[c] = c < 20 ? none : 1;  // two of three shards have finite scores
  scores[classes + 3] = 3000, scores[classes + 30] = -3000;
  const Result own = run({.shards = 3}, scores, {25, 30}, DType::f32, false, device);
  CHECK(own.loss == Approx((std::log(17.0) + 6000) / 2));
  CHECK(own.gradient[3] == 0);
  CHECK(own.gradient[25] == Approx((1 / 17.0 - 1) / 2));
  CHECK(own.gradient[classes + 3] == 0.5);
  CHECK(own.gradient[classes + 30] == -0.5);
  CHECK(std::isnan(run({.shards = 3}, scores, {-100, -100}, DType::f32, false, device).loss));
  scores[2] = std::numeric_limits<double>::quiet_NaN();  // next to nothing but -infinity
  CHECK(std::isnan(run({.shards = 3}, scores, {25, 30}, DType::f32, false, device).loss));
}

TEST_CASE("sharded loss: operands that do not fit are refused", "[sharded_loss]") {
  const auto loss_of = [](const Tensor& logits, const Tensor& targets) {
    return apply(dist::ClassShardsLoss{{.shards = 2}, classes}, logits, targets);
  };
  const Tensor logits = zeros({2, classes}), targets = zeros({2}, DType::i64);
  CHECK(to_host<float>(loss_of(logits, targets))[0] == Approx(std::log(37.0)));
  CHECK_THROWS_WITH(loss_of(zeros({2, 36}), targets), Catch::Contains("(N, 37), the classes of this rank's shards"));
  CHECK_THROWS_AS(loss_of(logits, zeros({3}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(loss_of(zeros({2, classes}, DType::i32), targets), DTypeError);
  CHECK_THROWS_AS(loss_of(logits, zeros({2})), DTypeError);
  CHECK_THROWS_WITH(loss_of(logits, from_host<std::int64_t>({0, 37}, {2})),
                    Catch::Contains("target 37 at row 1 is neither a class in [0, 37)"));
}
