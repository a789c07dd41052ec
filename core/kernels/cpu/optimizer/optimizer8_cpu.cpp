// 8-bit optimizer state on the CPU. Blocks are independent and a block's magnitude is a maximum, so neither threads nor
// variants change bits.

#include <algorithm>
#include <cmath>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/optimizer/adafactor_cpu.h>
#include <thimble/core/kernels/cpu/optimizer/parameter_run.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/optimizer8.h>
#include <thimble/core/kernels/shared/square_root.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace optimizer8_detail {

using Signed = quant::DynamicCode<true>;
using Unsigned = quant::DynamicCode<false>;

constexpr std::int64_t grain = 64;  // blocks of a thread
static_assert(state_block <= run_elements);

// A block's codes and its scale.
template <class Code>
THIMBLE_ALWAYS_INLINE void encode(const Code& code, const float* x, std::uint8_t* codes, float* scale, std::int64_t n) {
  const quant::BlockScale s = quant::block_scale(largest_bits(x, n), 1.0f, DType::f32);
  *scale = s.scale;
  if (!s.is_finite) return std::fill(codes, codes + n, std::uint8_t{0});
  encode_loop(
      code, x, [inverse = s.inverse](std::int64_t) { return inverse; }, codes, n);
}

template <class Code>
THIMBLE_ALWAYS_INLINE void decode(const Code& code, const std::uint8_t* codes, float scale, float* x, std::int64_t n) {
  decode_loop(
      code, codes, [scale](std::int64_t) { return scale; }, x, n);
}

struct AdamBlock {
  THIMBLE_ALWAYS_INLINE static void run(const AdamRule<float>& rule, float* __restrict p, const float* g,
                                        std::uint8_t* __restrict first_codes, float* first_scale,
                                        std::uint8_t* __restrict second_codes, float* second_scale, std::int64_t n) {
    const Signed with_sign{&quant::dynamic_table(true)};
    const Unsigned without{&quant::dynamic_table(false)};
    alignas(64) float m[state_block], v[state_block] = {}, root[state_block];
    decode(with_sign, first_codes, *first_scale, m, n);
    decode(without, second_codes, *second_scale, v, n);
    for (std::int64_t i = 0; i < n; ++i) rule.moments(p[i], g[i], m[i], v[i]);
    square_roots(v, root, n);
    for (std::int64_t i = 0; i < n; ++i) p[i] = rule.updated(p[i], m[i], root[i]);
    encode(with_sign, m, first_codes, first_scale, n);
    encode(without, v, second_codes, second_scale, n);
    for (std::int64_t i = 0; i < n; ++i) second_codes[i] = not_lost(second_codes[i], v[i]);
  }
};

struct MomentumBlock {
  THIMBLE_ALWAYS_INLINE static void run(const SgdRule<float>& rule, float* __restrict p, const float* g,
                                        std::uint8_t* __restrict codes, float* scale, std::int64_t n) {
    const Signed code{&quant::dynamic_table(true)};
    alignas(64) float m[state_block];
    decode(code, codes, *scale, m, n);
    for (std::int64_t i = 0; i < n; ++i) p[i] = rule.with_momentum(p[i], g[i], m[i]);
    encode(code, m, codes, scale, n);
  }
};

// f(block, first value, count) for all blocks of n values.
template <class F>
void for_blocks(std::int64_t n, F&& f) {
  parallel_for((n + state_block - 1) / state_block, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      f(block, block * state_block, std::min(state_block, n - block * state_block));
    }
  });
}

void adam8(const Adam8Args& args) {
  const AdamArgs& a = args.update;
  const AdamRule<float> rule(a);
  for_blocks(a.n, [&](std::int64_t block, std::int64_t at, std::int64_t n) {
    ParameterRun<float> p(a.parameter, a.dtype, a.narrow, at, n);
    ElementRun<float> g(a.gradient, a.gradient_dtype, at, n);
    run_variant<AdamBlock>(rule, p.values(), static_cast<const float*>(g.values()),
                           static_cast<std::uint8_t*>(a.first_moment) + at, args.first_scales + block,
                           static_cast<std::uint8_t*>(a.second_moment) + at, args.second_scales + block, n);
    p.store();
  });
}

void momentum8(const Momentum8Args& args) {
  const SgdArgs& a = args.update;
  const SgdRule<float> rule(a);
  for_blocks(a.n, [&](std::int64_t block, std::int64_t at, std::int64_t n) {
    ParameterRun<float> p(a.parameter, a.dtype, a.narrow, at, n);
    ElementRun<float> g(a.gradient, a.gradient_dtype, at, n);
    run_variant<MomentumBlock>(rule, p.values(), static_cast<const float*>(g.values()),
                               static_cast<std::uint8_t*>(a.momentum_buffer) + at, args.scales + block, n);
    p.store();
  });
}

void adam8_all(std::span<const Adam8Args> list) {
  for (const Adam8Args& args : list) adam8(args);
}

void momentum8_all(std::span<const Momentum8Args> list) {
  for (const Momentum8Args& args : list) momentum8(args);
}

void adafactor_all(std::span<const AdafactorArgs> list) {
  for (const AdafactorArgs& args : list) adafactor_on_cpu(args);
}

}  // namespace optimizer8_detail

const Optimizer8Kernels optimizer8_cpu{
    .adam8 = optimizer8_detail::adam8_all,
    .momentum8 = optimizer8_detail::momentum8_all,
    .adafactor = optimizer8_detail::adafactor_all,
};

const Optimizer8Kernels& optimizer8_kernels(Device device) {
  return table_for(device, "optimizer", optimizer8_cpu, optimizer8_cuda);
}

}  // namespace thimble::kernels
