// Products of matrices that repeat one row or one column, as expand() makes them: stride 0.

#include <cmath>
#include <vector>

#include <thimble/autograd/functions/matmul.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>

#include "support/catch.h"

using namespace thimble;

namespace {

Tensor waves(const Shape& shape, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(1.7f * static_cast<float>(i) + 0.3f);
  return to_dtype(from_host(values, shape), dtype);
}

// (rows, columns): one column for all, one row for all, one number.
std::vector<Tensor> repeated(std::int64_t rows, std::int64_t columns, DType dtype) {
  std::vector<Tensor> list;
  for (const Shape& own : {Shape{rows, 1}, Shape{1, columns}, Shape{1, 1}}) {
    list.push_back(view::expand(waves(own, dtype), {rows, columns}));
  }
  return list;
}

}  // namespace

TEST_CASE("matmul: a row or column that stands for all gives the bits of its copies", "[matmul]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t m : {1, 7, 8, 33, 64, 200}) {
      for (const std::int64_t k : {1, 2, 16, 31, 96}) {
        for (const std::int64_t n : {1, 3, 8, 17, 32, 96}) {
          INFO(to_string(dtype) << " (" << m << ", " << k << ") by (" << k << ", " << n << ")");
          const Tensor left = waves({m, k}, dtype), right = waves({k, n}, dtype);
          for (const Tensor& a : repeated(m, k, dtype)) {
            REQUIRE(to_host<double>(matmul(a, right)) == to_host<double>(matmul(clone(a), right)));
          }
          for (const Tensor& b : repeated(k, n, dtype)) {
            REQUIRE(to_host<double>(matmul(left, b)) == to_host<double>(matmul(left, clone(b))));
          }
        }
      }
    }
  }
}
