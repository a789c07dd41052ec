// Optimizer updates on CUDA devices: a thread for each element.

#include <cmath>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/optimizer_narrow.h>
#include <thimble/core/kernels/update_rule.h>
#include <thimble/cuda/element.h>
#include <thimble/cuda/live.h>

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

// A parameter as NarrowArgs says that it is read and stored; f64 ones are stored as they are.
struct Parameter {
  Array p;
  float* master;
  void* compensation;
  bool is_stochastic;
  template <class Args>
  explicit Parameter(const Args& a)
      : p{a.parameter, a.dtype},
        master(a.narrow.master),
        compensation(a.narrow.compensation),
        is_stochastic(a.narrow.is_stochastic) {}

  template <class T>
  THIMBLE_DEVICE T get(std::int64_t i) const {
    if constexpr (std::is_same_v<T, float>) {
      if (master) return master[i];
      if (compensation) return p.get<float>(i) + load<float>(compensation, p.dtype, i);
    }
    return p.get<T>(i);
  }
  template <class T>
  THIMBLE_DEVICE void set(std::int64_t i, T value, const RandomSite& site) const {
    if constexpr (std::is_same_v<T, float>) {
      if (is_stochastic) {
        static_cast<bf16*>(p.data)[i] = round_stochastically(value, rounding_bits(site, i));
        return;
      }
      if (master) master[i] = value;
    }
    p.set<T>(i, value);
    if constexpr (std::is_same_v<T, float>) {
      if (compensation) store<float>(compensation, p.dtype, i, value - p.get<float>(i));
    }
  }
};

// What changes from step to step.
template <class Rule>
struct Step {
  Rule rule;
  RandomSite site;
};
template <class Rule, class Args>
Live<Step<Rule>> live_step(const Args& a) {
  return live(a, [](const Args& now) { return Step<Rule>{Rule(now), now.narrow.site}; });
}

template <class T>
struct Sgd {
  Parameter p;
  Array g, m;
  Live<Step<SgdRule<T>>> live_rule;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const Step<SgdRule<T>>& step = live_rule.get();
    const T parameter = p.get<T>(i), gradient = g.get<T>(i);
    if (!m.data) return p.set<T>(i, step.rule.plain(parameter, gradient), step.site);
    T velocity = m.get<T>(i);
    const T updated = step.rule.with_momentum(parameter, gradient, velocity);
    m.set<T>(i, velocity);
    p.set<T>(i, updated, step.site);
  }
};

void sgd(const SgdArgs& a) {
  with_compute_type(a.dtype, [&]<class T>() {
    for_each_item(a.n, Sgd<T>{Parameter(a),
                              {const_cast<void*>(a.gradient), a.gradient_dtype},
                              {a.momentum_buffer, a.state_dtype},
                              live_step<SgdRule<T>>(a)});
  });
}

template <class T>
struct Adam {
  Parameter p;
  Array g, m, v;
  Live<Step<AdamRule<T>>> live_rule;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const Step<AdamRule<T>>& step = live_rule.get();
    const T parameter = p.get<T>(i);
    T first = m.get<T>(i), second = v.get<T>(i);
    step.rule.moments(parameter, g.get<T>(i), first, second);
    m.set<T>(i, first);
    v.set<T>(i, second);
    p.set<T>(i, step.rule.updated(parameter, first, std::sqrt(second)), step.site);
  }
};

void adam(const AdamArgs& a) {
  with_compute_type(a.dtype, [&]<class T>() {
    for_each_item(a.n, Adam<T>{Parameter(a),
                               {const_cast<void*>(a.gradient), a.gradient_dtype},
                               {a.first_moment, a.state_dtype},
                               {a.second_moment, a.state_dtype},
                               live_step<AdamRule<T>>(a)});
  });
}

// Sums of squares of parts of a gradient, and the factor of clipping: written and read by kernels of one stream, in
// order. The number of parts depends on the number of elements alone.
constexpr std::int64_t most_parts = 1024, part_elements = 1 << 14;
THIMBLE_DEVICE_GLOBAL double part_sums[most_parts];
THIMBLE_DEVICE_GLOBAL double clip_factor;

struct SumPart {
  static constexpr int threads = 256;
  std::int64_t n, parts;
  Array g;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t part) const {
    const std::int64_t size = (n + parts - 1) / parts, begin = part * size, end = begin + size < n ? begin + size : n;
    double own = 0;
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) {
      const double value = load_wide(g.data, g.dtype, i);
      own += value * value;
    }
    const double sum = team.sum(own);
    if (team.rank() == 0) part_sums[part] = sum;
  }
};

struct AddParts {
  static constexpr int threads = 256;
  std::int64_t parts;
  double* to;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t) const {
    double own = 0;
    for (std::int64_t part = team.rank(); part < parts; part += Team::size) own += part_sums[part];
    const double sum = team.sum(own);
    if (team.rank() == 0) *to = sum;
  }
};

void square_sum(const SquareSumArgs& a) {
  std::int64_t parts = (a.n + part_elements - 1) / part_elements;
  if (parts > most_parts) parts = most_parts;
  for_each_team(parts, SumPart{a.n, parts, {const_cast<void*>(a.gradient), a.dtype}});
  for_each_team(1, AddParts{parts, a.sum});
}

struct FindFactor {
  std::int64_t count;
  const double* sums;
  double max_norm;
  THIMBLE_DEVICE void operator()(std::int64_t) const {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += sums[i];
    const double factor = max_norm / (std::sqrt(sum) + 1e-6);
    clip_factor = factor < 1 ? factor : 1.0;
  }
};

template <class T>
struct Scale {
  Array g;
  THIMBLE_DEVICE void operator()(std::int64_t i) const { g.set<T>(i, g.get<T>(i) * static_cast<T>(clip_factor)); }
};

void clip(const ClipArgs& a) {
  for_each_item(1, FindFactor{a.count, a.sums, a.max_norm});
  with_compute_type(a.dtype, [&]<class T>() { for_each_item(a.n, Scale<T>{{a.gradient, a.dtype}}); });
}

constexpr OptimizerKernels table{sgd, adam, square_sum, clip};

}  // namespace optimizer_cuda_detail

const OptimizerKernels* const optimizer_cuda = &optimizer_cuda_detail::table;

}  // namespace thimble::kernels
