#pragma once
// Many parameters in one launch: their places as a kernel's argument, and which of a list may share one.
//
// Policy
// - What all of a launch share (dtypes, numbers, what changes from step to step) stands in it once, so only updates
//   that are alike go together: a model's take two launches, or one for each 56 parameters.
// - A team does a stretch of one parameter. Which one, it finds by the stretches that begin before it.
// - The same table carries gradients that are summed or scaled.
// - Each element is computed as it is alone, so the bits are those of one launch for each parameter.

#include <cstddef>
#include <cstdint>
#include <span>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/optimizer8.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

/// What belongs to a parameter by the way it is stored (NarrowForm): its master copy or compensation; or, where it is
/// rounded stochastically, the site of its random bits.
union NarrowExtra {
  void* tensor;
  std::uint32_t site;
};

inline NarrowExtra extra_of(const kernels::NarrowArgs& how) {
  NarrowExtra extra{how.master != nullptr ? how.master : how.compensation};
  if (how.is_stochastic) extra.site = how.site.site;
  return extra;
}

/// One parameter of a launch.
struct UpdateEntry {
  std::int64_t n;                       ///< elements
  void* p;                              ///< parameter
  const void* g;                        ///< gradient
  void *first, *second;                 ///< moments
  float *first_scales, *second_scales;  ///< of moments in 8 bits
  NarrowExtra extra;
};

/// The same of Adafactor, whose parameters are matrices.
struct FactoredEntry {
  std::int64_t n, columns;  ///< elements; 0 of them: no rows
  void* p;
  const void* g;
  float *row_moment, *column_moment, *momentum;
  NarrowExtra extra;
};

/// Those of one launch. With what else there is they are at most the 4 KiB that arguments of a kernel may have.
template <class Entry>
struct ListTable {
  static constexpr int most = static_cast<int>(kernels::most_listed);
  int count = 0;
  std::uint32_t teams = 0;
  std::uint32_t begins[most];  // the first team of each
  Entry entries[most];

  /// The place of a team's entry.
  THIMBLE_DEVICE int index_of(std::int64_t team) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (static_cast<std::int64_t>(begins[middle]) <= team ? low : high) = middle;
    }
    return low;
  }
  /// The number of a team among those of its entry.
  THIMBLE_DEVICE std::int64_t unit_of(std::int64_t team, int index) const {
    return team - static_cast<std::int64_t>(begins[index]);
  }
};
using UpdateTable = ListTable<UpdateEntry>;
using FactoredTable = ListTable<FactoredEntry>;
inline constexpr std::size_t most_argument_bytes = 4096 - sizeof(std::int64_t);

inline bool are_alike(const kernels::NarrowArgs& a, const kernels::NarrowArgs& b) {
  return (a.master == nullptr) == (b.master == nullptr) && (a.compensation == nullptr) == (b.compensation == nullptr) &&
         a.is_stochastic == b.is_stochastic && a.site.seed == b.site.seed && a.site.step == b.site.step;
}
inline bool are_alike(const kernels::SgdArgs& a, const kernels::SgdArgs& b) {
  return a.dtype == b.dtype && a.gradient_dtype == b.gradient_dtype && a.state_dtype == b.state_dtype &&
         (a.momentum_buffer == nullptr) == (b.momentum_buffer == nullptr) && a.rate == b.rate &&
         a.momentum == b.momentum && a.weight_decay == b.weight_decay && a.nesterov == b.nesterov &&
         a.gradient_factor == b.gradient_factor && are_alike(a.narrow, b.narrow);
}
inline bool are_alike(const kernels::AdamArgs& a, const kernels::AdamArgs& b) {
  return a.dtype == b.dtype && a.gradient_dtype == b.gradient_dtype && a.state_dtype == b.state_dtype &&
         a.rate == b.rate && a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.epsilon == b.epsilon &&
         a.weight_decay == b.weight_decay && a.is_decoupled == b.is_decoupled && a.step == b.step &&
         a.gradient_factor == b.gradient_factor && are_alike(a.narrow, b.narrow);
}
inline bool are_alike(const kernels::Adam8Args& a, const kernels::Adam8Args& b) {
  return are_alike(a.update, b.update);
}
inline bool are_alike(const kernels::Momentum8Args& a, const kernels::Momentum8Args& b) {
  return are_alike(a.update, b.update);
}

