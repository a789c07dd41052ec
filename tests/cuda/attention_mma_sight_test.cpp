// Attention on tensor cores of documents that lie side by side: the definition's values, the bits of calls without
// them, and what is not read. On a GPU where there is one; in a build without CUDA on the device that tests/emulated
// makes of the host.

#include <cmath>

#include <thimble/core/launch/tf32.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

#include "cuda/attention_definition.h"
#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble_test::attention_definition;
using thimble::testing::has_cuda;

namespace {

/// i32 (samples, S): documents of these lengths, one sample after the other.
Tensor documents(const std::vector<std::int32_t>& lengths, std::int64_t samples = 1) {
  std::vector<std::int32_t> numbers;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    numbers.insert(numbers.end(), static_cast<std::size_t>(lengths[i]), 2 * static_cast<std::int32_t>(i) - 7);
  }
  return from_host(numbers, {samples, static_cast<std::int64_t>(numbers.size()) / samples});
}

const auto as_it_is = [](const Tensor& x) { return x; };

void check_same(Run& a, Run& b) {
  CHECK(same_bits(a.out, b.out));
  CHECK(same_bits(a.lse, b.lse));
  for (int i = 0; i < 3; ++i) CHECK(same_bits(a.gradients[i], b.gradients[i]));
}

}  // namespace

TEST_CASE("attention on tensor cores, documents: the definition's values", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  // Lengths that end within tiles, at their ends and behind them; of one token; more than a tile.
  const Tensor mixed = documents({40, 1, 23, 64, 1, 21}), ones = documents(std::vector<std::int32_t>(70, 1));
  const Tensor two = documents({3, 60, 7, 1, 69}, 2);  // the document of 7 is the end of sample 0
  const Sizes cases[] = {
      {1, 150, 150, 1, 32, true, 0, 1, 0, mixed, "mixed"},
      {1, 150, 150, 1, 64, false, 0.2, 1, 0, mixed, "mixed"},
      {1, 150, 150, 4, 16, true, 0.1, 2, 30, mixed, "mixed"},  // heads that share keys, and a window
      {1, 150, 150, 2, 80, false, 0, 2, 12, mixed, "mixed"},
      {1, 67, 150, 2, 64, true, 0, 1, 0, mixed, "mixed"},  // the last queries of more keys
      {1, 67, 150, 2, 32, false, 0.3, 2, 0, mixed, "mixed"},
      {1, 20, 150, 1, 64, false, 0, 1, 100, mixed, "mixed"},
      {1, 70, 70, 2, 32, true, 0, 1, 0, ones, "ones"},
      {1, 70, 70, 1, 64, false, 0, 1, 0, ones, "ones"},
      {2, 70, 70, 2, 64, true, 0, 1, 0, two, "two"},
      {2, 33, 70, 2, 96, false, 0.1, 1, 0, two, "two"},
      {2, 70, 70, 1, 128, true, 0.1, 1, 0, two, "two"},
      {2, 70, 70, 1, 144, true, 0, 1, 0, two, "two"},
      {2, 70, 70, 1, 256, false, 0, 1, 40, two, "two"},
  };
  for (const DType dtype : dtypes) {
    for (const Sizes& n : cases) {
      if (has_kernels(dtype, n.width)) check(n, dtype);
    }
    // Every place where a document can end in a block of rows, on both sides.
    for (std::int32_t length = 1; length < 35; ++length) {
      check({1, 36, 36, 1, 16, length % 2 == 0, 0, 1, 0, documents({length, 36 - length}), "two"}, dtype);
    }
  }
}

TEST_CASE("attention on tensor cores, documents: one has the bits of none, several those of each alone",
          "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  for (const auto& [dtype, width] :
       {std::pair(DType::bf16, 64), std::pair(DType::bf16, 96), std::pair(DType::bf16, 144), std::pair(DType::f32, 64),
        std::pair(DType::f32, 112)}) {
    INFO(to_string(dtype) << " " << width);
    Sizes n{1, 100, 130, 2, width, true, 0.1, 2, 50};
    Run none = run(n, dtype, 0.2, as_it_is);
    n.mask = documents({130});
    Run one = run(n, dtype, 0.2, as_it_is);
    check_same(one, none);
    // Documents that begin where tiles of keys and of queries do.
    for (const bool is_causal : {true, false}) {
      const Sizes packed{1, 300, 300, 2, width, is_causal, 0, 1, 0, documents({64, 128, 108})};
      Run all = run(packed, dtype, 0.2, as_it_is);
      std::int64_t begin = 0;
      for (const std::int64_t length : {64, 128, 108}) {
        const auto part = [&](const Tensor& x) { return view::slice(x, 1, begin, begin + length); };
        const ops::ScaledDotProductAttention op{is_causal, 0.2, 0, site};
        ops::ScaledDotProductAttention::Saved saved;
        const Tensor out = op.forward(part(all.q), part(all.k), part(all.v), {}, Needs(7), saved);
        Gradients alone = op.backward(std::move(saved), part(all.dy), Needs(7));
        CHECK(same_bits(out, part(all.out)));
        for (int i = 0; i < 3; ++i) CHECK(same_bits(alone[i], part(all.gradients[i])));
        begin += length;
      }
    }
  }
}

TEST_CASE("attention on tensor cores, documents: tiles that nobody sees are not read", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  for (const std::int64_t width : {64, 128}) {
    const Sizes n{1, 384, 384, 1, width, false, 0, 1, 0, documents({128, 128, 128})};
    Run whole = run(n, dtype, 0.2, as_it_is);
    // A document whose operands are NaN: the others have their bits.
    Run holed = run(n, dtype, 0.2, [](const Tensor& x) {
      const Tensor y = clone(x);
      fill(view::slice(y, 1, 128, 256), std::nan(""));
      return y;
    });
    for (const std::int64_t begin : {0, 256}) {
      const auto part = [&](const Tensor& x) { return view::slice(x, 1, begin, begin + 128); };
      CHECK(same_bits(part(holed.out), part(whole.out)));
      for (int i = 0; i < 3; ++i) CHECK(same_bits(part(holed.gradients[i]), part(whole.gradients[i])));
    }
    CHECK(std::isnan(to_host<double>(view::slice(holed.out, 1, 200, 201))[0]));
  }
}
