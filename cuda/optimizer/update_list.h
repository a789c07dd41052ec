#pragma once
// Many parameters in one launch: their addresses as a kernel's argument, and which of a list may share one.
//
// Policy
// - Values that all parameters of a launch share (dtypes, numbers, values that change from step to step) are in it
//   once, so only updates that are alike go together: a model's take two launches, or one for each 56 parameters.
// - A team does a range of one parameter, which it finds by the number of ranges before it.
// - The same table holds gradients to sum or scale.
// - Each element is computed as in a separate launch, so the bits equal one launch per parameter.

#include <cstddef>
#include <cstdint>
#include <span>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

/// A parameter's data by its storage (NarrowForm): its master copy or compensation; or, with stochastic rounding, the
/// site of its random bits and their first block of eight.
union NarrowExtra {
  void* tensor;
  struct {
    std::uint32_t site, first_block;
  } rounding;
};

inline NarrowExtra extra_of(const kernels::NarrowArgs& how) {
  NarrowExtra extra{how.master != nullptr ? how.master : how.compensation};
  if (how.is_stochastic) extra.rounding = {how.site.site, static_cast<std::uint32_t>(how.first_element / 8)};
  return extra;
}

/// One parameter of a launch.
struct UpdateEntry {
  std::int64_t n;  ///< elements
  void* p;         ///< parameter
  const void* g;   ///< gradient
  kernels::MomentArgs first, second;
  NarrowExtra extra;
};

/// Elements of such a parameter that a team takes.
inline constexpr std::int64_t update_stretch = 4096;
inline std::int64_t update_stretches(std::int64_t n) { return (n + update_stretch - 1) / update_stretch; }

/// The same for Adafactor, whose parameters are matrices.
struct FactoredEntry {
  std::int64_t n, columns;  ///< elements; 0 columns for no rows
  void* p;
  const void* g;
  float *row_moment, *column_moment, *momentum;
  NarrowExtra extra;
};

/// The entries of one launch. With its other arguments they fit in the 4 KiB that arguments of a kernel may have.
template <class Entry>
struct ListTable {
  static constexpr int most = static_cast<int>(kernels::most_listed);
  int count = 0;
  std::uint32_t teams = 0;
  std::uint32_t begins[most];  // the first team of each
  Entry entries[most];

  /// The index of a team's entry.
  THIMBLE_DEVICE int index_of(std::int64_t team) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (static_cast<std::int64_t>(begins[middle]) <= team ? low : high) = middle;
    }
    return low;
  }
  /// The index of a team within its entry.
  THIMBLE_DEVICE std::int64_t unit_of(std::int64_t team, int index) const {
    return team - static_cast<std::int64_t>(begins[index]);
  }
};
using UpdateTable = ListTable<UpdateEntry>;
using FactoredTable = ListTable<FactoredEntry>;
inline constexpr std::size_t most_argument_bytes = 4096 - sizeof(std::int64_t);

/// Whether are_words(entry) of all entries.
template <class AreWords>
bool all_of(const UpdateTable& table, const AreWords& are_words) {
  for (int i = 0; i < table.count; ++i) {
    if (!are_words(table.entries[i])) return false;
  }
  return true;
}

inline bool are_alike(const kernels::NarrowArgs& a, const kernels::NarrowArgs& b) {
  return (a.master == nullptr) == (b.master == nullptr) && (a.compensation == nullptr) == (b.compensation == nullptr) &&
         a.is_stochastic == b.is_stochastic && a.site.seed == b.site.seed && a.site.step == b.site.step;
}
inline bool have_same_kind(const kernels::UpdateArgs& a, const kernels::UpdateArgs& b) {
  return a.dtype == b.dtype && a.gradient_dtype == b.gradient_dtype && a.rate == b.rate &&
         a.weight_decay == b.weight_decay && a.gradient_factor == b.gradient_factor && a.step == b.step &&
         are_alike(a.narrow, b.narrow);
}
template <class Numbers>
bool are_alike(const kernels::ElementUpdate<Numbers>& a, const kernels::ElementUpdate<Numbers>& b) {
  return have_same_kind(a, b) && a.state_dtype == b.state_dtype &&
         (a.first.values == nullptr) == (b.first.values == nullptr) &&
         static_cast<const Numbers&>(a) == static_cast<const Numbers&>(b);
}
inline bool are_alike(const kernels::AdafactorArgs& a, const kernels::AdafactorArgs& b) {
  using Numbers = kernels::AdafactorNumbers;
  return have_same_kind(a, b) && static_cast<const Numbers&>(a) == static_cast<const Numbers&>(b);
}
inline bool are_alike(const kernels::SquareSumArgs& a, const kernels::SquareSumArgs& b) { return a.dtype == b.dtype; }
inline bool are_alike(const kernels::ClipArgs& a, const kernels::ClipArgs& b) { return a.dtype == b.dtype; }

template <class Numbers>
UpdateEntry entry_of(const kernels::ElementUpdate<Numbers>& a) {
  return {a.n, a.parameter, a.gradient, a.first, a.second, extra_of(a.narrow)};
}
inline FactoredEntry entry_of(const kernels::AdafactorArgs& a) {
  return {a.rows * a.columns, a.columns,       a.parameter, a.gradient,
          a.row_moment,       a.column_moment, a.momentum,  extra_of(a.narrow)};
}

/// `p` is the place of the sum.
inline UpdateEntry entry_of(const kernels::SquareSumArgs& a) { return {a.n, a.sum, a.gradient, {}, {}, {}}; }
inline UpdateEntry entry_of(const kernels::ClipArgs& a) { return {a.n, a.gradient, nullptr, {}, {}, {}}; }

/// Calls run(args, table) for each launch that a list takes: `args` represents all in the table, and each of them has
/// teams_of(its args) teams. A table with more than one entry has at most `most_teams` of them.
template <class Args, class TeamsOf, class Run>
void for_each_table(std::span<const Args> list, const TeamsOf& teams_of, const Run& run,
                    std::int64_t most_teams = std::int64_t{1} << 31) {
  using Entry = decltype(entry_of(list[0]));
  using Table = ListTable<Entry>;
  Table table;
  for (std::size_t first = 0; first < list.size(); ++first) {
    std::size_t before = 0;
    while (before < first && !are_alike(list[before], list[first])) ++before;
    if (before < first) continue;  // it was in that launch
    for (std::size_t i = first; i < list.size(); ++i) {
      if (!are_alike(list[first], list[i])) continue;
      const std::int64_t teams = teams_of(list[i]);
      if (table.count == Table::most || (table.count > 0 && table.teams + teams > most_teams)) {
        run(list[first], table);
        table.count = 0, table.teams = 0;
      }
      table.begins[table.count] = table.teams;
      table.teams += static_cast<std::uint32_t>(teams);
      table.entries[table.count++] = entry_of(list[i]);
    }
    if (table.count > 0) run(list[first], table);
    table.count = 0, table.teams = 0;
  }
}

}  // namespace thimble::cuda_kernels
