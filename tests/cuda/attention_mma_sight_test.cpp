// Attention on tensor cores over packed documents and with masks: the definition's values, the bits of calls without
// them, operands that must not be read, queries that see nothing. On a GPU if there is one; in a build without CUDA on
// tests/emulated.

#include <cmath>

#include <thimble/core/kernels/attention.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
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

/// Booleans of a shape, false where the index leaves remainder 1 by `period`.
Tensor booleans(const Shape& shape, std::int64_t period) {
  std::vector<std::uint8_t> sees;
  for (std::int64_t i = 0; i < shape.elements(); ++i) sees.push_back(i % period != 1);
  return to_dtype(from_host(sees, shape), DType::boolean);
}

/// Numbers from -2 to 1, and -infinity where the index leaves remainder 1 by `period`.
Tensor numbers(const Shape& shape, DType dtype, std::int64_t period) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    values.push_back(i % period == 1 ? -INFINITY : static_cast<float>(i * 37 % 31) / 10.0f - 2.0f);
  }
  return to_dtype(from_host(values, shape), dtype);
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
  // Lengths that end within tiles, at their ends and after them; of one token; longer than a tile.
  const Tensor mixed = documents({40, 1, 23, 64, 1, 21}), ones = documents(std::vector<std::int32_t>(70, 1));
  const Tensor two = documents({3, 60, 7, 1, 69}, 2);  // the document of 7 ends sample 0
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
          "[attention][cuda][slow]") {
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
    // Documents that begin at the borders of tiles of keys and of queries.
    for (const bool is_causal : {true, false}) {
      const Sizes packed{1, 300, 300, 2, width, is_causal, 0, 1, 0, documents({64, 128, 108})};
      Run all = run(packed, dtype, 0.2, as_it_is);
      std::int64_t begin = 0;
      for (const std::int64_t length : {64, 128, 108}) {
        const auto part = [&](const Tensor& x) { return view::slice(x, 1, begin, begin + length); };
        const ops::ScaledDotProductAttention op{is_causal, 0.2, 0, site};
        ops::ScaledDotProductAttention::Saved saved;
        const Tensor out = op.forward(part(all.q), part(all.k), part(all.v), {}, ops::Needs(7), saved);
        ops::Gradients alone = op.backward(std::move(saved), part(all.dy), ops::Needs(7));
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
    // A document whose operands are NaN leaves the others' bits unchanged.
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

TEST_CASE("attention on tensor cores, masks: the definition's values", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  const Tensor padding = booleans({2, 1, 1, 90}, 4), pairs = booleans({70, 90}, 5);
  const Tensor turned = view::permute(numbers({90, 70}, DType::f32, 11), {1, 0});
  Tensor rows = booleans({2, 1, 70, 1}, 3);  // whole queries that see nothing
  const Sizes cases[] = {
      {2, 70, 90, 2, 32, true, 0, 1, 0, padding, "padding"},
      {2, 70, 90, 2, 64, false, 0.2, 2, 0, padding, "padding"},
      {2, 70, 90, 1, 128, false, 0, 1, 0, padding, "padding"},
      {1, 70, 90, 2, 64, true, 0.1, 1, 20, pairs, "pairs"},
      {1, 70, 90, 1, 80, false, 0, 1, 0, pairs, "pairs"},
      {2, 70, 90, 2, 64, true, 0, 2, 0, rows, "rows"},
      {2, 70, 90, 1, 144, false, 0.1, 1, 0, rows, "rows"},
      {2, 33, 47, 2, 64, false, 0, 1, 0, booleans({2, 2, 33, 47}, 2), "all four axes"},
      {1, 70, 90, 2, 64, true, 0, 1, 0, numbers({2, 70, 90}, DType::f32, 7), "of each head"},
      {1, 70, 90, 2, 96, false, 0.1, 2, 0, numbers({2, 1, 90}, DType::bf16, 7), "of each head in bf16"},
      {2, 70, 90, 1, 128, true, 0.1, 1, 30, numbers({2, 1, 70, 90}, DType::f16, 7), "of each sample in f16"},
      {1, 70, 90, 1, 256, true, 0, 1, 0, numbers({70, 90}, DType::f64, 7), "in f64"},
      {1, 70, 90, 1, 32, false, 0, 1, 0, turned, "turned"},
      {1, 97, 30, 1, 64, false, 0.3, 1, 0, numbers({1, 30}, DType::f32, 8), "more queries than keys"},
      {1, 1, 1, 1, 16, true, 0, 1, 0, numbers({1, 1}, DType::f32, 8), "one"},
  };
  for (const DType dtype : dtypes) {
    for (const Sizes& n : cases) {
      if (!has_kernels(dtype, n.width)) continue;
      check(n, dtype);
      if (n.width == 64) {
        for (const double scale : {-0.7, 0.0, 1e-9}) check(n, dtype, scale);
      }
    }
  }
}

TEST_CASE("attention on tensor cores, masks: one that hides nothing leaves every bit", "[attention][cuda][slow]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  for (const auto& [dtype, width] :
       {std::pair(DType::bf16, 64), std::pair(DType::bf16, 96), std::pair(DType::bf16, 144), std::pair(DType::f32, 64),
        std::pair(DType::f32, 112)}) {
    INFO(to_string(dtype) << " " << width);
    Sizes n{2, 100, 130, 2, width, true, 0.1, 2, 50};
    Run none = run(n, dtype, 0.2, as_it_is);
    for (const DType of_mask : {DType::boolean, DType::f32, DType::bf16, DType::f16, DType::f64}) {
      n.mask = full({100, 130}, of_mask == DType::boolean ? 1 : 0, of_mask);
      Run open = run(n, dtype, 0.2, as_it_is);
      check_same(open, none);
    }
  }
}

TEST_CASE("attention on tensor cores, masks: a query that sees nothing, and huge numbers", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t hidden = 37;
  Sizes n{1, 70, 70, 2, 64, false};
  n.mask = full({70, 70}, 1, DType::boolean);
  fill(view::slice(n.mask, 0, hidden, hidden + 1), 0);
  fill(view::slice(n.mask, 1, 20, 60), 0);
  Run r = run(n, dtype, 0.3, as_it_is);
  for (const Tensor& x : {r.out, r.gradients[0]}) {
    CHECK(to_host<double>(view::slice(x, 1, hidden, hidden + 1)) == Values(2 * 64, 0.0));
  }
  CHECK(to_host<double>(view::slice(r.lse, 2, hidden, hidden + 1)) == Values(2, 0.0));
  for (const int i : {1, 2}) CHECK(to_host<double>(view::slice(r.gradients[i], 1, 20, 60)) == Values(40 * 2 * 64, 0.0));
  // The lowest float hides keys next to larger values; if all of a query's keys have it, they count equally.
  const std::vector<float> values = to_host<float>(to_dtype(n.mask, DType::f32));
  std::vector<float> low;
  for (const float value : values) low.push_back(value == 1 ? 0 : std::numeric_limits<float>::lowest());
  n.mask = from_host(low, {70, 70});
  Run lowest = run(n, dtype, 0.3, as_it_is);
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, hidden}, {hidden + 1, 70}}) {
    const auto part = [&](const Tensor& x) { return view::slice(x, 1, begin, end); };
    CHECK(same_bits(part(lowest.out), part(r.out)));
    CHECK(same_bits(part(lowest.gradients[0]), part(r.gradients[0])));
  }
  const Values out = to_host<double>(lowest.out), v = to_host<double>(r.v);
  for (std::size_t d = 0; d < 128; ++d) {
    double mean = 0;
    for (std::size_t s = 0; s < 70; ++s) mean += v[s * 128 + d] / 70;
    REQUIRE(std::abs(out[index(hidden) * 128 + d] - mean) < 0.01);
  }
  for (int i = 0; i < 3; ++i) {
    for (const double value : to_host<double>(lowest.gradients[i])) REQUIRE(std::isfinite(value));
  }
  // Large numbers everywhere: a score and its logarithm are rounded separately, and either may be the larger one.
  for (const double value : {-1e9, 3e9, -7e12, 1e15, -3e20, 1e25, -2.7e29}) {
    n.mask = full({70, 70}, value, DType::f32);
    Run large = run(n, dtype, 0.3, as_it_is);
    for (int i = 0; i < 3; ++i) {
      for (const double g : to_host<double>(large.gradients[i])) REQUIRE(std::isfinite(g));
    }
    for (const double y : to_host<double>(large.out)) REQUIRE(std::abs(y) < 5);
  }
}

