// The CPU's attention kernels against their reference: sizes around the tiles, every instruction set, dtypes, masks,
// dropout, layouts; and bits do not depend on the thread count.

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/kernels/cpu/attention/attention_cpu.h>

#include "references.h"
#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/near.h"

using namespace kernel_test;

namespace {

struct AttentionCase {
  std::int64_t batch, heads, queries, keys, width;
  bool is_causal;
  double dropout = 0;
  DType dtype = DType::f32;
  std::int64_t group = 1;
  std::int64_t window = 0;
  enum class Mask { none, keys, all, added, documents } mask = Mask::none;  // keys: equal for all queries
};

std::string describe(const AttentionCase& c) {
  return std::string(to_string(c.dtype)) + " B " + std::to_string(c.batch) + " H " + std::to_string(c.heads) + " by " +
         std::to_string(c.group) + " T " + std::to_string(c.queries) + " S " + std::to_string(c.keys) + " D " +
         std::to_string(c.width) + (c.is_causal ? " causal" : "") + " p " + std::to_string(c.dropout) + " window " +
         std::to_string(c.window) + " mask " + std::to_string(static_cast<int>(c.mask));
}

// Operands, results and gradients of one problem. q, k and v are thirds of rows of 3 H D elements, from an address
// without vector alignment on.
struct AttentionRun {
  explicit AttentionRun(const AttentionCase& c)
      : channels(c.heads * c.width),
        q(c.dtype, c.batch * c.queries * 3 * channels + 1, 1),
        kv(c.dtype, c.batch * c.keys * 3 * channels + 1, 2),
        dout(c.dtype, c.batch * c.queries * channels, 3),
        out(c.dtype, dout.count(), 4),
        lse(c.dtype == DType::f64 ? DType::f64 : DType::f32, c.batch * c.heads * c.queries, 5),
        dq(c.dtype, q.count(), 6),
        dkv(c.dtype, kv.count(), 7),
        added(c.dtype, c.heads * c.queries * c.keys, 8) {
    AttentionArgs& f = forward;
    f.dtype = c.dtype;
    f.batch = c.batch, f.heads = c.heads, f.queries = c.queries, f.keys = c.keys, f.width = c.width;
    f.group = c.group;
    f.is_causal = c.is_causal;
    f.scale = 1.5 / std::sqrt(static_cast<double>(c.width));
    f.has_dropout = c.dropout > 0;
    f.threshold = static_cast<std::uint32_t>(c.dropout * 0x1p32);
    f.keep_scale = 1 / (1 - c.dropout);
    f.site = {11, 3, 5, 0x5eed5eedu};
    f.q = {at(q, 1), c.queries * 3 * channels, 3 * channels, c.width};
    f.k = {at(kv, 1 + channels), c.keys * 3 * channels, 3 * channels, c.width};
    f.v = {at(kv, 1 + 2 * channels), c.keys * 3 * channels, 3 * channels, c.width};
    f.out = {at(out, 0), c.queries * channels, channels, c.width};
    f.lse = lse.bytes.data();
    set_mask(c);
    AttentionGradArgs& g = backward;
    static_cast<AttentionProblem&>(g) = f;
    g.out = {f.out.data, f.out.batch, f.out.row, f.out.head};
    g.dout = {at(dout, 0), f.out.batch, f.out.row, f.out.head};
    g.lse = f.lse;
    g.dq = {at(dq, 1), f.q.batch, f.q.row, f.q.head};
    g.dk = {at(dkv, 1 + channels), f.k.batch, f.k.row, f.k.head};
    g.dv = {at(dkv, 1 + 2 * channels), f.v.batch, f.v.row, f.v.head};
  }
  AttentionRun(const AttentionRun&) = delete;

  void compute(int threads) {
    set_thread_count(threads);
    Workspace forward_space(attention_cpu.forward_bytes(forward, threads));
    attention_cpu.forward(forward, forward_space.get(), threads);
    REQUIRE(forward_space.is_intact());
    Workspace backward_space(attention_cpu.backward_bytes(backward, threads));
    attention_cpu.backward(backward, backward_space.get(), threads);
    REQUIRE(backward_space.is_intact());
  }
  void compute_reference() {
    attention_reference(forward);
    attention_grad_reference(backward);
  }

