// Attention on tensor cores (f16, bf16, and f32 in TF32) against its definition in double. On a GPU if there is one; in
// a build without CUDA on tests/emulated.

#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>

#include "cuda/attention_definition.h"
#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble_test::attention_definition;
using thimble::testing::has_cuda;

TEST_CASE("attention on tensor cores: the definition's values, for every width of a tile", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  for (const DType dtype : dtypes) {
    for (const std::int64_t width : {16, 32, 64, 80, 96, 128, 144, 256}) {
      if (!has_kernels(dtype, width)) continue;
      check({1, 70, 70, 2, width, true}, dtype);
      check({1, 17, 37, 1, width, false, 0.25}, dtype);
    }
  }
}

TEST_CASE("attention on tensor cores: lengths around the tiles, masks and dropout", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Sizes cases[] = {
      {1, 1, 1, 1, 16, true},
      {1, 1, 150, 1, 32, true},          // one query, as in generation
      {2, 64, 64, 2, 64, true},          // whole tiles
      {1, 129, 129, 1, 64, true, 0.3},   // one past two tiles
      {1, 33, 161, 2, 64, true, 0.1},    // the last queries of more keys; the mask's rows begin between random words
      {1, 97, 30, 1, 80, false, 0.5},    // more queries than keys
      {2, 40, 132, 2, 128, false, 0.2},  // lanes share the mask's rows
      {1, 72, 72, 1, 256, true, 0.2},
      {3, 20, 24, 1, 48, true, 0.4},
      {2, 70, 70, 4, 64, true, 0, 2},  // heads that share keys and values
      {1, 70, 129, 6, 32, true, 0.2, 3},
      {1, 33, 40, 2, 144, false, 0, 2},
      {1, 150, 150, 1, 32, true, 0, 1, 1},  // windows: of one key, within a tile, over several, on both sides
      {2, 200, 200, 2, 64, true, 0.2, 2, 20},
      {1, 260, 260, 1, 64, true, 0, 1, 150},
      {1, 70, 201, 1, 32, true, 0, 1, 90},
      {1, 150, 150, 1, 80, false, 0.1, 1, 33},
      {1, 150, 210, 1, 32, false, 0, 1, 70},
      {1, 100, 100, 1, 144, true, 0, 1, 40},
  };
  const Tf32Scope allowed(true);
  for (const DType dtype : dtypes) {
    for (const Sizes& n : cases) {
      if (has_kernels(dtype, n.width)) check(n, dtype);
    }
    // Every position of the mask's edge in a block.
    for (std::int64_t more = 0; more <= 33; ++more) check({1, 34, 34 + more, 1, 32, true}, dtype);
    for (std::int64_t window = 1; window <= 33; ++window) check({1, 100, 100, 1, 32, true, 0, 1, window}, dtype);
  }
}

TEST_CASE("attention on tensor cores: the same bits every time, in every layout", "[attention][cuda]") {
  if (!has_cuda()) return;
  const auto in_place = [](const Tensor& x) { return x; };
  // Rows of an odd number of elements, from an odd address on: no chunk can be read at once.
  const auto odd = [](const Tensor& x) {
    const Tensor wide = zeros({x.size(0), x.size(1), x.size(2), x.size(3) + 3}, x.dtype(), x.device());
    const Tensor part = view::slice(wide, 3, 1, 1 + x.size(3));
    copy_into(part, x);
    return part;
  };
  // Heads before rows.
  const auto turned = [](const Tensor& x) {
    return view::permute(contiguous(view::permute(x, {0, 2, 1, 3})), {0, 2, 1, 3});
  };
  const Tf32Scope allowed(true);
  for (const auto& [dtype, width] :
       {std::pair(DType::bf16, 48), std::pair(DType::bf16, 80), std::pair(DType::bf16, 144), std::pair(DType::f32, 48),
        std::pair(DType::f32, 80), std::pair(DType::f32, 112)}) {
    const Sizes n{2, 70, 77, 2, width, true, 0.2};
    Run first = run(n, dtype, 0.2, in_place);
    for (const auto& view : {std::function<Tensor(const Tensor&)>(in_place), std::function<Tensor(const Tensor&)>(odd),
                             std::function<Tensor(const Tensor&)>(turned)}) {
      Run other = run(n, dtype, 0.2, view);
      CHECK(same_bits(other.out, first.out));
      CHECK(same_bits(other.lse, first.lse));
      for (int i = 0; i < 3; ++i) CHECK(same_bits(other.gradients[i], first.gradients[i]));
    }
  }
}

TEST_CASE("attention on tensor cores: a packed gradient where its operand lay", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  for (const auto& [dtype, width] :
       {std::pair(DType::bf16, 32), std::pair(DType::bf16, 128), std::pair(DType::bf16, 160), std::pair(DType::f32, 64),
        std::pair(DType::f32, 128)}) {
    const Tensor qkv = noise({2, 70, 3 * 2 * width}, dtype, 1), dy = noise({2, 70, 2 * width}, dtype, 2);
    ops::Attention op;
    op.heads = 2, op.is_causal = true, op.p = 0.1, op.site = site;
    ops::Attention::Saved saved;
    op.forward(qkv, {}, ops::Needs(1), saved);
    const Tensor expected = op.backward(saved, clone(dy), ops::Needs(1))[0];
    CHECK(expected.storage() != qkv.storage());
    saved.qkv = clone(qkv);
    const auto* const storage = saved.qkv.storage().get();
    const Tensor in_place = op.backward(std::move(saved), dy, ops::Needs(1))[0];
    CHECK(in_place.storage().get() == storage);
    CHECK(same_bits(in_place, expected));
  }
}

