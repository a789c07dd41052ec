// Numbers beside tensors: what a tensor of integers takes.

#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>

#include "support/catch.h"

using namespace thimble;

TEST_CASE("ops: integers take no numbers that are none") {
  const Tensor ids = arange(4);
  CHECK_THROWS_AS(ids * 0.5, DTypeError);
  CHECK_THROWS_AS(0.5 * ids, DTypeError);
  CHECK_THROWS_AS(from_host(std::vector<std::uint8_t>{128}, {1}) * (1.0 / 255), DTypeError);
  CHECK_THROWS_AS(ids + 0.5, DTypeError);
  CHECK_THROWS_AS(ids - 0.5, DTypeError);
  CHECK_THROWS_AS(0.5 - ids, DTypeError);
  CHECK_THROWS_AS(ids / 2.0, DTypeError);
  CHECK_THROWS_AS(clamp(ids, 0.5, 1.5), DTypeError);
  CHECK_THROWS_AS(clamp(ids, 0, INFINITY), DTypeError);
  CHECK_THROWS_AS(ids + NAN, DTypeError);
  CHECK_THROWS_AS(ids * 0x1p63, DTypeError);
  CHECK_THROWS_AS(full({2}, 0.5, DType::i32), DTypeError);
  CHECK_THROWS_AS(masked_fill(ids, less(ids, ids), 0.5), DTypeError);
  CHECK_THROWS_WITH(
      ids * 0.5,
      "mul: 0.500000 is no integer, and the tensor is i64 (4) on cpu; use to_dtype(x, DType::f32) first, or "
      "an integer");
  using Ids = std::vector<std::int64_t>;
  CHECK(to_host<std::int64_t>(ids + 1) == Ids{1, 2, 3, 4});
  CHECK(to_host<std::int64_t>(5.0 - ids * -2) == Ids{5, 7, 9, 11});
  CHECK(to_host<std::int64_t>(clamp(ids, 1, 2)) == Ids{1, 1, 2, 2});
  CHECK(to_host<float>(to_dtype(ids, DType::f32) * 0.5) == std::vector<float>{0, 0.5, 1, 1.5});
}
