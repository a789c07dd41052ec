// Optimizer updates on CUDA devices: a thread for each element.

#include <cmath>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/cuda/element.h>

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

template <class T>
struct Sgd {
  Array p, g, m;
  T rate, momentum, decay;
  bool nesterov;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const T parameter = p.get<T>(i), d = g.get<T>(i) + decay * parameter;
    if (!m.data) return p.set<T>(i, parameter - rate * d);
    const T velocity = momentum * m.get<T>(i) + d;
    m.set<T>(i, velocity);
    p.set<T>(i, parameter - rate * (nesterov ? d + momentum * velocity : velocity));
  }
};

void sgd(const SgdArgs& a) {
  with_compute_type(a.dtype, [&]<class T>() {
    for_each_item(a.n, Sgd<T>{{a.parameter, a.dtype},
                              {const_cast<void*>(a.gradient), a.gradient_dtype},
                              {a.momentum_buffer, a.state_dtype},
                              static_cast<T>(a.rate),
                              static_cast<T>(a.momentum),
                              static_cast<T>(a.weight_decay),
                              a.nesterov});
  });
}

template <class T>
struct Adam {
  Array p, g, m, v;
  T b1, b2, r1, r2, shrink, decay, rate, root, epsilon;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const T parameter = p.get<T>(i), d = g.get<T>(i) + decay * parameter;
    const T first = b1 * m.get<T>(i) + r1 * d;
    const T second = b2 * v.get<T>(i) + r2 * (d * d);
    m.set<T>(i, first);
    v.set<T>(i, second);
    p.set<T>(i, parameter * shrink - rate * (first / (std::sqrt(second) / root + epsilon)));
  }
};

void adam(const AdamArgs& a) {
  const double c1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double c2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
  with_compute_type(a.dtype, [&]<class T>() {
    for_each_item(a.n, Adam<T>{{a.parameter, a.dtype},
                               {const_cast<void*>(a.gradient), a.gradient_dtype},
                               {a.first_moment, a.state_dtype},
                               {a.second_moment, a.state_dtype},
                               static_cast<T>(a.beta1),
                               static_cast<T>(a.beta2),
                               static_cast<T>(1 - a.beta1),
                               static_cast<T>(1 - a.beta2),
                               a.is_decoupled ? static_cast<T>(1 - a.rate * a.weight_decay) : T(1),
                               a.is_decoupled ? T(0) : static_cast<T>(a.weight_decay),
                               static_cast<T>(a.rate / c1),
                               static_cast<T>(std::sqrt(c2)),
                               static_cast<T>(a.epsilon)});
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