  // Under `all` query 2 sees nothing; under `keys` the last sample sees no key of its first two blocks.
  void set_mask(const AttentionCase& c) {
    AttentionArgs& f = forward;
    f.window = c.window;
    f.has_mask = c.mask != AttentionCase::Mask::none && c.mask != AttentionCase::Mask::documents;
    f.has_documents = c.mask == AttentionCase::Mask::documents;
    if (c.mask == AttentionCase::Mask::keys) {
      for (std::int64_t i = 0; i < c.batch * c.keys; ++i) {
        const bool is_last = i / c.keys == c.batch - 1 && c.keys > 130;
        sees.push_back(is_last ? i % c.keys >= 130 : i % c.keys < c.keys - 3 || i % 2 == 0);
      }
      f.mask = {sees.data(), DType::boolean, c.keys, 0, 0, 1};
    } else if (c.mask == AttentionCase::Mask::all) {
      for (std::int64_t i = 0; i < c.batch * c.queries * c.keys; ++i) {
        sees.push_back(i / c.keys % c.queries != 2 && i * i % 7 != 1);
      }
      f.mask = {sees.data(), DType::boolean, c.queries * c.keys, 0, c.keys, 1};
    } else if (c.mask == AttentionCase::Mask::added) {
      f.mask = {added.bytes.data(), c.dtype, 0, c.queries * c.keys, c.keys, 1};
    } else if (f.has_documents) {
      for (std::int64_t i = 0; i < c.batch * c.keys; ++i)
        documents.push_back(static_cast<std::int32_t>(i % c.keys / 41 * 5));
      f.documents = documents.data();
      f.documents_batch = c.keys;
    }
  }

  static void* at(Data& data, std::int64_t element) { return element_at(data.bytes.data(), data.dtype, element); }

  std::int64_t channels;
  Data q, kv, dout, out, lse, dq, dkv, added;
  std::vector<std::uint8_t> sees;
  std::vector<std::int32_t> documents;
  AttentionArgs forward;
  AttentionGradArgs backward;
};

double worst_error(const Data& a, const Data& b) { return thimble_test::largest_error(a.values(), b.values()); }

// Largest error relative to 1 + |value|: a few roundings, of the sums and at the store.
double tolerance(DType dtype) {
  return dtype == DType::f64 ? 2e-14 : dtype == DType::f32 ? 6e-6 : dtype == DType::f16 ? 2e-3 : 1.6e-2;
}

void check_case(const AttentionCase& c) {
  AttentionRun expected(c);
  expected.compute_reference();
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set) << " " << describe(c));
    AttentionRun one(c);
    one.compute(1);
    CHECK(worst_error(one.out, expected.out) < tolerance(c.dtype));
    CHECK(worst_error(one.lse, expected.lse) < tolerance(c.dtype == DType::f64 ? DType::f64 : DType::f32));
    CHECK(worst_error(one.dq, expected.dq) < tolerance(c.dtype));
    CHECK(worst_error(one.dkv, expected.dkv) < tolerance(c.dtype));
    AttentionRun several(c);
    several.compute(2);
    CHECK(several.out.bytes == one.out.bytes);
    CHECK(several.lse.bytes == one.lse.bytes);
    CHECK(several.dq.bytes == one.dq.bytes);
    CHECK(several.dkv.bytes == one.dkv.bytes);
  }
}

}  // namespace

TEST_CASE("attention kernels: the reference's values, and any thread count's bits", "[attention]") {
  Settings settings;
  const AttentionCase cases[] = {
      {1, 1, 1, 1, 1, true},
      {2, 3, 1, 1, 64, false},
      {1, 2, 1, 70, 64, true},     // one query, as in generation
      {1, 2, 7, 3, 5, false},      // more queries than keys
      {2, 2, 33, 33, 16, true},    // one past a panel
      {1, 3, 64, 64, 64, true},    // whole tiles
      {1, 3, 129, 129, 64, true},  // one past two blocks
      {2, 2, 97, 161, 64, true},   // the last queries of more keys
      {1, 2, 97, 161, 64, false},
      {1, 1, 70, 70, 20, true},  // D is no multiple of any set's lanes
      {1, 2, 40, 100, 17, false},
      {1, 1, 66, 66, 80, true},
      {1, 1, 66, 66, 100, false},
      {1, 1, 35, 67, 129, true},
      {2, 2, 66, 66, 64, true, 0.3},
      {1, 3, 50, 131, 24, true, 0.1},  // rows of the mask start between blocks of random words
      {1, 2, 33, 65, 7, false, 0.5},
      {2, 2, 70, 70, 20, true, 0.3, DType::f64},
      {1, 2, 35, 67, 33, false, 0, DType::f64},
      {2, 2, 70, 70, 64, true, 0, DType::bf16},
      {1, 2, 35, 67, 33, false, 0.2, DType::bf16},
      {1, 2, 66, 66, 20, true, 0.2, DType::f16},
      {2, 6, 70, 70, 20, true, 0.2, DType::f32, 3},  // heads share keys and values
      {1, 4, 35, 67, 33, false, 0, DType::f64, 4},
      {1, 4, 66, 66, 16, true, 0, DType::bf16, 2},
      {1, 2, 530, 530, 20, true},  // panels in groups
  };
  for (const AttentionCase& c : cases) check_case(c);
}

