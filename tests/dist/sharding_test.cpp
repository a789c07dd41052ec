// The operators of tensor parallelism against plain loops, and initial values of shards against the whole.

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/dist/fold.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/dist/shards.h>
#include <thimble/nn/layers/init.h>

#include "dist/by_rank.h"
#include "support/catch.h"

using namespace thimble;

namespace {

/// The numbers of rank r; their sum depends on the order.
std::vector<float> numbers_of(int rank, std::int64_t n) {
  RandomGenerator generator(static_cast<std::uint64_t>(rank) + 11);
  const GeneratorScope scope(generator);
  const Tensor t = mul(randn({n}), rank % 2 == 0 ? 1e4 : 1.0);
  return to_host<float>(t);
}

}  // namespace

TEST_CASE("sharding: a fold adds in the order of ranks, or from the last one on", "[sharding]") {
  const std::int64_t n = GENERATE(1, 2, 7, 1000);
  const int ranks = GENERATE(1, 2, 3, 5);
  const bool last_first = GENERATE(false, true);
  std::vector<float> expected(static_cast<std::size_t>(n), 0);
  for (int k = 0; k < ranks; ++k) {
    const std::vector<float> of = numbers_of(last_first ? ranks - 1 - k : k, n);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = k == 0 ? of[i] : expected[i] + of[i];
  }
  struct Found {
    std::vector<float> mine, sum;
    std::uint64_t sent = 0;
  };
  const auto all = testing::by_rank(ranks, [&](dist::Communicator& group) {
    const Tensor mine = from_host(numbers_of(group.rank(), n), {n});
    const Tensor sum = dist::fold(group, mine, last_first);
    return Found{to_host<float>(mine), to_host<float>(sum), group.volume().bytes_sent};
  });
  for (int r = 0; r < ranks; ++r) {
    const Found& found = all[static_cast<std::size_t>(r)];
    CHECK((found.sum == expected));
    CHECK((found.mine == numbers_of(r, n)));                       // still held, so not overwritten
    const std::int64_t own = n * (r + 1) / ranks - n * r / ranks;  // a rank's shard
    CHECK(static_cast<std::int64_t>(found.sent) == 4 * ((n - own) + (ranks - 1) * own));
  }
}

TEST_CASE("sharding: sums in another order have other bits", "[sharding]") {  // or the test above would show nothing
  std::vector<float> up(1000, 0), down(1000, 0);
  for (int k = 0; k < 5; ++k) {
    const std::vector<float> a = numbers_of(k, 1000), b = numbers_of(4 - k, 1000);
    for (std::size_t i = 0; i < up.size(); ++i) up[i] += a[i], down[i] += b[i];
  }
  CHECK((up != down));
}

TEST_CASE("sharding: gradients of all shards on one rank", "[sharding]") {
  const dist::ShardGroup group{.shards = 3};
  const auto function = [&](std::span<const Tensor> in) {
    std::vector<Tensor> terms;
    for (int p = 0; p < 3; ++p)
      terms.push_back(mul(dist::copy_to_group(group, in[0]), in[static_cast<std::size_t>(p) + 1]));
    return dist::sum_shards(group, terms);
  };
  RandomGenerator generator(3);
  const GeneratorScope scope(generator);
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i) inputs.push_back(randn({2, 3}, DType::f64));
  const GradcheckResult result = gradcheck(function, inputs);
  INFO(result.report);
  CHECK(result.passed);
}

