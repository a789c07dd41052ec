// Optimizer updates on the CPU: every element is independent, and so is every block of 8-bit moments, so threads do not
// change bits.

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/optimizer/adafactor_cpu.h>
#include <thimble/core/kernels/cpu/optimizer/moment_run.h>
#include <thimble/core/kernels/cpu/optimizer/parameter_run.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace optimizer_detail {

constexpr std::int64_t chunk = run_elements;
constexpr std::int64_t grain = 16 * chunk;
// Elements whose squares one thread adds up.
static_assert(square_stretch % chunk == 0);

template <class F>
void for_chunks(std::int64_t n, F&& f, std::int64_t elements = chunk) {
  parallel_for(n, std::max(grain, elements), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += elements) f(at, std::min(elements, end - at));
  });
}

// Whether an update needs no buffer of a chunk's elements.
template <class T, class Args>
bool is_in_place(const Args& a) {
  return a.dtype == dtype_of<T> && a.gradient_dtype == dtype_of<T> && a.state_dtype == dtype_of<T> &&
         a.first.scales == nullptr && a.second.scales == nullptr && form_of(a.narrow) == NarrowForm::rounded;
}

// Elements in the type of their update; moments that the rule lacks are null.
template <class Rule, class T, Isa target>
struct Update {
  /// Elements from these to those whose lines are asked for: processors follow four streams too late by themselves.
  static constexpr std::int64_t ahead = 512, line = 64 / sizeof(T);

  static void run(const Rule& rule, T* __restrict p, const T* __restrict g, T* __restrict first, T* __restrict second,
                  std::int64_t n) {
    if constexpr (Rule::moments == 0) {
      for (std::int64_t i = 0; i < n; ++i) p[i] = rule.updated(p[i], g[i]);
    } else if constexpr (Rule::moments == 1) {
      for (std::int64_t i = 0; i < n; ++i) p[i] = rule.updated(p[i], g[i], first[i]);
    } else {
      std::int64_t i = 0;
      while (i + line <= n) {
        for (const T* const x : std::initializer_list<const T*>{p, g, first, second}) {
          __builtin_prefetch(x + i + ahead);
        }
        for (const std::int64_t end = i + line; i < end; i += Simd<T, target>::lanes) {
          update_vector(rule, p + i, g + i, first + i, second + i);
        }
      }
      for (; i < n; ++i) {
        rule.advance(p[i], g[i], first[i], second[i]);
        rule.update(p[i], first[i], std::sqrt(second[i]));
      }
    }
  }

  // In one go, so that the roots and quotients of a vector are computed while the next ones are read.
  static THIMBLE_ALWAYS_INLINE void update_vector(const Rule& rule, T* p, const T* g, T* first, T* second) {
    using V = Simd<T, target>;
    typename V::Vector x = V::at(p), m = V::at(first), v = V::at(second), root;
    const typename V::Vector gradient = V::at(g);
    rule.advance(x, gradient, m, v);
    V::at(first) = m;
    V::at(second) = v;
    V::square_root(root, v);
    rule.update(x, m, root);
    V::at(p) = x;
  }
};

template <class T, class Args>
void update(const Args& a) {
  with_rule<T>(a, [&]<class Rule>(const Rule& rule) {
    const auto run = with_target(isa(), []<Isa target>() {
      return compiled_for<target, Update<Rule, T, target>, Rule, T*, const T*, T*, T*, std::int64_t>;
    });
    const std::int64_t elements = is_in_place<T>(a) ? 4 * grain : chunk;
    const auto update_run = [&](std::int64_t at, std::int64_t n) {
      ParameterRun<T> p(a.parameter, a.dtype, a.narrow, at, n);
      ElementRun<T> g(a.gradient, a.gradient_dtype, at, n);
      MomentRun<T, true> first(a.first, a.state_dtype, at, n);
      MomentRun<T, false> second(a.second, a.state_dtype, at, n);
      run(rule, p.values(), g.values(), first.values(), second.values(), n);
      p.store();
      first.store();
      second.store();
    };
    for_chunks(a.n, update_run, elements);
  });
}

