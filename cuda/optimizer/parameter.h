#pragma once
// A parameter in the kernels of all optimizers, read and stored element by element: NarrowArgs
// (core/kernels/optimizer.h) on a GPU.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/kernel/words.h>

namespace thimble::cuda_kernels {

// ---- Many parameters in one launch: their addresses as a kernel's argument, and which of a list may share one.
//
// Policy
// - Values that all parameters of a launch share (dtypes, numbers, values that change from step to step) are in the
//   argument once, so a launch only takes updates that share them: a model's take two, or one per 56 parameters.
// - A team takes a range of one parameter, which it finds by the number of ranges before it.
// - The table also holds gradients to sum or scale.
// - Each element is computed as in a separate launch, so the bits equal one launch per parameter.

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

/// Elements of a parameter that a team takes.
inline constexpr std::int64_t update_stretch = 4096;
inline std::int64_t update_stretches(std::int64_t n) { return (n + update_stretch - 1) / update_stretch; }

/// One parameter of a launch of Adafactor, as a matrix.
struct FactoredEntry {
  std::int64_t n, columns;  ///< elements; 0 columns for no rows
  void* p;
  const void* g;
  float *row_moment, *column_moment, *momentum;
  NarrowExtra extra;
};

/// The entries of one launch. With the other arguments they fit in the 4 KiB that a kernel's arguments may take.
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

/// Whether are_words(entry) holds for all entries.
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

/// Entries of gradients; for sums of squares `p` is the place of the sum.
inline UpdateEntry entry_of(const kernels::SquareSumArgs& a) { return {a.n, a.sum, a.gradient, {}, {}, {}}; }
inline UpdateEntry entry_of(const kernels::ClipArgs& a) { return {a.n, a.gradient, nullptr, {}, {}, {}}; }

/// Calls run(args, table) for each launch that a list takes. `args` represents all entries of the table; an entry has
/// teams_of(its args) teams. A table with more than one entry has at most `most_teams` teams.
template <class Args, class TeamsOf, class Run>
void for_each_table(std::span<const Args> list, const TeamsOf& teams_of, const Run& run,
                    std::int64_t most_teams = std::int64_t{1} << 31) {
  using Entry = decltype(entry_of(list[0]));
  using Table = ListTable<Entry>;
  Table table;
  for (std::size_t first = 0; first < list.size(); ++first) {
    std::size_t before = 0;
    while (before < first && !are_alike(list[before], list[first])) ++before;
    if (before < first) continue;  // an earlier launch took it
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

/// Eight neighbours of an array of n elements in f32, f16 or bf16, from a multiple of 8; the array begins at a multiple
/// of 16 bytes. Elements beyond its end are arbitrary and not written.
using Eights = float[8];
THIMBLE_DEVICE inline void read_eights(const void* data, DType dtype, std::int64_t at, std::int64_t n, Eights& values) {
  if (dtype == DType::f32) {
    const float* const from = static_cast<const float*>(data);
    const Words<float, 4> low = words_at<4>(from, at),
                          high = at + 4 < n ? words_at<4>(from, at + 4) : Words<float, 4>{};
    THIMBLE_UNROLL
    for (int e = 0; e < 4; ++e) values[e] = low.values[e], values[4 + e] = high.values[e];
  } else if (dtype == DType::bf16) {
    const Words<bf16, 8> words = words_at<8>(static_cast<const bf16*>(data), at);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] = widened(words.values[e]);
  } else {
    const Words<f16, 8> words = words_at<8>(static_cast<const f16*>(data), at);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] = widened(words.values[e]);
  }
}
/// The first `count` of eight neighbours, at any alignment, element by element; 0 for the others.
THIMBLE_DEVICE inline void read_singly(const void* data, DType dtype, std::int64_t at, int count, Eights& values) {
  THIMBLE_UNROLL
  for (int e = 0; e < 8; ++e) values[e] = 0;
  visit_met<float>(dtype, [&]<class S>() {
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      if (e < count) values[e] = convert_value<float>(static_cast<const S*>(data)[at + e]);
    }
  });
}
template <class S>
THIMBLE_DEVICE inline void put_eights(S* to, std::int64_t at, std::int64_t n, const Words<S, 8>& words) {
  if (at + 8 <= n) return put_words(to, at, words);
  THIMBLE_UNROLL
  for (int e = 0; e < 8; ++e) {
    if (at + e < n) to[at + e] = words.values[e];
  }
}
/// Writes the values, and returns them rounded as stored.
THIMBLE_DEVICE inline void write_eights(void* data, DType dtype, std::int64_t at, std::int64_t n, Eights& values) {
  const auto put = [&]<class S>() {
    const Words<S, 8> words = narrowed<S>(values);
    put_eights(static_cast<S*>(data), at, n, words);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] = widened(words.values[e]);
  };
  if (dtype == DType::f32) return put.template operator()<float>();
  dtype == DType::bf16 ? put.template operator()<bf16>() : put.template operator()<f16>();
}

