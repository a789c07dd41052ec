// Attention over a cache on a CUDA device, a GPU or tests/emulated: the CPU's values, and codes that its kernels cannot
// read are refused.

#include <thimble/core/error.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/generate/kv_cache.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::check_near;
using thimble::testing::has_cuda;

namespace cuda_kv_cache_test {

Tensor noise(const Shape& shape, std::uint32_t number, DType dtype) {
  return to_dtype(normal(shape, 0, 1, DType::f32, cpu, {7, 0, 0, number}), dtype);
}

}  // namespace cuda_kv_cache_test

using namespace cuda_kv_cache_test;

TEST_CASE("kv cache on CUDA: the CPU's values, read in pieces", "[nn][kv_cache][cuda]") {
  if (!has_cuda()) return;
  constexpr std::int64_t positions = 37, width = 32;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [heads, key_heads] : {std::pair{4, 4}, {6, 2}}) {
      INFO(to_string(dtype) << ", " << heads << " heads on " << key_heads);
      const Tensor q = noise({2, positions, heads, width}, 1, dtype);
      const Tensor k = noise({2, positions, key_heads, width}, 2, dtype);
      const Tensor v = noise({2, positions, key_heads, width}, 3, dtype);
      ops::ScaledDotProductAttention::Saved saved;
      const Tensor whole = ops::ScaledDotProductAttention{.is_causal = true}.forward(q, k, v, {}, {}, saved);
      nn::KvCache cache({1, 2, key_heads, width, positions, dtype}, cuda());
      std::int64_t begin = 0;
      for (const std::int64_t piece : {20, 1, 1, 13, 1, 1}) {
        const auto part = [&](const Tensor& t) { return contiguous(view::slice(t, 1, begin, begin + piece)); };
        const auto there = [&](const Tensor& t) { return to_device(part(t), cuda()); };
        const Tensor out = cache.attend(0, there(q), there(k), there(v));
        cache.advance(piece);
        // The CPU computes in f32; tensor cores round probabilities to the dtype.
        check_near(to_device(out, cpu), part(whole), dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 4e-3 : 3e-2);
        begin += piece;
      }
      REQUIRE(begin == positions);
    }
  }
}

TEST_CASE("kv cache on CUDA: codes are refused by name", "[nn][kv_cache][cuda]") {
  if (!has_cuda()) return;
  const Tensor x = to_device(noise({1, 1, 1, 32}, 1, DType::f32), cuda());
  for (const DType dtype : {DType::f16, DType::i8, DType::f8e4m3}) {
    nn::KvCache cache({1, 1, 1, 32, 4, dtype}, cuda());
    CHECK_THROWS_AS(cache.attend(0, x, x, x), DeviceError);
    CHECK(cache.length() == 0);
  }
}
