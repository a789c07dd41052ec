// 8-bit optimizer state on CUDA devices: a team for each block of 256 values, each thread with its own, so that the
// state exists in registers alone. The bits are those of the CPU.

#include <cmath>

#include <thimble/core/kernels/optimizer8.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/warp.h>
#include <thimble/cuda/optimizer/adafactor.h>
#include <thimble/cuda/optimizer/parameter.h>
#include <thimble/cuda/optimizer/update_list.h>
#include <thimble/cuda/runtime/dynamic_code.h>
#include <thimble/cuda/runtime/live.h>

namespace thimble::kernels {
namespace optimizer8_cuda_detail {

using namespace cuda_kernels;

using Signed = quant::DynamicCode<true>;
using Unsigned = quant::DynamicCode<false>;

constexpr int team_threads = 64;

// Parameter and gradient.
struct Arrays {
  std::int64_t n;
  Parameter p;
  const void* g;
  DType gradient_dtype;

  THIMBLE_DEVICE float parameter(std::int64_t i) const { return p.get<float>(i); }
  THIMBLE_DEVICE float gradient(std::int64_t i) const { return load<float>(g, gradient_dtype, i); }
  THIMBLE_DEVICE void set(std::int64_t i, float value) const { p.set<float>(i, value); }
};

// What changes from step to step.
template <class Rule>
struct Step {
  Rule rule;
  RandomSite site;
};

// Codes of a moment, and the scales of their blocks.
template <class Code>
struct State {
  std::uint8_t* codes;
  float* scales;

  template <class Team>
  THIMBLE_DEVICE quant::BlockScale rescale(Team& team, std::int64_t block, std::uint32_t own_magnitude) const {
    const quant::BlockScale s = quant::block_scale(team.max(own_magnitude), Code::largest, DType::f32);
    if (team.rank() == 0) scales[block] = s.scale;  // all threads have read it: max() is a barrier
    return s;
  }
  THIMBLE_DEVICE float decode(std::int64_t i, float scale) const {
    return MakeCode<Code>::make().decode(codes[i]) * scale;
  }
  THIMBLE_DEVICE static std::uint8_t encode(const quant::BlockScale& s, float x) {
    return s.is_finite ? MakeCode<Code>::make().encode(x * s.inverse) : std::uint8_t{0};
  }
};

THIMBLE_DEVICE inline std::uint32_t magnitude_bits(float x) { return bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu; }

// Blocks of the parameters of a launch; `Rule` says what of.
template <class Rule>
struct Blocks {
  static constexpr int threads = team_threads;
  ParameterKind kind;
  DType gradient_dtype;
  Live<Step<Rule>> live_step;
  UpdateTable table;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const int at = table.index_of(index);
    const UpdateEntry e = table.entries[at];
    const Step<Rule> step = live_step.get();
    const Parameter parameter(kind, e.p, e.extra, step.site);
    update(team, step.rule, {e.n, parameter, e.g, gradient_dtype}, e, table.unit_of(index, at));
  }

  template <class Team>
  THIMBLE_DEVICE static void update(Team& team, const AdamRule<float>& rule, const Arrays& arrays, const UpdateEntry& e,
                                    std::int64_t block) {
    constexpr int own = static_cast<int>(state_block) / Team::size;
    const State<Signed> first{static_cast<std::uint8_t*>(e.first), e.first_scales};
    const State<Unsigned> second{static_cast<std::uint8_t*>(e.second), e.second_scales};
    const std::int64_t begin = block * state_block + team.rank();
    const float first_scale = first.scales[block], second_scale = second.scales[block];
    float m[own], v[own];
    std::uint32_t most_m = 0, most_v = 0;
    THIMBLE_UNROLL
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= arrays.n) break;
      m[k] = first.decode(i, first_scale), v[k] = second.decode(i, second_scale);
      const float p = arrays.parameter(i);
      rule.moments(p, arrays.gradient(i), m[k], v[k]);
      arrays.set(i, rule.updated(p, m[k], std::sqrt(v[k])));
      most_m = larger_of(most_m, magnitude_bits(m[k])), most_v = larger_of(most_v, magnitude_bits(v[k]));
    }
    const quant::BlockScale of_m = first.rescale(team, block, most_m), of_v = second.rescale(team, block, most_v);
    THIMBLE_UNROLL
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= arrays.n) break;
      first.codes[i] = State<Signed>::encode(of_m, m[k]);
      second.codes[i] = not_lost(State<Unsigned>::encode(of_v, v[k]), v[k]);
    }
  }

  template <class Team>
  THIMBLE_DEVICE static void update(Team& team, const SgdRule<float>& rule, const Arrays& arrays, const UpdateEntry& e,
                                    std::int64_t block) {
    constexpr int own = static_cast<int>(state_block) / Team::size;
    const State<Signed> momentum{static_cast<std::uint8_t*>(e.first), e.first_scales};
    const std::int64_t begin = block * state_block + team.rank();
    const float scale = momentum.scales[block];
    float m[own];
    std::uint32_t most = 0;
    THIMBLE_UNROLL
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= arrays.n) break;
      m[k] = momentum.decode(i, scale);
      arrays.set(i, rule.with_momentum(arrays.parameter(i), arrays.gradient(i), m[k]));
      most = larger_of(most, magnitude_bits(m[k]));
    }
    const quant::BlockScale s = momentum.rescale(team, block, most);
    THIMBLE_UNROLL
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= arrays.n) break;
      momentum.codes[i] = State<Signed>::encode(s, m[k]);
    }
  }
};

std::int64_t blocks_of(std::int64_t n) { return (n + state_block - 1) / state_block; }

template <class Rule, class Args>
void launch_blocks(const Args& a, const UpdateTable& table) {
  static_assert(sizeof(Blocks<Rule>) <= most_argument_bytes);
  const auto make = [](const Args& now) { return Step<Rule>{Rule(now), now.narrow.site}; };
  for_each_team(table.teams, Blocks<Rule>{ParameterKind(a), a.gradient_dtype, live(a, make), table});
}

void adam8(std::span<const Adam8Args> list) {
  for_each_table(list, blocks_of,
                 [](const Adam8Args& a, const UpdateTable& table) { launch_blocks<AdamRule<float>>(a.update, table); });
}

void momentum8(std::span<const Momentum8Args> list) {
  for_each_table(list, blocks_of, [](const Momentum8Args& a, const UpdateTable& table) {
    launch_blocks<SgdRule<float>>(a.update, table);
  });
}

constexpr Optimizer8Kernels table{adam8, momentum8, adafactor_on_cuda};

}  // namespace optimizer8_cuda_detail

const Optimizer8Kernels* const optimizer8_cuda = &optimizer8_cuda_detail::table;

}  // namespace thimble::kernels
