// Buckets and shards: every element is in one place, bounds lie where they may, shares are as equal as they can be.

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/dist/shards.h>

#include "support/catch.h"

using namespace thimble;

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
        if (!options.keeps_parameters) {
          CHECK(b.shard_elements(r) <= b.elements / ranks + 1 + dist::shard_grain);
        }
      }
    }
    for (const std::vector<int>& one : owner) CHECK(std::find(one.begin(), one.end(), -1) == one.end());
  }
}

TEST_CASE("shards: buckets are filled from the last parameter on", "[dist]") {
  const auto list = parameters_of({10'000, 20'000, 30'000, 5}, {DType::f32});
  const std::vector<dist::Bucket> buckets = dist::make_buckets(list, 2, {.bytes = 4 * 50'100});
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].parameters == std::vector<std::size_t>{3, 2, 1});
  CHECK(buckets[0].offsets == std::vector<std::int64_t>{0, 5, 30'005});
  CHECK(buckets[0].bounds == std::vector<std::int64_t>{0, 5 + 6 * dist::shard_grain, 50'005});
  CHECK(buckets[1].parameters == std::vector<std::size_t>{0});
  CHECK(dist::make_buckets(list, 2, {.bytes = 0}).size() == 4);
  // Those of two chunks do not travel together.
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
        std::vector<dist::Range> parts;
        for (int r = 0; r < ranks; ++r) parts.push_back(dist::shard_range(elements, ranks, r, number));
        std::sort(parts.begin(), parts.end(), [](const dist::Range& a, const dist::Range& b) {
          return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        });
        std::int64_t at = 0;
        for (const dist::Range& part : parts) {
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