TEST_CASE("sharding: a group of ranks has the values and gradients of one rank", "[sharding]") {
  constexpr int shards = 4;
  constexpr std::int64_t n = 301;
  const auto input = [&] { return from_host(numbers_of(9, n), {n}).require_grad(); };
  const auto weight = [&](int p) { return from_host(numbers_of(p, n), {n}); };
  struct Result {
    std::vector<float> y, dx;
  };
  const auto run = [&](const dist::ShardGroup& group) {
    const Tensor x = input();
    Tape tape;
    const Recording on(tape);
    std::vector<Tensor> terms;
    for (int p = group.first(); p < group.first() + group.count(); ++p) {
      terms.push_back(mul(dist::copy_to_group(group, x), weight(p)));
    }
    const Tensor sum = dist::sum_shards(group, terms);
    tape.backward(mean(square(sum)));
    return Result{to_host<float>(sum), to_host<float>(x.grad())};
  };
  const Result one = run({.shards = shards});
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {  // by hand
    float y = 0, dx = 0;
    for (int p = 0; p < shards; ++p) {
      const float term = numbers_of(9, n)[i] * numbers_of(p, n)[i];
      y = p == 0 ? term : y + term;
    }
    const float dy = 2 * y / static_cast<float>(n);
    for (int p = shards - 1; p >= 0; --p) {
      const float term = dy * numbers_of(p, n)[i];
      dx = p == shards - 1 ? term : dx + term;
    }
    REQUIRE(one.y[i] == y);
    REQUIRE(one.dx[i] == Approx(dx).epsilon(1e-5));
  }
  for (const Result& own : testing::by_rank(shards, [&](auto& ranks) { return run({shards, &ranks}); })) {
    CHECK((own.y == one.y));
    CHECK((own.dx == one.dx));
  }
}

TEST_CASE("sharding: terms that are not alike, or not as many as shards, are refused", "[sharding]") {
  const dist::ShardGroup group{.shards = 2};
  const Tensor a = zeros({2, 3}), b = zeros({3, 2}), c = zeros({2, 3}, DType::f64);
  CHECK_THROWS_AS(dist::sum_shards(group, std::vector{a, b}), ShapeError);
  CHECK_THROWS_AS(dist::sum_shards(group, std::vector{a, c}), DTypeError);
  CHECK_THROWS_WITH(dist::sum_shards(group, std::vector{a}),
                    "sum_shards: 1 terms of 2 shards; expected one each, at most 32");
  CHECK(dist::sum_shards({.shards = 32}, std::vector<Tensor>(32, a)).shape() == a.shape());
  CHECK_THROWS_WITH(dist::sum_shards({.shards = 33}, std::vector<Tensor>(33, a)),
                    "sum_shards: 33 terms of 33 shards; expected one each, at most 32");
}

TEST_CASE("sharding: one number for each parameter, with those of other ranks", "[sharding]") {
  const std::vector<int> layers{-1, 0, 0, 1, -1, -1, 2};
  const auto number = [&](int rank, std::size_t i) {  // unsharded numbers are equal on all ranks
    return layers[i] < 0 ? static_cast<double>(i) : static_cast<double>(i) + 10.0 * (rank + 1);
  };
  const std::vector<double> expected{0, 11, 12, 21, 22, 31, 32, 13, 23, 33, 4, 5, 16, 26, 36};
  const auto all = testing::by_rank(3, [&](dist::Communicator& ranks) {
    std::vector<double> own;
    for (std::size_t i = 0; i < layers.size(); ++i) own.push_back(number(ranks.rank(), i));
    return to_host<double>(dist::gather_square_sums(ranks, from_host(own, {7}), layers));
  });
  for (const std::vector<double>& numbers : all) CHECK((numbers == expected));
}

TEST_CASE("sharding: initial values of shards are those of the whole", "[sharding]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f64);
  const bool is_normal = GENERATE(false, true);
  const int axis = GENERATE(0, 1);
  const std::int64_t projections = GENERATE(1, 3);
  const Shape whole{12, 24};
  const RandomSite site{7, 0, 0, 1234};
  const Tensor all = Tensor::empty(whole, dtype);
  if (is_normal) {
    fill_normal(all, 0, 0.3, site);
  } else {
    fill_uniform(all, -0.3, 0.3, site);
  }
  const std::vector<double> values = to_host<double>(to_dtype(all, DType::f64));
  for (std::int64_t p = 0; p < 2; ++p) {
    const nn::init::ShardOf shard{whole, axis, 2, p, projections};
    const Tensor own = is_normal ? nn::init::normal_shard(shard, 0.3, dtype, cpu, site)
                                 : nn::init::uniform_shard(shard, 0.3, dtype, cpu, site);
    Shape expected = whole;
    expected[axis] /= 2;
    REQUIRE(own.shape() == expected);
    const std::vector<double> of_part = to_host<double>(to_dtype(own, DType::f64));
    const std::int64_t projection = whole[axis] / projections;  // of the whole; each shard has half of it
    for (std::int64_t r = 0; r < expected[0]; ++r) {
      for (std::int64_t c = 0; c < expected[1]; ++c) {
        std::int64_t at[2] = {r, c};
        const std::int64_t k = at[axis];
        at[axis] = k / (projection / 2) * projection + p * (projection / 2) + k % (projection / 2);
        REQUIRE(of_part[static_cast<std::size_t>(r * expected[1] + c)] ==
                values[static_cast<std::size_t>(at[0] * whole[1] + at[1])]);
      }
    }
  }
}