TEST_CASE("attention on tensor cores: results that are not wanted are not written", "[attention][cuda]") {
  if (!has_cuda()) return;
  const Tf32Scope allowed(true);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const Sizes n{1, 40, 70, 2, 32, true};
  Run whole = run(n, dtype, 0.3, [](const Tensor& x) { return x; });
  const ops::ScaledDotProductAttention op{true, 0.3, 0, site};
  ops::ScaledDotProductAttention::Saved saved;
  CHECK(same_bits(op.forward(whole.q, whole.k, whole.v, {}, ops::Needs(0), saved), whole.out));  // no lse
  CHECK(!saved.lse.defined());
  for (int wanted = 0; wanted < 3; ++wanted) {
    saved = {whole.q, whole.k, whole.v, {}, whole.out, whole.lse};
    ops::Gradients alone = op.backward(std::move(saved), whole.dy, ops::Needs(1u << wanted));
    for (int i = 0; i < 3; ++i) CHECK(alone[i].defined() == (i == wanted));
    CHECK(same_bits(alone[wanted], whole.gradients[wanted]));
  }
  // Only the logarithms.
  const Tensor lse = zeros(whole.lse.shape(), DType::f32, cuda());
  launch(cuda(), [&](const Addresses& at) {
    kernels::AttentionArgs args;
    args.dtype = dtype, args.allows_tf32 = true, args.batch = 1, args.heads = 2, args.queries = 40, args.keys = 70,
    args.width = 32;
    args.is_causal = true, args.scale = 0.3;
    args.q = {at(whole.q), 40 * 64, 64, 32}, args.k = {at(whole.k), 70 * 64, 64, 32};
    args.v = {at(whole.v), 70 * 64, 64, 32}, args.lse = at(lse);
    kernels::attention_kernels(cuda()).forward(args, nullptr, 1);
  });
  CHECK(same_bits(lse, whole.lse));
}

TEST_CASE("attention on tensor cores: NaN and infinite scores reach the result", "[attention][cuda]") {
  if (!has_cuda()) return;
  const std::int64_t queries = 40, keys = 70, width = 16;
  const Tf32Scope allowed(true);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    const Tensor q = noise({1, queries, 1, width}, dtype, 1), k = noise({1, keys, 1, width}, dtype, 2);
    fill(view::slice(view::slice(k, 1, 50, 51), 3, 0, 1), bad);
    AttentionOptions options;
    options.causal = true;
    const Values out = to_host<double>(attention(q, k, noise({1, keys, 1, width}, dtype, 3), options));
    const Values query = to_host<double>(q);
    for (std::size_t t = 0; t < index(queries); ++t) {
      const bool is_seen = t + 30 >= 50 && !(std::isinf(bad) && query[16 * t] < 0);  // -infinity counts as nothing
      for (std::size_t d = 0; d < index(width); ++d) REQUIRE(std::isnan(out[16 * t + d]) == is_seen);
    }
  }
}

TEST_CASE("attention on tensor cores: which kernel it is", "[attention][cuda]") {
  kernels::AttentionProblem p;
  p.batch = 2, p.heads = 3, p.queries = 5, p.keys = 7;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t width : {1, 8, 15, 16, 20, 48, 64, 128, 144, 250, 256, 272}) {
      for (const bool allows_tf32 : {false, true}) {
        INFO(to_string(dtype) << " " << width << (allows_tf32 ? " TF32" : ""));
        p.dtype = dtype, p.width = width, p.allows_tf32 = allows_tf32;
        const bool is_half = dtype == DType::f16 || dtype == DType::bf16, is_full = dtype == DType::f32;
        const bool is_fitting = width % 16 == 0 && ((is_half && width <= 256) || (is_full && width <= 128));
        CHECK(kernels::is_tensor_core_attention(p) == (is_fitting && (is_half || allows_tf32)));
        const std::size_t elements = 2 * 3 * 5 * index(width), rows = 2 * 3 * 5;
        CHECK(kernels::cuda_attention_backward_bytes(p, 1) ==
              (is_fitting ? (4 * rows + 63) / 64 * 64 : 0) +
                  elements * size_of(dtype) * (is_half && !is_fitting ? 2 : 1));
        kernels::AttentionProblem with = p;
        with.has_documents = with.has_mask = true;
        CHECK(kernels::is_tensor_core_attention(with) == kernels::is_tensor_core_attention(p));
        CHECK(kernels::cuda_attention_backward_bytes(with, 1) == kernels::cuda_attention_backward_bytes(p, 1));
      }
    }
  }
  if (!has_cuda()) return;
  // Two keys with the probabilities 1 and c over their sum, and the values -(c rounded) and 1: the sum is zero only if
  // c was rounded.
  const Tf32Scope allowed(true);
  for (const DType dtype : dtypes) {
    const double rounded_c = dtype == DType::f32 ? 0x1.368p-1 : std::exp(-0.5);  // c to 11 bits
    for (const std::int64_t width : {16, 64, 96, 144, 200, 256, 20}) {
      INFO(to_string(dtype) << " " << width);
      const Tensor q = full({1, 1, 1, width}, 0, dtype, cuda()), k = full({1, 2, 1, width}, 0, dtype, cuda());
      const Tensor v = full({1, 2, 1, width}, 1, dtype, cuda());
      fill(view::slice(q, 3, 0, 1), 1);
      fill(view::slice(view::slice(k, 1, 1, 2), 3, 0, 1), -0.5);
      fill(view::slice(v, 1, 0, 1), -rounded_c);
      AttentionOptions options;
      options.causal = false, options.scale = 1;
      const bool is_rounded = width % 16 == 0 && has_kernels(dtype, width);
      for (const double y : to_host<double>(attention(q, k, v, options))) CHECK((y == 0) == is_rounded);
    }
  }
}
