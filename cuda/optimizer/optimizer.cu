// Optimizer updates on CUDA devices. One launch updates many parameters; a team takes a range of one, or a block of its
// 8-bit moments, which are decoded only in registers.

#include <algorithm>
#include <cmath>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/cuda/kernel/dynamic_code.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/step_argument.h>
#include <thimble/cuda/kernel/words.h>
#include <thimble/cuda/optimizer/parameter.h>

namespace thimble::kernels {
namespace optimizer_cuda_detail {

using namespace cuda_kernels;

// Shared by the parameters of a launch.
struct Kind {
  ParameterKind parameter;
  DType gradient_dtype, state_dtype;
  template <class Args>
  explicit Kind(const Args& a) : parameter(a), gradient_dtype(a.gradient_dtype), state_dtype(a.state_dtype) {}
};

// Values that change from step to step.
template <class Rule>
struct Step {
  Rule rule;
  RandomSite site;
};

// Returns an element's new value and updates the moments that the rule has.
template <class Rule, class T>
THIMBLE_DEVICE T updated(const Rule& rule, T p, T g, T& first, T& second) {
  if constexpr (Rule::moments == 0) {
    return rule.updated(p, g);
  } else if constexpr (Rule::moments == 1) {
    rule.update(p, g, first);
  } else {
    rule.advance(p, g, first, second);
    rule.update(p, first, std::sqrt(second));
  }
  return p;
}

template <class Rule, class T>
struct Updates {
  static constexpr int threads = 256;
  Kind kind;
  StepArgument<Step<Rule>> step_argument;
  UpdateTable table;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const Step<Rule>& step = step_argument.get();
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const Parameter parameter(kind.parameter, entry.p, entry.extra, step.site);
    const Array m{entry.first.values, kind.state_dtype}, v{entry.second.values, kind.state_dtype};
    const std::int64_t begin = table.unit_of(index, at) * update_stretch;
    const std::int64_t end = begin + update_stretch < entry.n ? begin + update_stretch : entry.n;
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) {
      T first = 0, second = 0;
      if constexpr (Rule::moments >= 1) first = m.get<T>(i);
      if constexpr (Rule::moments >= 2) second = v.get<T>(i);
      const T gradient = load<T>(entry.g, kind.gradient_dtype, i);
      const T value = updated(step.rule, parameter.get<T>(i), gradient, first, second);
      if constexpr (Rule::moments >= 1) m.set<T>(i, first);
      if constexpr (Rule::moments >= 2) v.set<T>(i, second);
      parameter.set<T>(i, value);
    }
  }
};

// The same of f32, f16 and bf16 arrays that begin at multiples of 16 bytes: eight neighbours a thread.
template <class Rule>
struct UpdatesOfEights {
  static constexpr int threads = 256;
  Kind kind;
  StepArgument<Step<Rule>> step_argument;
  UpdateTable table;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const Step<Rule>& step = step_argument.get();
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const Parameter parameter(kind.parameter, entry.p, entry.extra, step.site);
    const std::int64_t begin = table.unit_of(index, at) * update_stretch;
    const std::int64_t end = begin + update_stretch < entry.n ? begin + update_stretch : entry.n;
    for (std::int64_t i = begin + 8 * team.rank(); i < end; i += 8 * Team::size) {
      Eights p, g, first{}, second{};
      read_eights(entry.g, kind.gradient_dtype, i, entry.n, g);
      parameter.get_eights(i, entry.n, p);
      if constexpr (Rule::moments >= 1) read_eights(entry.first.values, kind.state_dtype, i, entry.n, first);
      if constexpr (Rule::moments >= 2) read_eights(entry.second.values, kind.state_dtype, i, entry.n, second);
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) p[e] = updated(step.rule, p[e], g[e], first[e], second[e]);
      if constexpr (Rule::moments >= 1) write_eights(entry.first.values, kind.state_dtype, i, entry.n, first);
      if constexpr (Rule::moments >= 2) write_eights(entry.second.values, kind.state_dtype, i, entry.n, second);
      parameter.set_eights(i, entry.n, p);
    }
  }
};

