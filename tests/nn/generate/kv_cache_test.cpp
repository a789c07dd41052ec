// The cache of keys and values: its bytes, the bits of attention over it, and the error of its codes.

#include <cmath>
#include <string>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/generate/kv_cache.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/model_runs.h"
#include "support/refusal.h"
#include "support/tensor_bytes.h"

using namespace thimble;
using namespace thimble::testing;
using namespace kernel_test;
using nn::KvCache;
using nn::KvCacheSizes;
using refusal_test::refusal;

namespace kv_cache_test {

Tensor normal(const Shape& shape, std::uint64_t seed, DType dtype = DType::f32) {
  RandomGenerator generator(seed);
  const GeneratorScope scope(generator);
  const Tensor t = Tensor::empty(shape, DType::f32);
  fill_normal(t, 0, 1);
  return to_dtype(t, dtype);
}

/// Attention of positions [0, S) of one layer through a cache, fed in slices of the given sizes.
Tensor through_cache(KvCache& cache, const Tensor& q, const Tensor& k, const Tensor& v,
                     const std::vector<std::int64_t>& pieces, std::int64_t window = 0) {
  const Tensor out = Tensor::empty_like(q);
  std::int64_t begin = 0;
  for (const std::int64_t piece : pieces) {
    const auto part = [&](const Tensor& t) { return view::slice(t, 1, begin, begin + piece); };
    copy_into(part(out), cache.attend(1, part(q), part(k), part(v), window));
    cache.advance(piece);
    begin += piece;
  }
  REQUIRE(begin == q.size(1));
  return out;
}

bool same_bytes(const Tensor& a, const Tensor& b) { return bytes_of(a) == bytes_of(b); }

}  // namespace kv_cache_test

using namespace kv_cache_test;

TEST_CASE("kv cache: bytes of a token, and of the whole in the ledger", "[nn][kv_cache]") {
  const KvCacheSizes gpt2{12, 1, 12, 64, 1024, DType::f16}, llama{32, 1, 8, 128, 2048, DType::bf16};
  CHECK(gpt2.bytes_per_token() == 36'864);
  CHECK(llama.bytes_per_token() == 131'072);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i8, DType::f8e4m3, DType::f8e5m2}) {
    const KvCacheSizes sizes{3, 2, 4, 24, 19, dtype};
    const std::size_t scale = size_of(dtype) == 1 ? 4 : 0;
    CHECK(sizes.bytes_per_token() == 2 * 3 * 4 * (24 * size_of(dtype) + scale));
    CHECK(sizes.bytes() == 2 * 19 * sizes.bytes_per_token());
    for (const memory::Device device : {cpu, dry(cpu), dry(cuda())}) {
      const memory::Stack stack = memory::make_resource(device);
      const ResourceScope scope(stack.top);
      KvCache cache(sizes, device);
      CHECK(stack.ledger->bytes_by_category()[static_cast<std::size_t>(memory::Category::activation)] == sizes.bytes());
      CHECK(stack.ledger->bytes() == sizes.bytes());
    }
  }
}

TEST_CASE("kv cache: attention has the bits of the whole window, however it is read", "[nn][kv_cache]") {
  const Threads alone(2);
  const kernels::Isa before = kernels::isa();
  constexpr std::int64_t batch = 2, positions = 150, width = 24;
  for (const kernels::Isa set : supported()) {
    kernels::set_isa(set);
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (const auto& [heads, key_heads] : {std::pair{4, 4}, {6, 2}, {40, 1}}) {
        INFO(kernels::to_string(set) << ", " << to_string(dtype) << ", " << heads << " heads on " << key_heads);
        const Tensor q = normal({batch, positions, heads, width}, 1, dtype);
        const Tensor k = normal({batch, positions, key_heads, width}, 2, dtype);
        const Tensor v = normal({batch, positions, key_heads, width}, 3, dtype);
        ops::ScaledDotProductAttention::Saved saved;
        const Tensor whole = ops::ScaledDotProductAttention{.is_causal = true}.forward(q, k, v, {}, {}, saved);
        KvCache cache({2, batch, key_heads, width, positions, dtype}, cpu);
        const std::vector<std::int64_t> ones(positions, 1);
        CHECK(same_bytes(through_cache(cache, q, k, v, ones), whole));
        cache.clear();
        CHECK(same_bytes(through_cache(cache, q, k, v, {70, 1, 1, 40, 38}), whole));
        cache.clear();
        CHECK(same_bytes(through_cache(cache, q, k, v, {positions}), whole));
        for (const std::int64_t window : {1, 40}) {
          const ops::ScaledDotProductAttention op{.is_causal = true, .window = window};
          const Tensor windowed = op.forward(q, k, v, {}, {}, saved);
          cache.clear();
          CHECK(same_bytes(through_cache(cache, q, k, v, ones, window), windowed));
          cache.clear();
          CHECK(same_bytes(through_cache(cache, q, k, v, {70, 1, 1, 40, 38}, window), windowed));
        }
      }
    }
  }
  kernels::set_isa(before);
}

