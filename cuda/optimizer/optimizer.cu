// Optimizer updates on CUDA devices: a launch for many parameters, a team for each stretch of one.

#include <cmath>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/optimizer/parameter.h>
#include <thimble/cuda/optimizer/update_list.h>
#include <thimble/cuda/runtime/live.h>

namespace thimble::kernels {
namespace optimizer_cuda_detail {

using namespace cuda_kernels;

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

// What the parameters of a launch share.
struct Kind {
  ParameterKind parameter;
  DType gradient_dtype, state_dtype;
  template <class Args>
  explicit Kind(const Args& a) : parameter(a), gradient_dtype(a.gradient_dtype), state_dtype(a.state_dtype) {}
};

// What changes from step to step.
template <class Rule>
struct Step {
  Rule rule;
  RandomSite site;
};

// One element: what differs between the optimizers.
template <class T>
THIMBLE_DEVICE void update(const SgdRule<T>& rule, const Parameter& p, const Kind& kind, const UpdateEntry& entry,
                           std::int64_t i) {
  const T parameter = p.get<T>(i), gradient = load<T>(entry.g, kind.gradient_dtype, i);
  if (!entry.first) return p.set<T>(i, rule.plain(parameter, gradient));
  const Array m{entry.first, kind.state_dtype};
  T velocity = m.get<T>(i);
  const T updated = rule.with_momentum(parameter, gradient, velocity);
  m.set<T>(i, velocity);
  p.set<T>(i, updated);
}

template <class T>
THIMBLE_DEVICE void update(const AdamRule<T>& rule, const Parameter& p, const Kind& kind, const UpdateEntry& entry,
                           std::int64_t i) {
  const Array m{entry.first, kind.state_dtype}, v{entry.second, kind.state_dtype};
  const T parameter = p.get<T>(i);
  T first = m.get<T>(i), second = v.get<T>(i);
  rule.moments(parameter, load<T>(entry.g, kind.gradient_dtype, i), first, second);
  m.set<T>(i, first);
  v.set<T>(i, second);
  p.set<T>(i, rule.updated(parameter, first, std::sqrt(second)));
}

constexpr std::int64_t stretch = 4096;  // elements of a team
std::int64_t stretches_of(std::int64_t n) { return (n + stretch - 1) / stretch; }

template <class Rule>
struct Updates {
  static constexpr int threads = 256;
  Kind kind;
  Live<Step<Rule>> live_step;
  UpdateTable table;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const Step<Rule>& step = live_step.get();
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const Parameter parameter(kind.parameter, entry.p, entry.extra, step.site);
    const std::int64_t begin = table.unit_of(index, at) * stretch;
    const std::int64_t end = begin + stretch < entry.n ? begin + stretch : entry.n;
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) update(step.rule, parameter, kind, entry, i);
  }
};

template <class Rule, class Args>
void launch_updates(const Args& a, const UpdateTable& table) {
  static_assert(sizeof(Updates<Rule>) <= most_argument_bytes);
  for_each_team(table.teams, Updates<Rule>{Kind(a),
                                           live(a,
                                                [](const Args& now) {
                                                  return Step<Rule>{Rule(now), now.narrow.site};
                                                }),
                                           table});
}

void sgd(std::span<const SgdArgs> list) {
  for_each_table(list, stretches_of, [](const SgdArgs& a, const UpdateTable& table) {
    with_compute_type(a.dtype, [&]<class T>() { launch_updates<SgdRule<T>>(a, table); });
  });
}

void adam(std::span<const AdamArgs> list) {
  for_each_table(list, stretches_of, [](const AdamArgs& a, const UpdateTable& table) {
    with_compute_type(a.dtype, [&]<class T>() { launch_updates<AdamRule<T>>(a, table); });
  });
}

// Sums of squares of parts of gradients, and the factor of clipping: written and read by kernels of one stream, in
// order. The number of parts of a gradient depends on its number of elements alone.
constexpr std::int64_t most_parts = 1024, part_elements = 1 << 14;
THIMBLE_DEVICE_GLOBAL double part_sums[UpdateTable::most * most_parts];
THIMBLE_DEVICE_GLOBAL double clip_factor;

THIMBLE_HD std::int64_t parts_of(std::int64_t n) {
  const std::int64_t parts = (n + part_elements - 1) / part_elements;
  return parts < most_parts ? parts : most_parts;
}

struct SumParts {
  static constexpr int threads = 256;
  DType dtype;
  UpdateTable table;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const std::int64_t n = entry.n, parts = parts_of(n), size = (n + parts - 1) / parts;
    const std::int64_t begin = table.unit_of(index, at) * size;
    const std::int64_t end = begin + size < n ? begin + size : n;
    double own = 0;
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) {
      const double value = load_wide(entry.g, dtype, i);
      own += value * value;
    }
    const double sum = team.sum(own);
    if (team.rank() == 0) part_sums[index] = sum;
  }
};

struct AddParts {
  static constexpr int threads = 256;
  UpdateTable table;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const UpdateEntry entry = table.entries[index];
    const std::int64_t parts = parts_of(entry.n);
    double own = 0;
    for (std::int64_t part = team.rank(); part < parts; part += Team::size)
      own += part_sums[table.begins[index] + part];
    const double sum = team.sum(own);
    if (team.rank() == 0) *static_cast<double*>(entry.p) = sum;
  }
};

void square_sums(std::span<const SquareSumArgs> list) {
  static_assert(sizeof(SumParts) <= most_argument_bytes);
  for_each_table(list, parts_of, [](const SquareSumArgs& a, const UpdateTable& table) {
    for_each_team(table.teams, SumParts{a.dtype, table});
    for_each_team(table.count, AddParts{table});
  });
}

struct FindFactor {
  ClipNorm norm;
  THIMBLE_DEVICE void operator()(std::int64_t) const {
    double sum = 0;
    for (std::int64_t i = 0; i < norm.count; ++i) sum += norm.sums[i];
    const double factor = norm.max_norm / (std::sqrt(sum) + 1e-6);
    clip_factor = factor < 1 ? factor : 1.0;
  }
};

template <class T>
struct Scale {
  static constexpr int threads = 256;
  DType dtype;
  UpdateTable table;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const Array g{entry.p, dtype};
    const std::int64_t begin = table.unit_of(index, at) * stretch;
    const std::int64_t end = begin + stretch < entry.n ? begin + stretch : entry.n;
    const T factor = static_cast<T>(clip_factor);
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) g.set<T>(i, g.get<T>(i) * factor);
  }
};

void clip(const ClipNorm& norm, std::span<const ClipArgs> list) {
  for_each_item(1, FindFactor{norm});
  for_each_table(list, stretches_of, [](const ClipArgs& a, const UpdateTable& table) {
    with_compute_type(a.dtype, [&]<class T>() { for_each_team(table.teams, Scale<T>{a.dtype, table}); });
  });
}

constexpr OptimizerKernels table{sgd, adam, square_sums, clip};

}  // namespace optimizer_cuda_detail

const OptimizerKernels* const optimizer_cuda = &optimizer_cuda_detail::table;

}  // namespace thimble::kernels