void update_elements(const ElementUpdates& updates) {
  updates.each_list([](const auto& list) {
    for (const auto& a : list) a.dtype == DType::f64 ? update<double>(a) : update<float>(a);
  });
}

void adafactor_all(std::span<const AdafactorArgs> list) {
  for (const AdafactorArgs& args : list) adafactor_on_cpu(args);
}

// Squares of n <= chunk values in eight chains, which are added in order.
struct SquareChunk {
  template <class T>
  static void run(const T* values, std::int64_t n, double* total) {
    double lanes[8] = {};
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      for (int k = 0; k < 8; ++k) {
        const auto value = static_cast<double>(values[i + k]);
        lanes[k] += value * value;
      }
    }
    for (int k = 0; k < static_cast<int>(n - i); ++k) {
      const auto value = static_cast<double>(values[i + k]);
      lanes[k] += value * value;
    }
    for (const double lane : lanes) *total += lane;
  }
};

// Elements [begin, end), chunk after chunk; T holds them exactly.
template <class T>
double squares_in(const SquareSumArgs& a, std::int64_t begin, std::int64_t end) {
  double total = 0;
  alignas(64) T values[chunk];
  for (std::int64_t at = begin; at < end; at += chunk) {
    const std::int64_t n = std::min(chunk, end - at);
    run_variant<SquareChunk>(read_elements<T>(a.gradient, a.dtype, at, n, values), n, &total);
  }
  return total;
}

double squares_of(const SquareSumArgs& a, std::int64_t begin, std::int64_t end) {
  return a.dtype == DType::f64 ? squares_in<double>(a, begin, end) : squares_in<float>(a, begin, end);
}

// Ranges are summed separately and added one after the other: the order depends only on n.
void square_sum(const SquareSumArgs& a) {
  constexpr std::int64_t most = 1024;  // ranges at a time
  double total = 0;
  for (std::int64_t first = 0; first < a.n; first += most * square_stretch) {
    const std::int64_t end = std::min(a.n, first + most * square_stretch);
    double sums[most] = {};
    parallel_for(end - first, square_stretch, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t at = from; at < to; at += square_stretch) {
        sums[at / square_stretch] = squares_of(a, first + at, first + std::min(to, at + square_stretch));
      }
    });
    for (const double sum : sums) total += sum;
  }
  *a.sum = total;
}

// Tensors of one range or less are summed in parallel.
void square_sums(std::span<const SquareSumArgs> list) {
  const auto is_short = [](const SquareSumArgs& a) { return a.n <= square_stretch; };
  for (auto at = list.begin(); at != list.end();) {
    const auto end = std::find_if_not(at, list.end(), is_short);
    parallel_for(end - at, 4, [&](std::int64_t from, std::int64_t to) {
      for (auto a = at + from; a != at + to; ++a) *a->sum = squares_of(*a, 0, a->n);
    });
    at = end;
    if (at != list.end()) square_sum(*at++);
  }
}

template <class T>
void scale(const ClipArgs& a, T factor) {
  for_chunks(a.n, [&](std::int64_t at, std::int64_t n) {
    ElementRun<T> g(a.gradient, a.dtype, at, n);
    for (std::int64_t i = 0; i < n; ++i) g.values()[i] *= factor;
    g.store();
  });
}

void clip(const ClipNorm& norm, std::span<const ClipArgs> list) {
  double sum = 0;
  for (std::int64_t i = 0; i < norm.count; ++i) sum += norm.sums[i];
  const double factor = std::min(1.0, norm.max_norm / (std::sqrt(sum) + 1e-6));
  for (const ClipArgs& a : list) a.dtype == DType::f64 ? scale(a, factor) : scale(a, static_cast<float>(factor));
}

}  // namespace optimizer_detail

const OptimizerKernels optimizer_cpu{
    .update_elements = optimizer_detail::update_elements,
    .adafactor = optimizer_detail::adafactor_all,
    .square_sums = optimizer_detail::square_sums,
    .clip = optimizer_detail::clip,
};

const OptimizerKernels& optimizer_kernels(memory::Device device) {
  return table_for(device, "optimizer", optimizer_cpu, optimizer_cuda);
}

}  // namespace thimble::kernels