TEST_CASE("attention on tensor cores: documents and a mask together", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t length = 150, width = 64;
  const Tensor of_documents = to_device(documents({40, 1, 70, 39}), cuda());
  const Tensor mask = numbers({length, length}, DType::f32, 9);
  // The same in one mask: -infinity between documents.
  std::vector<float> values = to_host<float>(mask);
  const std::vector<double> numbers_of = to_host<double>(to_dtype(of_documents, DType::f64));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (numbers_of[i / 150] != numbers_of[i % 150]) values[i] = -INFINITY;
  }
  const Sizes n{1, length, length, 1, width, true, 0.1, 1, 0, from_host(values, {length, length})};
  Run one = run(n, dtype, 0.3, as_it_is);
  const Tensor on_device = to_device(mask, cuda()), out = zeros(one.out.shape(), dtype, cuda());
  const Tensor lse = zeros(one.lse.shape(), DType::f32, cuda()), dq = clone(out), dk = clone(out), dv = clone(out);
  const Tensor space = zeros({1 << 18}, DType::u8, cuda());
  launch(cuda(), [&](const Addresses& at) {
    const auto operand = [&](const Tensor& x) {
      return kernels::AttentionOperand{at(x), length * width, width, width};
    };
    const auto result = [&](const Tensor& x) { return kernels::AttentionResult{at(x), length * width, width, width}; };
    kernels::AttentionGradArgs args;
    args.dtype = dtype, args.allows_tf32 = true, args.batch = args.heads = 1, args.queries = args.keys = length;
    args.width = width, args.is_causal = true, args.scale = 0.3;
    args.has_dropout = true, args.threshold = static_cast<std::uint32_t>(0.1 * 0x1p32), args.keep_scale = 1 / 0.9;
    args.site = site;
    args.has_documents = args.has_mask = true;
    args.documents = static_cast<const std::int32_t*>(at(of_documents)), args.documents_batch = length;
    args.mask = {at(on_device), DType::f32, 0, 0, length, 1};
    args.q = operand(one.q), args.k = operand(one.k), args.v = operand(one.v);
    kernels::AttentionArgs forward;
    static_cast<kernels::AttentionProblem&>(forward) = args;
    forward.out = result(out), forward.lse = at(lse);
    const kernels::AttentionKernels& kernels = kernels::attention_kernels(cuda());
    kernels.forward(forward, nullptr, 1);
    REQUIRE(kernels.backward_bytes(args, 1) <= 1 << 18);
    args.out = operand(out), args.dout = operand(one.dy), args.lse = at(lse);
    args.dq = result(dq), args.dk = result(dk), args.dv = result(dv);
    kernels.backward(args, at(space), 1);
  });
  CHECK(same_bits(out, one.out));
  CHECK(same_bits(lse, one.lse));
  CHECK(same_bits(dq, one.gradients[0]));
  CHECK(same_bits(dk, one.gradients[1]));
  CHECK(same_bits(dv, one.gradients[2]));
}
