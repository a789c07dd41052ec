// Adafactor on the CPU, in four passes over the gradient: rows, columns, the size of the update, the update. Sums over
// rows and over the whole add `shares` equal ranges of rows, for any number of threads.

#include <algorithm>
#include <array>
#include <cmath>

#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/optimizer/adafactor_cpu.h>
#include <thimble/core/kernels/cpu/optimizer/parameter_run.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace adafactor_detail {

constexpr std::int64_t tile = AdafactorArgs::tile;        // values processed at once
constexpr std::int64_t shares = AdafactorArgs::shares;    // ranges of rows with separate sums
constexpr std::int64_t stretch = AdafactorArgs::stretch;  // rows of a column with a separate sum
constexpr int lanes = AdafactorArgs::lanes;
static_assert(tile <= run_elements);

// The sum of squares plus n times `more`, in lanes.
struct SquareSum {
  THIMBLE_ALWAYS_INLINE static void run(const float* x, double more, double* total, std::int64_t n) {
    double lane[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (int k = 0; k < lanes; ++k) lane[k] += AdafactorRule::square(x[i + k], more);
    }
    for (; i < n; ++i) lane[i % lanes] += AdafactorRule::square(x[i], more);
    for (const double sum : lane) *total += sum;
  }
};

struct AddSquares {
  THIMBLE_ALWAYS_INLINE static void run(const float* x, double more, double* __restrict sums, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) sums[i] += AdafactorRule::square(x[i], more);
  }
};

// y = x / sqrt(row moment * columns), with the row moment divided by the mean of all.
template <Isa target>
struct Precondition {
  THIMBLE_ALWAYS_INLINE static void run(const float* x, float row, const float* columns, float* __restrict y,
                                        std::int64_t n) {
    using V = Simd<float, target>;
    std::int64_t i = 0;
    for (; i + V::lanes <= n; i += V::lanes) {
      typename V::Vector v = row * V::at(columns + i);
      V::square_root(v, v);
      V::at(y + i) = V::at(x + i) / v;
    }
    for (; i < n; ++i) y[i] = x[i] / std::sqrt(row * columns[i]);
  }
};

// The same by the product of the roots, where the product has few digits or none.
void precondition_small(const float* x, float row, const float* columns, float* y, std::int64_t n) {
  constexpr float small = AdafactorRule::small_product;
  bool is_small = false;
  for (std::int64_t i = 0; i < n; ++i) is_small |= row * columns[i] < small;
  for (std::int64_t i = 0; is_small && i < n; ++i) {
    if (row * columns[i] < small) y[i] = x[i] / (std::sqrt(row) * std::sqrt(columns[i]));
  }
}

struct Update {
  THIMBLE_ALWAYS_INLINE static void run(const AdafactorRule& rule, const float* u, float* __restrict m,
                                        float* __restrict p, float clip, float length, std::int64_t n) {
    for (std::int64_t i = 0; m != nullptr && i < n; ++i) m[i] = rule.momentum(m[i], u[i], clip);
    if (m != nullptr) {
      for (std::int64_t i = 0; i < n; ++i) p[i] = rule.updated(p[i], length, m[i]);
    } else {
      for (std::int64_t i = 0; i < n; ++i) p[i] = rule.updated(p[i], length, u[i] * clip);
    }
  }
};

// A run of a row in f32.
const float* load(const void* data, DType dtype, std::int64_t at, float* buffer, std::int64_t n) {
  const auto* const from = static_cast<const std::byte*>(data) + at * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) return reinterpret_cast<const float*>(from);
  load_f32(from, dtype, 1, buffer, n);
  return buffer;
}

class Step {
 public:
  explicit Step(const AdafactorArgs& args) : a_(args), rule_(args), share_((args.rows + shares - 1) / shares) {}

  void run() const {
    const double parameter = a_.scales_by_parameter ? mean([&](std::int64_t row) { return squares_of_row(row); }) : 0;
    const float row_mean = update_moments();
    const double size = mean([&](std::int64_t row) {
      double sum = 0;
      for_parts(row, row_mean,
                [&](const float* u, std::int64_t, std::int64_t n) { run_variant<SquareSum>(u, 0.0, &sum, n); });
      return sum;
    });
    const float clip = rule_.clipping(size), length = rule_.length(parameter);
    rows([&](std::int64_t row) {
      for_parts(row, row_mean, [&](const float* u, std::int64_t at, std::int64_t n) {
        ParameterRun<float> p(a_.parameter, a_.dtype, a_.narrow, at, n);
        float* const m = a_.momentum != nullptr ? a_.momentum + at : nullptr;
        run_variant<Update>(rule_, u, m, p.values(), clip, length, n);
        p.store();
      });
    });
  }