// Whether a launch can take eights.
template <class Args>
bool goes_in_eights(const Args& a, const UpdateTable& table) {
  const bool has_words = is_word_dtype(a.state_dtype) || a.state_dtype == DType::u8;
  if (!is_word_dtype(a.dtype) || !is_word_dtype(a.gradient_dtype) || !has_words) return false;
  const bool has_tensor = form_of(a.narrow) != NarrowForm::stochastic;
  return all_of(table, [&](const UpdateEntry& e) {
    return are_aligned({e.p, e.g, e.first.values, e.second.values, has_tensor ? e.extra.tensor : nullptr});
  });
}

THIMBLE_DEVICE inline std::uint32_t magnitude_bits(float x) { return bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu; }

// Codes of a moment, and the scales of their blocks.
template <bool is_first>
struct Codes {
  using Code = quant::DynamicCode<is_first>;
  std::uint8_t* codes;
  float* scales;

  THIMBLE_DEVICE explicit Codes(const MomentArgs& m) : codes(static_cast<std::uint8_t*>(m.values)), scales(m.scales) {}
  template <class Team>
  THIMBLE_DEVICE quant::BlockScale rescale(Team& team, std::int64_t block, std::uint32_t own_magnitude) const {
    const quant::BlockScale s = quant::block_scale(team.max(own_magnitude), Code::largest, DType::f32);
    if (team.rank() == 0) scales[block] = s.scale;  // max() is a barrier, so all threads have read the old scale
    return s;
  }
  THIMBLE_DEVICE float decode(std::int64_t i, float scale) const {
    return MakeCode<Code>::make().decode(codes[i]) * scale;
  }
  THIMBLE_DEVICE void encode(std::int64_t i, const quant::BlockScale& s, float x) const { codes[i] = code_of(s, x); }

  /// Eight neighbours from a multiple of 8; elements beyond the end are arbitrary and not written.
  THIMBLE_DEVICE void decode_eights(std::int64_t at, float scale, Eights& values) const {
    const Words<std::uint8_t, 8> words = words_at<8>(codes, at);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] = MakeCode<Code>::make().decode(words.values[e]) * scale;
  }
  THIMBLE_DEVICE void encode_eights(std::int64_t at, std::int64_t n, const quant::BlockScale& s,
                                    const Eights& values) const {
    Words<std::uint8_t, 8> words;
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) words.values[e] = code_of(s, values[e]);
    put_eights(codes, at, n, words);
  }

 private:
  THIMBLE_DEVICE static std::uint8_t code_of(const quant::BlockScale& s, float x) {
    const std::uint8_t code = s.is_finite ? MakeCode<Code>::make().encode(x * s.inverse) : std::uint8_t{0};
    return is_first ? code : not_lost(code, x);
  }
};

std::int64_t blocks_of(std::int64_t n) { return (n + state_block - 1) / state_block; }

// Updates with 8-bit moments: a team takes a block, each thread some of its elements.
template <class Rule>
struct BlockUpdates {
  static constexpr int threads = 64;
  static constexpr bool has_second = Rule::moments >= 2;
  Kind kind;
  StepArgument<Step<Rule>> step_argument;
  UpdateTable table;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    constexpr int own = static_cast<int>(state_block) / Team::size;
    const Step<Rule> step = step_argument.get();
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const Parameter parameter(kind.parameter, entry.p, entry.extra, step.site);
    const Codes<true> first(entry.first);
    const Codes<false> second(entry.second);
    const std::int64_t block = table.unit_of(index, at), begin = block * state_block + team.rank();
    const float first_scale = first.scales[block], second_scale = has_second ? second.scales[block] : 0;
    float m[own], v[own];
    std::uint32_t most_m = 0, most_v = 0;
    THIMBLE_UNROLL
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= entry.n) break;
      m[k] = first.decode(i, first_scale);
      v[k] = has_second ? second.decode(i, second_scale) : 0;
      const float gradient = load<float>(entry.g, kind.gradient_dtype, i);
      parameter.set<float>(i, updated(step.rule, parameter.get<float>(i), gradient, m[k], v[k]));
      most_m = larger_of(most_m, magnitude_bits(m[k])), most_v = larger_of(most_v, magnitude_bits(v[k]));
    }
    const quant::BlockScale of_m = first.rescale(team, block, most_m);
    quant::BlockScale of_v{};
    if constexpr (has_second) of_v = second.rescale(team, block, most_v);
    THIMBLE_UNROLL
    for (int k = 0; k < own; ++k) {
      const std::int64_t i = begin + k * Team::size;
      if (i >= entry.n) break;
      first.encode(i, of_m, m[k]);
      if constexpr (has_second) second.encode(i, of_v, v[k]);
    }
  }
};