inline bool are_alike(const kernels::AdafactorArgs& a, const kernels::AdafactorArgs& b) {
  return a.dtype == b.dtype && a.gradient_dtype == b.gradient_dtype && a.rate == b.rate && a.beta1 == b.beta1 &&
         a.decay == b.decay && a.epsilon1 == b.epsilon1 && a.epsilon2 == b.epsilon2 && a.clip == b.clip &&
         a.weight_decay == b.weight_decay && a.scales_by_parameter == b.scales_by_parameter &&
         a.has_relative_step == b.has_relative_step && a.gradient_factor == b.gradient_factor && a.step == b.step &&
         are_alike(a.narrow, b.narrow);
}

inline bool are_alike(const kernels::SquareSumArgs& a, const kernels::SquareSumArgs& b) { return a.dtype == b.dtype; }
inline bool are_alike(const kernels::ClipArgs& a, const kernels::ClipArgs& b) { return a.dtype == b.dtype; }

inline UpdateEntry entry_of(const kernels::SgdArgs& a) {
  return {a.n, a.parameter, a.gradient, a.momentum_buffer, nullptr, nullptr, nullptr, extra_of(a.narrow)};
}
inline UpdateEntry entry_of(const kernels::AdamArgs& a) {
  return {a.n, a.parameter, a.gradient, a.first_moment, a.second_moment, nullptr, nullptr, extra_of(a.narrow)};
}
inline UpdateEntry entry_of(const kernels::Adam8Args& a) {
  UpdateEntry entry = entry_of(a.update);
  entry.first_scales = a.first_scales, entry.second_scales = a.second_scales;
  return entry;
}
inline UpdateEntry entry_of(const kernels::Momentum8Args& a) {
  UpdateEntry entry = entry_of(a.update);
  entry.first_scales = a.scales;
  return entry;
}

inline FactoredEntry entry_of(const kernels::AdafactorArgs& a) {
  return {a.rows * a.columns, a.columns,       a.parameter, a.gradient,
          a.row_moment,       a.column_moment, a.momentum,  extra_of(a.narrow)};
}

/// `p` is the place of the sum.
inline UpdateEntry entry_of(const kernels::SquareSumArgs& a) {
  return {a.n, a.sum, a.gradient, nullptr, nullptr, nullptr, nullptr, {}};
}
inline UpdateEntry entry_of(const kernels::ClipArgs& a) {
  return {a.n, a.gradient, nullptr, nullptr, nullptr, nullptr, nullptr, {}};
}

/// Calls run(args, table) for each launch that a list takes: `args` stands for all in the table, and a tensor of n
/// elements has teams_of(n) teams.
template <class Args, class TeamsOf, class Run>
void for_each_table(std::span<const Args> list, const TeamsOf& teams_of, const Run& run) {
  constexpr std::int64_t most_teams = std::int64_t{1} << 31;
  using Entry = decltype(entry_of(list[0]));
  using Table = ListTable<Entry>;
  Table table;
  for (std::size_t first = 0; first < list.size(); ++first) {
    std::size_t before = 0;
    while (before < first && !are_alike(list[before], list[first])) ++before;
    if (before < first) continue;  // it went with that one
    for (std::size_t i = first; i < list.size(); ++i) {
      const Entry entry = entry_of(list[i]);
      if (!are_alike(list[first], list[i])) continue;
      const std::int64_t teams = teams_of(entry.n);
      if (table.count == Table::most || table.teams + teams > most_teams) {
        run(list[first], table);
        table.count = 0, table.teams = 0;
      }
      table.begins[table.count] = table.teams;
      table.teams += static_cast<std::uint32_t>(teams);
      table.entries[table.count++] = entry;
    }
    if (table.count > 0) run(list[first], table);
    table.count = 0, table.teams = 0;
  }
}

}  // namespace thimble::cuda_kernels