TEST_CASE("sharding: sizes that they do not divide differ by one", "[sharding]") {
  const dist::ShardGroup group{.shards = 4};
  const std::vector<std::int64_t> begins{group.begin(65, 0), group.begin(65, 1), group.begin(65, 2), group.begin(65, 3),
                                         group.begin(65, 4)};
  CHECK(begins == std::vector<std::int64_t>{0, 16, 32, 48, 65});
  CHECK(group.own(65) == 65);
  const Shape whole{13, 6};
  const RandomSite site{7, 0, 0, 99};
  const Tensor all = Tensor::empty(whole, DType::f32);
  fill_normal(all, 0, 0.3, site);
  std::vector<float> together;
  for (std::int64_t p = 0; p < 5; ++p) {
    const nn::init::ShardOf shard{whole, 0, 5, p};
    CHECK((shard.shape()[0] == 2 || shard.shape()[0] == 3));
    const std::vector<float> own = to_host<float>(nn::init::normal_shard(shard, 0.3, DType::f32, cpu, site));
    together.insert(together.end(), own.begin(), own.end());
  }
  CHECK((together == to_host<float>(all)));
}

// y = x W on two ranks, sharded by outputs, next to a widespread form that also splits x's samples, adds up results
// that belong side by side, and divides by the number of ranks (docs/distributed.md).
TEST_CASE("sharding: a layer that is cut by outputs, right and wrong", "[sharding]") {
  const Tensor x = from_host<float>({1, 2, 5, 6}, {2, 2}), w = from_host<float>({1, 2, 3, 4}, {2, 2});
  const std::vector<float> expected{7, 10, 23, 34};
  CHECK(to_host<float>(matmul(x, w)) == expected);
  struct Found {
    std::vector<float> right, wrong;
  };
  const auto all = testing::by_rank(2, [&](dist::Communicator& ranks) {
    const dist::ShardGroup group{2, &ranks};
    const int r = ranks.rank();
    const Tensor right = matmul(dist::copy_to_group(group, x), slice(w, 1, r, r + 1));  // (2, 1): this rank's outputs
    const Tensor of_sample = matmul(slice(x, 0, r, r + 1), slice(w, 1, r, r + 1));  // (1, 1): an output of one sample
    const Tensor wrong = mul(dist::fold(ranks, of_sample), 1.0 / ranks.size());
    return Found{to_host<float>(right), to_host<float>(wrong)};
  });
  for (std::size_t r = 0; r < all.size(); ++r) {
    CHECK(all[r].right == std::vector<float>{expected[r], expected[r + 2]});
    CHECK(all[r].wrong == std::vector<float>{20.5});
  }
}

// ---- Buckets and shards: every element is in one place, bounds are at allowed places, shards are as equal as
// possible.

namespace {

std::vector<optim::Named> parameters_of(const std::vector<std::int64_t>& sizes, const std::vector<DType>& dtypes) {
  std::vector<optim::Named> list;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    list.push_back(
        {"p" + std::to_string(i), zeros({sizes[i]}, dtypes[i % dtypes.size()], memory::Device{.is_dry = true})});
  }
  return list;
}

}  // namespace

