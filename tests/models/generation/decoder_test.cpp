// Reading token by token with a cache gives the logits of the whole window, bit for bit, on every instruction set, unit
// and number of threads.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/generation/generate.h>
#include <thimble/nn/precision/precision.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/model_runs.h"
#include "support/tensor_bytes.h"

using namespace thimble;
using namespace thimble::testing;
using namespace kernel_test;

namespace decoder_test {

constexpr std::int64_t positions = 70;  // past a block of 64 keys
constexpr std::int64_t vocabulary = 37;

/// Weights of more than 2^16 numbers, and sums over several blocks: large enough for gemm_driver.h.
models::ModelOptions sizes(bool is_llama, std::int64_t layers = 2, std::int64_t window = 0) {
  models::ModelOptions o;
  o.layers = layers, o.heads = 6, o.width = 192, o.vocabulary = vocabulary, o.sequence = positions;
  if (is_llama) o.key_heads = 2, o.hidden = 544;
  o.window = window;
  return o;
}

std::unique_ptr<models::Decoder> made(bool is_llama, const nn::TensorOptions& on, std::int64_t layers = 2,
                                      std::int64_t window = 0) {
  auto model = make_seeded<models::Decoder>(is_llama ? "tiny-llama" : "gpt2", sizes(is_llama, layers, window), on);
  model->eval();
  return model;
}

Tensor some_ids(std::int64_t batch, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * positions; ++i) ids.push_back((i * i + 7 * (i / positions)) % vocabulary);
  return view::slice(from_host(ids, {batch, positions}), 1, 0, count);
}

nn::KvCacheSizes cache_sizes(const models::Decoder& model, std::int64_t batch) {
  nn::KvCacheSizes s = model.cache_sizes();
  s.batch = batch, s.context = positions;
  return s;
}

/// Compares the whole window's logits with a cached pass that reads the prompt, then one token at a time.
void check_bits(models::Decoder& model, std::int64_t batch, std::int64_t prompt) {
  const NoGrad off;
  const Tensor whole = model.forward(contiguous(some_ids(batch, positions)));  // (B, T, V)
  nn::KvCache cache(cache_sizes(model, batch), cpu);
  for (std::int64_t begin = 0; begin < positions;) {
    const std::int64_t end = begin == 0 ? prompt : begin + 1;
    const Tensor ids = contiguous(view::slice(some_ids(batch, positions), 1, begin, end));
    const Tensor logits = model.extend(ids, cache);
    REQUIRE(logits.shape() == Shape{batch, 1, vocabulary});
    CHECK(cache.length() == end);
    const Bytes own = bytes_of(logits);
    if (own != bytes_of(contiguous(view::slice(whole, 1, end - 1, end)))) FAIL("row " << end - 1 << " of the window");
    if (end % 23 == 0) {  // also compares with the last row of a shorter window
      const Tensor shorter = model.forward(contiguous(some_ids(batch, end)));
      if (own != bytes_of(contiguous(view::slice(shorter, 1, end - 1, end)))) FAIL("a window of " << end);
    }
    begin = end;
  }
}

}  // namespace decoder_test

using namespace decoder_test;

TEST_CASE("decoder: each step has the bits of the whole window", "[models][decoder]") {
  const kernels::Isa before = kernels::isa();
  for (const kernels::Isa set : supported()) {
    kernels::set_isa(set);
    for (const bool is_llama : {false, true}) {
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        for (const int threads : {1, 2}) {
          INFO(kernels::to_string(set) << ", " << (is_llama ? "llama" : "gpt") << ", " << to_string(dtype) << ", "
                                       << threads << " threads");
          const Threads some(threads);
          const auto model = made(is_llama, {cpu, dtype});
          check_bits(*model, threads == 1 ? 1 : 3, 5);
        }
      }
    }
  }
  kernels::set_isa(before);
}

TEST_CASE("decoder: each step of a window has the bits of the whole", "[models][decoder]") {
  for (const bool is_llama : {false, true}) {
    const Threads some(2);
    const auto model = made(is_llama, {cpu, DType::f32}, 2, 20);
    check_bits(*model, 2, 5);
  }
}

TEST_CASE("decoder: bf16 products on every unit", "[models][decoder]") {
  const Threads alone;
  for (const kernels::DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On on(unit);
    for (const bool is_llama : {false, true}) {
      INFO(kernels::to_string(unit) << ", " << (is_llama ? "llama" : "gpt"));
      check_bits(*made(is_llama, {cpu, DType::bf16}, 1), 1, 33);
    }
  }
}