TEST_CASE("kv cache: codes are as near to f32 as their scales say", "[nn][kv_cache]") {
  const Threads alone;
  const kernels::Isa before = kernels::isa();
  constexpr std::int64_t positions = 90, heads = 4, key_heads = 2, width = 32;
  const Tensor q = normal({1, positions, heads, width}, 1), k = normal({1, positions, key_heads, width}, 2);
  const Tensor v = normal({1, positions, key_heads, width}, 3);
  const auto qs = to_host<double>(q), ks = to_host<double>(k), vs = to_host<double>(v);
  const auto at = [&](const std::vector<double>& x, std::int64_t count, std::int64_t t, std::int64_t h,
                      std::int64_t d) { return x[static_cast<std::size_t>((t * count + h) * width + d)]; };
  // Error bound for one number of a row: half a scale, amax / 254, for i8; half a unit in the last place for floats, or
  // half the smallest subnormal in units of the scale; plus 2^-20 for f32's own rounding.
  const auto error = [&](DType dtype, double value, double amax) {
    const double rounding = std::ldexp(amax, -20);
    if (dtype == DType::i8) return amax / 254 + rounding;
    if (dtype == DType::f8e4m3) return std::max(std::ldexp(std::abs(value), -4), amax / 448 * 0x1p-10) + rounding;
    if (dtype == DType::f8e5m2) return std::max(std::ldexp(std::abs(value), -3), amax / 57344 * 0x1p-17) + rounding;
    return std::ldexp(std::abs(value), dtype == DType::f16 ? -11 : -8) + rounding;
  };
  for (const kernels::Isa set : supported()) {
    kernels::set_isa(set);
    KvCache exact_cache({2, 1, key_heads, width, positions, DType::f32}, cpu);
    const auto exact = to_host<double>(through_cache(exact_cache, q, k, v, std::vector<std::int64_t>(positions, 1)));
    for (const DType dtype : {DType::f16, DType::bf16, DType::i8, DType::f8e4m3, DType::f8e5m2}) {
      INFO(kernels::to_string(set) << ", " << to_string(dtype));
      KvCache cache({2, 1, key_heads, width, positions, dtype}, cpu);
      const Tensor by_ones = through_cache(cache, q, k, v, std::vector<std::int64_t>(positions, 1));
      cache.clear();
      CHECK(same_bytes(through_cache(cache, q, k, v, {positions}), by_ones));
      const auto coarse = to_host<double>(by_ones);
      bool differs = false;
      for (std::int64_t t = 0; t < positions; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          // Scores are off by at most eta, so each probability by a factor within exp(+-2 eta), and the result by
          // (exp(2 eta) - 1) max |v| + max |error of v|.
          const std::int64_t g = h / (heads / key_heads);
          double eta = 0, largest_v = 0, error_v = 0;
          for (std::int64_t s = 0; s <= t; ++s) {
            double k_amax = 0, v_amax = 0, score = 0;
            for (std::int64_t d = 0; d < width; ++d) {
              k_amax = std::max(k_amax, std::abs(at(ks, key_heads, s, g, d)));
              v_amax = std::max(v_amax, std::abs(at(vs, key_heads, s, g, d)));
            }
            for (std::int64_t d = 0; d < width; ++d) {
              score += std::abs(at(qs, heads, t, h, d)) * error(dtype, at(ks, key_heads, s, g, d), k_amax);
              error_v = std::max(error_v, error(dtype, at(vs, key_heads, s, g, d), v_amax));
            }
            eta = std::max(eta, score / std::sqrt(static_cast<double>(width)));
            largest_v = std::max(largest_v, v_amax);
          }
          const double bound = std::expm1(2 * eta) * largest_v + error_v + 1e-5;
          for (std::int64_t d = 0; d < width; ++d) {
            const double off = std::abs(at(coarse, heads, t, h, d) - at(exact, heads, t, h, d));
            differs = differs || off > 0;
            if (!(off <= bound)) FAIL("position " << t << ", head " << h << ": off by " << off << ", bound " << bound);
          }
        }
      }
      CHECK(differs);
    }
  }
  kernels::set_isa(before);
}