 private:
  template <class F>
  void rows(F&& f) const {
    parallel_for(a_.rows, std::max<std::int64_t>(1, 8192 / a_.columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) f(row);
    });
  }

  template <class F>
  double sum_rows(F&& f) const {
    std::array<double, shares> sums{};
    parallel_for(shares, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t s = begin; s < end; ++s) {
        double sum = 0;
        for (std::int64_t row = s * share_; row < std::min(a_.rows, (s + 1) * share_); ++row) sum += f(row);
        sums[static_cast<std::size_t>(s)] = sum;
      }
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  }

  // The mean over all values.
  template <class F>
  double mean(F&& f) const {
    return sum_rows(f) / (static_cast<double>(a_.rows) * static_cast<double>(a_.columns));
  }

  const float* load_gradient(std::int64_t at, float* buffer, std::int64_t n) const {
    const float* const g = load(a_.gradient, a_.gradient_dtype, at, buffer, n);
    if (rule_.factor == 1) return g;
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = g[i] * rule_.factor;
    return buffer;
  }

  double squares_of_row(std::int64_t row) const {
    double sum = 0;
    for (std::int64_t c = 0; c < a_.columns; c += tile) {
      const std::int64_t n = std::min(tile, a_.columns - c);
      ParameterRun<float> p(a_.parameter, a_.dtype, a_.narrow, row * a_.columns + c, n);
      run_variant<SquareSum>(static_cast<const float*>(p.values()), 0.0, &sum, n);
    }
    return sum;
  }

  // f(u, at, n) with the unclipped update of a row, run by run; `at`: its first value in the parameter.
  template <class F>
  void for_parts(std::int64_t row, float row_mean, F&& f) const {
    alignas(64) float gradient[tile], u[tile];
    for (std::int64_t c = 0; c < a_.columns; c += tile) {
      const std::int64_t n = std::min(tile, a_.columns - c), at = row * a_.columns + c;
      const float* const g = load_gradient(at, gradient, n);
      const bool is_factored = a_.row_moment != nullptr;
      const float of_row = is_factored ? a_.row_moment[row] / row_mean : 1.0f;
      const float* const columns = a_.column_moment + (is_factored ? c : at);
      with_target(isa(), [&]<Isa target>() {
        compiled_for<target, Precondition<target>, const float*, float, const float*, float*, std::int64_t>(
            g, of_row, columns, u, n);
      });
      if (is_factored) precondition_small(g, of_row, columns, u, n);
      f(static_cast<const float*>(u), at, n);
    }
  }

  // The second moments; returns the mean of the rows' moments.
  float update_moments() const {
    if (a_.row_moment == nullptr) {
      rows([&](std::int64_t row) {
        alignas(64) float buffer[tile];
        for (std::int64_t c = 0; c < a_.columns; c += tile) {
          const std::int64_t n = std::min(tile, a_.columns - c), at = row * a_.columns + c;
          const float* const g = load_gradient(at, buffer, n);
          for (std::int64_t i = 0; i < n; ++i) {
            float& v = a_.column_moment[at + i];
            v = rule_.moment(v, AdafactorRule::square(g[i], a_.epsilon1));
          }
        }
      });
      return 1;
    }
    rows([&](std::int64_t row) {
      alignas(64) float buffer[tile];
      double sum = 0;
      for (std::int64_t c = 0; c < a_.columns; c += tile) {
        const std::int64_t n = std::min(tile, a_.columns - c);
        const float* const g = load_gradient(row * a_.columns + c, buffer, n);
        run_variant<SquareSum>(g, a_.epsilon1, &sum, n);
      }
      float& r = a_.row_moment[row];
      r = rule_.moment(r, sum / static_cast<double>(a_.columns));
    });
    parallel_for(a_.columns, tile, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float buffer[tile];
      for (std::int64_t c = begin; c < end; c += tile) {
        const std::int64_t n = std::min(tile, end - c);
        alignas(64) double totals[tile] = {}, sums[tile];
        for (std::int64_t first = 0; first < a_.rows; first += stretch) {
          std::fill(sums, sums + n, 0.0);
          for (std::int64_t row = first; row < std::min(a_.rows, first + stretch); ++row) {
            const float* const g = load_gradient(row * a_.columns + c, buffer, n);
            run_variant<AddSquares>(g, a_.epsilon1, static_cast<double*>(sums), n);
          }
          for (std::int64_t i = 0; i < n; ++i) totals[i] += sums[i];
        }
        for (std::int64_t i = 0; i < n; ++i) {
          float& v = a_.column_moment[c + i];
          v = rule_.moment(v, totals[i] / static_cast<double>(a_.rows));
        }
      }
    });
    const double total = sum_rows([&](std::int64_t row) { return static_cast<double>(a_.row_moment[row]); });
    return static_cast<float>(total / static_cast<double>(a_.rows));
  }

  const AdafactorArgs& a_;
  AdafactorRule rule_;
  std::int64_t share_;
};

}  // namespace adafactor_detail

void adafactor_on_cpu(const AdafactorArgs& args) {
  if (args.rows > 0 && args.columns > 0) adafactor_detail::Step(args).run();
}

}  // namespace thimble::kernels