TEST_CASE("attention kernels: windows, masks and documents", "[attention]") {
  using Mask = AttentionCase::Mask;
  Settings settings;
  const AttentionCase cases[] = {
      {1, 2, 150, 150, 16, true, 0, DType::f32, 1, 1},
      {1, 2, 200, 200, 64, true, 0, DType::f32, 1, 70},
      {1, 2, 70, 201, 20, true, 0.2, DType::f32, 1, 40},
      {1, 2, 150, 520, 20, true, 0.2, DType::f32, 2, 100},
      {1, 1, 150, 150, 24, false, 0, DType::f32, 1, 33},
      {1, 1, 60, 60, 24, false, 0, DType::f32, 1, 1000},
      {2, 2, 140, 140, 16, false, 0, DType::f32, 1, 0, Mask::keys},
      {2, 2, 33, 200, 16, false, 0.1, DType::f32, 1, 0, Mask::keys},
      {2, 2, 70, 515, 16, false, 0, DType::f32, 1, 0, Mask::keys},
      {2, 2, 70, 70, 20, true, 0, DType::f32, 1, 0, Mask::all},
      {1, 2, 9, 5, 20, false, 0, DType::f32, 1, 0, Mask::all},
      {2, 4, 66, 66, 16, true, 0.2, DType::f32, 2, 0, Mask::added},
      {2, 2, 130, 130, 16, false, 0, DType::f32, 1, 0, Mask::documents},
      {2, 4, 130, 130, 16, true, 0.2, DType::f32, 4, 20, Mask::documents},
      {2, 2, 50, 130, 16, true, 0, DType::f32, 1, 0, Mask::documents},
      {1, 2, 70, 70, 20, true, 0, DType::f64, 1, 9, Mask::added},
      {2, 2, 70, 140, 20, false, 0, DType::f64, 1, 0, Mask::keys},
      {2, 2, 70, 70, 20, true, 0, DType::bf16, 1, 0, Mask::added},
      {2, 2, 70, 70, 20, true, 0, DType::f16, 1, 30, Mask::all},
  };
  for (const AttentionCase& c : cases) check_case(c);
}

TEST_CASE("attention kernels: heads and panels that threads share unevenly", "[attention]") {
  Settings settings;
  const AttentionCase c{3, 3, 200, 200, 64, true, 0.2};
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    AttentionRun one(c);
    one.compute(1);
    for (const int threads : {2, 3, 7}) {
      AttentionRun several(c);
      CHECK(attention_cpu.forward_bytes(several.forward, threads) ==
            static_cast<std::size_t>(threads) * attention_cpu.forward_bytes(several.forward, 1));
      several.compute(threads);
      CHECK(several.out.bytes == one.out.bytes);
      CHECK(several.dq.bytes == one.dq.bytes);
      CHECK(several.dkv.bytes == one.dkv.bytes);
    }
  }
}

TEST_CASE("attention kernels: AVX2 and AVX-512 agree bitwise forward and in dq", "[attention]") {
  if (!is_supported(Isa::avx512)) return thimble_test::skip("AVX-512 is not on this machine");
  Settings settings;
  for (const double dropout : {0.0, 0.3}) {
    const AttentionCase c{2, 2, 150, 150, 40, true, dropout};
    AttentionRun narrow(c), wide(c);
    set_isa(Isa::avx2);
    narrow.compute(1);
    set_isa(Isa::avx512);
    wide.compute(1);
    CHECK(narrow.out.bytes == wide.out.bytes);
    CHECK(narrow.lse.bytes == wide.lse.bytes);
    CHECK(narrow.dq.bytes == wide.dq.bytes);
  }
}

