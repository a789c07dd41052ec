// Seeing a tensor in another shape, where its elements do not lie side by side.

#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>

#include "support/catch.h"

using namespace thimble;

TEST_CASE("reshape: across a gap there is no view, beside it there is", "[core]") {
  const std::vector<float> values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};
  const Tensor whole = from_host(values, {4, 6});
  const Tensor half = view::slice(whole, 1, 0, 3);  // (4, 3) of rows of 6
  CHECK_FALSE(view::can_reshape(half, {12}));
  CHECK_THROWS_AS(view::reshape(half, {12}), ShapeError);
  for (const auto& [begin, end, step] : {std::array{-1, 3, 1}, {2, 1, 1}, {0, 7, 1}, {0, 3, 0}, {0, 3, -1}}) {
    INFO(begin << " to " << end << " by " << step);
    CHECK_THROWS_AS(view::slice(whole, 1, begin, end, step), ShapeError);
  }
  CHECK(view::slice(whole, 1, 6, 6).shape() == Shape{4, 0});
  CHECK(view::slice(whole, 1, 1, 6, 4).shape() == Shape{4, 2});
  CHECK(view::slice(whole, 1, 1, 6, 5).shape() == Shape{4, 1});
  CHECK_FALSE(view::can_reshape(half, {2, 6}));
  REQUIRE(view::can_reshape(half, {2, 2, 3}));
  CHECK(to_host<float>(view::reshape(half, {2, 2, 3})) == std::vector<float>{0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20});
  REQUIRE(view::can_reshape(whole, {24}));
  CHECK(to_host<float>(view::reshape(whole, {24})) == values);
}

TEST_CASE("shape: axes from the end, and strides around an empty axis", "[core]") {
  CHECK(normalize_axis("f", -2, 2) == 0);
  CHECK(normalize_axis("f", 1, 2) == 1);
  CHECK_THROWS_AS(normalize_axis("f", -3, 2), ShapeError);
  CHECK_THROWS_AS(normalize_axis("f", 2, 2), ShapeError);
  CHECK(contiguous_strides({2, 0, 3}) == Shape{3, 3, 1});
}