TEST_CASE("shards: every element of every parameter is one rank's", "[dist]") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 12);
    for (std::int64_t& n : sizes) n = random() % 4 == 0 ? 1 + random() % 9 : 1 + random() % 60'000;
    const auto list = parameters_of(
        sizes, round % 2 == 0 ? std::vector<DType>{DType::f32} : std::vector<DType>{DType::bf16, DType::f32});
    const int ranks = 1 + static_cast<int>(random() % 8);
    const dist::BucketOptions options{.bytes = std::size_t{1} << (10 + random() % 10),
                                      .keeps_parameters = round % 5 == 0};
    const std::vector<dist::Bucket> buckets = dist::make_buckets(list, ranks, options);
    std::vector<std::vector<int>> owner(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) owner[i].assign(static_cast<std::size_t>(sizes[i]), -1);
    for (const dist::Bucket& b : buckets) {
      CHECK(std::is_sorted(b.bounds.begin(), b.bounds.end()));
      CHECK((b.bounds.front() == 0 && b.bounds.back() == b.elements));
      const std::size_t bytes = static_cast<std::size_t>(b.elements) * size_of(b.dtype);
      CHECK((bytes <= options.bytes || b.parameters.size() == 1));
      for (int r = 0; r < ranks; ++r) {
        std::int64_t at = b.bounds[static_cast<std::size_t>(r)];
        for (const dist::Piece& piece : b.pieces[static_cast<std::size_t>(r)]) {
          CHECK(piece.at == at);
          at += piece.end - piece.begin;
          const std::int64_t n = sizes[piece.parameter];
          CHECK((piece.begin % dist::shard_grain == 0 && (piece.end % dist::shard_grain == 0 || piece.end == n)));
          if (options.keeps_parameters) CHECK((piece.begin == 0 && piece.end == n));
          for (std::int64_t e = piece.begin; e < piece.end; ++e) {
            int& now = owner[piece.parameter][static_cast<std::size_t>(e)];
            if (now != -1) FAIL("ranks " << now << " and " << r << " have an element");
            now = r;
          }
        }
        CHECK(at == b.bounds[static_cast<std::size_t>(r) + 1]);
        if (!options.keeps_parameters) CHECK(b.shard_elements(r) <= b.elements / ranks + 1 + dist::shard_grain);
      }
    }
    for (const std::vector<int>& one : owner) CHECK(std::find(one.begin(), one.end(), -1) == one.end());
  }
}

TEST_CASE("shards: buckets are filled from the last parameter on", "[dist]") {
  const auto list = parameters_of({10'000, 20'000, 30'000, 5}, {DType::f32});
  const std::vector<dist::Bucket> buckets = dist::make_buckets(list, 2, {.bytes = 4 * 50'005});  // three fill it
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].parameters == std::vector<std::size_t>{3, 2, 1});
  CHECK(buckets[0].offsets == std::vector<std::int64_t>{0, 5, 30'005});
  CHECK(buckets[0].bounds == std::vector<std::int64_t>{0, 5 + 6 * dist::shard_grain, 50'005});
  CHECK(buckets[1].parameters == std::vector<std::size_t>{0});
  CHECK(dist::make_buckets(list, 2, {.bytes = 0}).size() == 4);
  // Parameters of two chunks never share a bucket.
  const std::vector<dist::Bucket> of_chunks = dist::make_buckets(list, 2, {.bytes = 1 << 20, .chunks = {0, 1, 0, 1}});
  REQUIRE(of_chunks.size() == 2);
  CHECK((of_chunks[0].chunk == 1 && of_chunks[0].parameters == std::vector<std::size_t>{3, 1}));
  CHECK((of_chunks[1].chunk == 0 && of_chunks[1].parameters == std::vector<std::size_t>{2, 0}));
  CHECK_THROWS_AS(dist::make_buckets(list, 0), ValueError);
}

TEST_CASE("shards: a parameter by itself is shared out whole, and small ones are taken in turns", "[dist]") {
  for (const std::int64_t elements :
       {std::int64_t{1}, dist::shard_grain, std::int64_t{100'003}, std::int64_t{1} << 40}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (std::size_t number = 0; number < 9; ++number) {
        std::vector<dist::Range> shards;
        for (int r = 0; r < ranks; ++r) shards.push_back(dist::shard_range(elements, ranks, r, number));
        std::sort(shards.begin(), shards.end(), [](const dist::Range& a, const dist::Range& b) {
          return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        });
        std::int64_t at = 0;
        for (const dist::Range& part : shards) {
          CHECK(part.begin == at);
          CHECK((part.begin % dist::shard_grain == 0 && part.size() <= elements / ranks + 1 + dist::shard_grain));
          at = part.end;
        }
        CHECK(at == elements);
      }
    }
  }
  std::vector<std::int64_t> held(4, 0);
  for (std::size_t number = 0; number < 64; ++number) {
    for (int r = 0; r < 4; ++r) held[static_cast<std::size_t>(r)] += dist::shard_range(100, 4, r, number).size();
  }
  CHECK(held == std::vector<std::int64_t>{1600, 1600, 1600, 1600});
}