TEST_CASE("attention kernels: results that are not wanted are not written", "[attention]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    AttentionRun whole({1, 2, 40, 70, 20, true}), part({1, 2, 40, 70, 20, true});
    whole.compute(1);
    const Data dkv = part.dkv, lse = part.lse;
    part.forward.lse = nullptr;
    Workspace forward_space(attention_cpu.forward_bytes(part.forward, 1));
    attention_cpu.forward(part.forward, forward_space.get(), 1);
    CHECK(part.lse.bytes == lse.bytes);
    CHECK(part.out.bytes == whole.out.bytes);
    part.lse = whole.lse;
    part.backward.lse = part.lse.bytes.data();
    part.backward.dk.data = part.backward.dv.data = nullptr;
    Workspace backward_space(attention_cpu.backward_bytes(part.backward, 1));
    attention_cpu.backward(part.backward, backward_space.get(), 1);
    CHECK(part.dkv.bytes == dkv.bytes);
    CHECK(part.dq.bytes == whole.dq.bytes);
  }
}

TEST_CASE("attention kernels: keys and values that are one row, spread out", "[attention]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    AttentionRun spread({1, 2, 40, 70, 20, true}), expected({1, 2, 40, 70, 20, true});
    for (AttentionRun* run : {&spread, &expected}) {
      run->forward.k.row = run->forward.v.row = 0;
      run->backward.k.row = run->backward.v.row = 0;
    }
    spread.compute(2);
    expected.compute_reference();
    CHECK(worst_error(spread.out, expected.out) < tolerance(DType::f32));
    CHECK(worst_error(spread.dq, expected.dq) < tolerance(DType::f32));
    CHECK(worst_error(spread.dkv, expected.dkv) < tolerance(DType::f32));
  }
}

TEST_CASE("attention kernels: NaN and infinite scores reach the result", "[attention]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    for (const double bad : {std::nan(""), std::nan("1"), static_cast<double>(INFINITY)}) {
      AttentionRun run({1, 1, 40, 70, 16, true});
      std::vector<double> k = run.kv.values();
      k[static_cast<std::size_t>(1 + 16 + 48 * 50)] = bad;  // element 0 of key 50
      store_f64(k.data(), run.kv.bytes.data(), DType::f32, 1, run.kv.count());
      run.compute(1);
      const std::vector<double> out = run.out.values(), q = run.q.values();
      for (std::size_t t = 0; t < 40; ++t) {
        const bool is_seen = t + 30 >= 50 && !(std::isinf(bad) && q[1 + 48 * t] < 0);  // -infinity counts as nothing
        INFO("query " << t << " q " << q[1 + 48 * t] << " key element " << bad);
        for (std::size_t d = 0; d < 16; ++d) CHECK(std::isnan(out[16 * t + d]) == is_seen);
      }
    }
  }
}

TEST_CASE("attention kernels: the exponential of what is at most 0", "[attention]") {
  using namespace attention_detail;
  double worst_fused = 0, worst_plain = 0;
  for (std::uint32_t bits = 0x80000000u; bits < 0xC2ADF000u; bits += 4099) {  // -0 .. -86.97
    const float x = math::detail::from_bits(bits);
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(rounded, 2.0f)) - static_cast<double>(rounded);
    worst_fused = thimble_test::worse(worst_fused, std::abs(static_cast<double>(exp_below<true>(x)) - exact) / ulp);
    worst_plain = thimble_test::worse(worst_plain, std::abs(static_cast<double>(exp_below<false>(x)) - exact) / ulp);
  }
  CHECK(worst_fused < 1);
  CHECK(worst_plain < 1);
  for (const float zero : {-87.0f, -100.0f, -1e30f, -INFINITY}) {
    CHECK(exp_below<true>(zero) == 0);
    CHECK(exp_below<false>(zero) == 0);
  }
  CHECK(exp_below<true>(-0.0f) == 1);
  CHECK(exp_below<false>(0.0f) == 1);
  CHECK(std::isnan(exp_below<true>(NAN)));
  CHECK(std::isnan(exp_below<false>(NAN)));
}