/// Elements of any dtype, one by one.
struct Array {
  void* data;
  DType dtype;
  template <class T>
  THIMBLE_DEVICE T get(std::int64_t i) const {
    return load<T>(data, dtype, i);
  }
  template <class T>
  THIMBLE_DEVICE void set(std::int64_t i, T value) const {
    store<T>(data, dtype, i, value);
  }
};

/// Shared by the parameters of a launch.
struct ParameterKind {
  DType dtype;
  kernels::NarrowForm form;
  template <class Args>
  explicit ParameterKind(const Args& a) : dtype(a.dtype), form(kernels::form_of(a.narrow)) {}
};

/// A parameter of a launch; f64 parameters are stored unrounded. `step` is the update of the random bits.
struct Parameter {
  void* place;
  DType dtype;
  kernels::NarrowForm form;
  void* extra;  // master copy or compensation
  RandomSite site;
  std::int64_t first_element = 0;

  THIMBLE_DEVICE Parameter(const ParameterKind& kind, void* data, const NarrowExtra& more, const RandomSite& step)
      : place(data), dtype(kind.dtype), form(kind.form), extra(nullptr), site(step) {
    if (form == kernels::NarrowForm::stochastic) {
      site.site = more.rounding.site;
      first_element = 8 * static_cast<std::int64_t>(more.rounding.first_block);
    } else {
      extra = more.tensor;
    }
  }

  template <class T>
  THIMBLE_DEVICE T get(std::int64_t i) const {
    if constexpr (std::is_same_v<T, float>) {
      if (form == kernels::NarrowForm::master) return static_cast<const float*>(extra)[i];
      if (form == kernels::NarrowForm::compensated) return load<float>(place, dtype, i) + load<float>(extra, dtype, i);
    }
    return load<T>(place, dtype, i);
  }
  THIMBLE_DEVICE void get_eights(std::int64_t i, std::int64_t n, Eights& values) const {
    get_with(values, [&](const void* data, DType of_data, Eights& to) { read_eights(data, of_data, i, n, to); });
  }
  /// As read_singly().
  THIMBLE_DEVICE void get_singly(std::int64_t i, int count, Eights& values) const {
    get_with(values, [&](const void* data, DType of_data, Eights& to) { read_singly(data, of_data, i, count, to); });
  }
  THIMBLE_DEVICE void set_eights(std::int64_t i, std::int64_t n, const Eights& values) const {
    Eights stored;
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) stored[e] = values[e];
    if (form == kernels::NarrowForm::stochastic) {
      const PhiloxBlock bits = kernels::rounding_block(site, (first_element + i) / 8);
      Words<bf16, 8> words;
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) {
        words.values[e] = kernels::round_stochastically(values[e], kernels::rounding_bits(bits, e));
      }
      return put_eights(static_cast<bf16*>(place), i, n, words);
    }
    if (form == kernels::NarrowForm::master) write_eights(extra, DType::f32, i, n, stored);
    write_eights(place, dtype, i, n, stored);
    if (form != kernels::NarrowForm::compensated) return;
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) stored[e] = values[e] - stored[e];
    write_eights(extra, dtype, i, n, stored);
  }
  template <class T>
  THIMBLE_DEVICE void set(std::int64_t i, T value) const {
    if constexpr (std::is_same_v<T, float>) {
      if (form == kernels::NarrowForm::stochastic) {
        const std::uint32_t bits = kernels::rounding_bits(site, first_element + i);
        static_cast<bf16*>(place)[i] = kernels::round_stochastically(value, bits);
        return;
      }
      if (form == kernels::NarrowForm::master) static_cast<float*>(extra)[i] = value;
    }
    store<T>(place, dtype, i, value);
    if constexpr (std::is_same_v<T, float>) {
      if (form == kernels::NarrowForm::compensated) {
        store<float>(extra, dtype, i, value - load<float>(place, dtype, i));
      }
    }
  }

 private:
  template <class Read>
  THIMBLE_DEVICE void get_with(Eights& values, const Read& read) const {
    if (form == kernels::NarrowForm::master) return read(extra, DType::f32, values);
    read(place, dtype, values);
    if (form != kernels::NarrowForm::compensated) return;
    Eights more;
    read(extra, dtype, more);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] += more[e];
  }
};

}  // namespace thimble::cuda_kernels

namespace thimble::kernels {

// ---- CUDA Adafactor kernels.

void adafactor_on_cuda(std::span<const AdafactorArgs> list);

// ---- The members of optimizer_cuda that clip gradients.

void square_sums_on_cuda(std::span<const SquareSumArgs> list);
void clip_on_cuda(const ClipNorm& norm, std::span<const ClipArgs> list);

}  // namespace thimble::kernels
