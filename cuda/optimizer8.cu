// 8-bit optimizer state on CUDA devices: a team for each block of 256 values, each thread with its own, so that the
// state exists in registers alone. The bits are those of the CPU.

#include <cmath>

#include <thimble/core/kernels/optimizer8.h>
#include <thimble/core/kernels/update_rule.h>
#include <thimble/cuda/adafactor.h>
#include <thimble/cuda/dynamic_code.h>
#include <thimble/cuda/element.h>
#include <thimble/cuda/live.h>

namespace thimble::kernels {
namespace optimizer8_cuda_detail {

using namespace cuda_kernels;

using Signed = quant::DynamicCode<true>;
using Unsigned = quant::DynamicCode<false>;

constexpr int team_threads = 64;

// What all blocks of an update have: parameter and gradient.
struct Arrays {
  std::int64_t n;
  void* p;
  DType dtype;
  const void* g;
  DType gradient_dtype;
  template <class Args>
  explicit Arrays(const Args& a)
      : n(a.n), p(a.parameter), dtype(a.dtype), g(a.gradient), gradient_dtype(a.gradient_dtype) {}

  std::int64_t blocks() const { return (n + state_block - 1) / state_block; }
  THIMBLE_DEVICE float parameter(std::int64_t i) const { return load<float>(p, dtype, i); }
  THIMBLE_DEVICE float gradient(std::int64_t i) const { return load<float>(g, gradient_dtype, i); }
  THIMBLE_DEVICE void set(std::int64_t i, float value) const { store<float>(p, dtype, i, value); }
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

struct AdamBlock {
  static constexpr int threads = team_threads;
  Arrays arrays;
  State<Signed> first;
  State<Unsigned> second;
  Live<AdamRule<float>> live_rule;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t block) const {
    constexpr int own = static_cast<int>(state_block) / Team::size;
    const AdamRule<float> rule = live_rule.get();
    const std::int64_t begin = block * state_block + team.rank();
    const float first_scale = first.scales[block], second_scale = second.scales[block];
    float m[own], v[own];
    std::uint32_t most_m = 0, most_v = 0;
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
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= arrays.n) break;
      first.codes[i] = State<Signed>::encode(of_m, m[k]);
      second.codes[i] = not_lost(State<Unsigned>::encode(of_v, v[k]), v[k]);
    }
  }
};

struct MomentumBlock {
  static constexpr int threads = team_threads;
  Arrays arrays;
  State<Signed> momentum;
  Live<SgdRule<float>> live_rule;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t block) const {
    constexpr int own = static_cast<int>(state_block) / Team::size;
    const SgdRule<float> rule = live_rule.get();
    const std::int64_t begin = block * state_block + team.rank();
    const float scale = momentum.scales[block];
    float m[own];
    std::uint32_t most = 0;
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= arrays.n) break;
      m[k] = momentum.decode(i, scale);
      arrays.set(i, rule.with_momentum(arrays.parameter(i), arrays.gradient(i), m[k]));
      most = larger_of(most, magnitude_bits(m[k]));
    }
    const quant::BlockScale s = momentum.rescale(team, block, most);
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= arrays.n) break;
      momentum.codes[i] = State<Signed>::encode(s, m[k]);
    }
  }
};

void adam8(const Adam8Args& args) {
  const AdamArgs& a = args.update;
  const Arrays arrays(a);
  for_each_team(arrays.blocks(), AdamBlock{arrays,
                                           {static_cast<std::uint8_t*>(a.first_moment), args.first_scales},
                                           {static_cast<std::uint8_t*>(a.second_moment), args.second_scales},
                                           live(a, [](const AdamArgs& now) { return AdamRule<float>(now); })});
}

void momentum8(const Momentum8Args& args) {
  const SgdArgs& a = args.update;
  const Arrays arrays(a);
  for_each_team(arrays.blocks(), MomentumBlock{arrays,
                                               {static_cast<std::uint8_t*>(a.momentum_buffer), args.scales},
                                               live(a, [](const SgdArgs& now) { return SgdRule<float>(now); })});
}

constexpr Optimizer8Kernels table{adam8, momentum8, adafactor_on_cuda};

}  // namespace optimizer8_cuda_detail

const Optimizer8Kernels* const optimizer8_cuda = &optimizer8_cuda_detail::table;

}  // namespace thimble::kernels