// The same of f32, f16 and bf16 arrays that begin at multiples of 16 bytes: eight neighbours a thread.
template <class Rule>
struct BlockUpdatesOfEights {
  static constexpr int threads = static_cast<int>(state_block) / 8;
  static constexpr bool has_second = Rule::moments >= 2;
  Kind kind;
  StepArgument<Step<Rule>> step_argument;
  UpdateTable table;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const Step<Rule>& step = step_argument.get();
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const Parameter parameter(kind.parameter, entry.p, entry.extra, step.site);
    const Codes<true> first(entry.first);
    const Codes<false> second(entry.second);
    const std::int64_t block = table.unit_of(index, at), i = block * state_block + 8 * team.rank();
    const float first_scale = first.scales[block], second_scale = has_second ? second.scales[block] : 0;
    const bool is_there = i < entry.n;
    Eights m{}, v{};
    std::uint32_t most_m = 0, most_v = 0;
    if (is_there) {
      Eights p, g;
      first.decode_eights(i, first_scale, m);
      if constexpr (has_second) second.decode_eights(i, second_scale, v);
      read_eights(entry.g, kind.gradient_dtype, i, entry.n, g);
      parameter.get_eights(i, entry.n, p);
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) {
        p[e] = updated(step.rule, p[e], g[e], m[e], v[e]);
        if (i + e >= entry.n) continue;
        most_m = larger_of(most_m, magnitude_bits(m[e])), most_v = larger_of(most_v, magnitude_bits(v[e]));
      }
      parameter.set_eights(i, entry.n, p);
    }
    const quant::BlockScale of_m = first.rescale(team, block, most_m);
    if (is_there) first.encode_eights(i, entry.n, of_m, m);
    if constexpr (has_second) {
      const quant::BlockScale of_v = second.rescale(team, block, most_v);
      if (is_there) second.encode_eights(i, entry.n, of_v, v);
    }
  }
};

template <class Body, class Args, class Rule>
void launch_updates(const Args& a, const UpdateTable& table, const Rule&) {
  static_assert(sizeof(Body) <= most_argument_bytes);
  const auto make = [](const Args& now) { return Step<Rule>{Rule(now), now.narrow.site}; };
  for_each_team(table.teams, Body{Kind(a), step_argument(a, make), table});
}

// 8-bit moments require f32 updates.
template <class Args>
void launch_table(const Args& a, const UpdateTable& table) {
  if (a.state_dtype == DType::u8) {
    return with_rule<float>(a, [&]<class Rule>(const Rule& rule) {
      if constexpr (Rule::moments > 0) {
        if (goes_in_eights(a, table)) return launch_updates<BlockUpdatesOfEights<Rule>>(a, table, rule);
        launch_updates<BlockUpdates<Rule>>(a, table, rule);
      }
    });
  }
  with_compute_type(a.dtype, [&]<class T>() {
    with_rule<T>(a, [&]<class Rule>(const Rule& rule) {
      if constexpr (std::is_same_v<T, float>) {
        if (goes_in_eights(a, table)) return launch_updates<UpdatesOfEights<Rule>>(a, table, rule);
      }
      launch_updates<Updates<Rule, T>>(a, table, rule);
    });
  });
}

void update_elements(const ElementUpdates& updates) {
  const auto teams_of = [](const ElementArgs& a) {
    return a.state_dtype == DType::u8 ? blocks_of(a.n) : update_stretches(a.n);
  };
  updates.each_list(
      [&]<class Args>(std::span<const Args> list) { for_each_table(list, teams_of, launch_table<Args>); });
}

constexpr OptimizerKernels table{.update_elements = update_elements,
                                 .adafactor = adafactor_on_cuda,
                                 .square_sums = square_sums_on_cuda,
                                 .clip = clip_on_cuda};

}  // namespace optimizer_cuda_detail

const OptimizerKernels* const optimizer_cuda = &optimizer_cuda_detail::table;

}  // namespace thimble::kernels