TEST_CASE("kv cache: errors", "[nn][kv_cache]") {
  CHECK(refusal<ValueError>([] {
          KvCache({0, 1, 1, 8, 4, DType::f32}, cpu);
        }) == "kv cache: layers 0; expected at least 1");
  CHECK(refusal<ValueError>([] {
          KvCache({1, 1, 1, 8, -4, DType::f32}, cpu);
        }) == "kv cache: context -4; expected at least 1");
  CHECK_THROWS_AS(KvCache({1, 1, 1, 8, 4, DType::i32}, cpu), DTypeError);
  KvCache cache({2, 1, 1, 8, 4, DType::f32}, cpu);
  const auto some = [](std::int64_t count) { return normal({1, count, 1, 8}, 1); };
  CHECK(refusal<ValueError>([&] { cache.attend(0, some(5), some(5), some(5)); }) ==
        "kv cache: 5 positions after 0; the context of 4 has room for 4");
  CHECK_THROWS_AS(cache.attend(2, some(1), some(1), some(1)), ValueError);
  CHECK_THROWS_AS(cache.attend(0, some(1), some(2), some(2)), ShapeError);
  CHECK_THROWS_AS(cache.attend(0, normal({2, 1, 1, 8}, 1), normal({2, 1, 1, 8}, 1), normal({2, 1, 1, 8}, 1)),
                  ShapeError);
  CHECK_THROWS_AS(cache.advance(5), ValueError);
  cache.attend(0, some(4), some(4), some(4));
  cache.advance(4);
  CHECK_THROWS_AS(cache.attend(0, some(1), some(1), some(1)), ValueError);
  CHECK_THROWS_AS(cache.step_workspace_bytes(1, DType::f32), ValueError);
  CHECK(cache.length() == 4);
  cache.clear();
  Tape tape;
  {
    const Recording recording(tape);
    CHECK_THROWS_AS(cache.attend(0, some(1), some(1), some(1)), AutogradError);
  }
  // A GPU's kernels read only keys of the queries' dtype.
  const auto on_gpu = [](DType dtype) {
    KvCache narrow({1, 1, 1, 8, 4, dtype}, dry(cuda()));
    const Tensor x = zeros({1, 1, 1, 8}, DType::f32, dry(cuda()));
    narrow.attend(0, x, x, x);
  };
  CHECK_NOTHROW(on_gpu(DType::f32));
  for (const DType dtype : {DType::f16, DType::i8, DType::f8e4m3}) CHECK_THROWS_AS(on_gpu(dtype), DeviceError);
}