TEST_CASE("decoder: parameters in f32 with products in bf16, and all in 8 bits", "[models][decoder]") {
  const Threads alone;
  for (const bool is_llama : {false, true}) {
    nn::TensorOptions on;
    on.compute = DType::bf16;
    const auto model = made(is_llama, on);
    CHECK(model->cache_sizes().dtype == DType::bf16);
    check_bits(*model, 1, 1);
    const auto narrow = made(is_llama, {cpu, DType::f8e4m3});  // f16 holds its values exactly
    CHECK(narrow->cache_sizes().dtype == DType::f16);
    check_bits(*narrow, 1, 9);
  }
}

TEST_CASE("decoder: narrow caches move logits a little", "[models][decoder]") {
  const Threads alone;
  const NoGrad off;
  for (const bool is_llama : {false, true}) {
    const auto model = made(is_llama, {});
    const auto logits_with = [&](DType dtype) {
      nn::KvCacheSizes s = cache_sizes(*model, 1);
      s.dtype = dtype;
      nn::KvCache cache(s, cpu);
      for (std::int64_t t = 0; t + 1 < positions; ++t) {
        model->extend(contiguous(view::slice(some_ids(1, positions), 1, t, t + 1)), cache);
      }
      return to_host<double>(
          model->extend(contiguous(view::slice(some_ids(1, positions), 1, positions - 1, positions)), cache));
    };
    const auto exact = logits_with(DType::f32);
    double before = 0, size = 0;
    for (const double x : exact) size = std::max(size, std::abs(x));
    for (const DType dtype : {DType::f16, DType::bf16, DType::i8, DType::f8e4m3, DType::f8e5m2}) {
      const auto coarse = logits_with(dtype);
      double off_by = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) off_by = std::max(off_by, std::abs(coarse[i] - exact[i]));
      INFO((is_llama ? "llama, " : "gpt, ") << to_string(dtype) << ": off by " << off_by << " of " << size);
      CHECK(off_by > 0);
      CHECK(off_by < 0.05 * size);
      before = off_by;
    }
    CHECK(before > 0);
  }
}

TEST_CASE("decoder: errors", "[models][decoder]") {
  const auto model = made(false, {});
  const auto read = [&](const Shape& shape, nn::KvCacheSizes s) {
    const NoGrad off;
    nn::KvCache cache(s, cpu);
    model->extend(zeros(shape, DType::i64), cache);
  };
  const nn::KvCacheSizes right = cache_sizes(*model, 2);
  CHECK_NOTHROW(read({2, 3}, right));
  CHECK_THROWS_AS(read({3, 3}, right), ShapeError);
  CHECK_THROWS_AS(read({2, 0}, right), ShapeError);
  CHECK_THROWS_AS(read({2}, right), ShapeError);
  CHECK_THROWS_AS(read({2, positions + 1}, right), ValueError);
  nn::KvCacheSizes longer = right, other = right;
  longer.context = positions + 5, other.layers = 3;
  CHECK_THROWS_AS(read({2, positions + 1}, longer), ValueError);  // more than the learned positions
  CHECK_THROWS_AS(read({2, 1}, other), ShapeError);
  const auto bert = models::make_model("bert-base", {.layers = 1, .heads = 1, .width = 8}, {dry(cpu)});
  CHECK_THROWS_AS(models::require_decoder(*bert, "generate"), ValueError);
}

TEST_CASE("decoder: a llama goes on beyond its sequence", "[models][decoder]") {
  const Threads alone;
  const auto short_one = made(true, {});
  models::ModelOptions o = sizes(true);
  o.sequence = 2 * positions;
  const auto long_one = make_seeded<models::Decoder>("tiny-llama", o);
  long_one->eval();
  nn::KvCacheSizes s = short_one->cache_sizes();
  s.batch = 1, s.context = 2 * positions;
  const NoGrad off;
  std::vector<std::int64_t> ids(2 * positions, 3);
  nn::KvCache cache(s, cpu);
  const Tensor logits = short_one->extend(from_host(ids, {1, 2 * positions}), cache);
  const Tensor whole = long_one->forward(from_host(ids, {1, 2 * positions}));
  CHECK(bytes_of(logits) == bytes_of(contiguous(view::slice(whole, 1, 2 * positions - 1, 2 * positions))));
}
