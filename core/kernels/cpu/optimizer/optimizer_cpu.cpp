// Optimizer updates on the CPU: elements are independent, as are blocks of 8-bit moments, so threads do not change
// bits.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/core/threads/parallel.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels {

// ---- Tensors during an update on the CPU, in the compute type, a run of elements at a time.

/// Most elements of a run.
inline constexpr std::int64_t run_elements = 512;

/// Elements [at, at + n) of a gradient or a tensor of state: in place, or loaded into a buffer.
template <class T>
class ElementRun {
 public:
  ElementRun(const void* data, DType dtype, std::int64_t at, std::int64_t n) : dtype_(dtype), n_(n) {
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
    place_ = begin != nullptr ? begin + at * static_cast<std::int64_t>(size_of(dtype)) : nullptr;
    values_ = reinterpret_cast<T*>(place_);
    if (!place_ || dtype == dtype_of<T>) return;
    values_ = buffer_;
    load_elements(place_, dtype, 0, 1, buffer_, n);
  }

  ElementRun(const void* data, DType dtype, const NarrowArgs&, std::int64_t at, std::int64_t n)
      : ElementRun(data, dtype, at, n) {}

  T* values() { return values_; }  ///< null if there is no tensor
  void store() {
    if (values_ == buffer_) store_elements(buffer_, place_, dtype_, 0, n_);
  }

 private:
  std::byte* place_;
  DType dtype_;
  std::int64_t n_;
  T* values_;
  alignas(64) T buffer_[run_elements];
};

/// Elements [at, at + n) of a parameter that is updated in f32: read in place, with their compensation, or from their
/// master copy. store() follows NarrowArgs.
class NarrowRun {
 public:
  NarrowRun(void* parameter, DType dtype, const NarrowArgs& how, std::int64_t at, std::int64_t n)
      : run_(how.master != nullptr ? how.master : parameter, how.master != nullptr ? DType::f32 : dtype, at, n),
        how_(how),
        form_(form_of(how)),
        dtype_(dtype),
        at_(at),
        n_(n),
        place_(bytes_at(parameter)) {
    if (form_ != NarrowForm::compensated) return;
    alignas(64) float lost[run_elements];
    load_f32(bytes_at(how.compensation), dtype_, 1, lost, n_);
    for (std::int64_t i = 0; i < n_; ++i) run_.values()[i] += lost[i];
  }

  float* values() { return run_.values(); }

  void store() {
    if (form_ == NarrowForm::stochastic) return store_stochastically();
    if (form_ == NarrowForm::compensated) return store_compensated();
    run_.store();
    if (form_ == NarrowForm::master) store_f32(run_.values(), place_, dtype_, 1, n_);
  }

 private:
  std::byte* bytes_at(void* data) const {
    return static_cast<std::byte*>(data) + at_ * static_cast<std::int64_t>(size_of(dtype_));
  }

  // Words are drawn in blocks of eight elements of the parameter; a run may begin within one.
  void store_stochastically() {
    std::uint32_t words[run_elements / 2 + 4];
    const std::int64_t first = how_.first_element + at_, block = first / 8, before = first % 8;
    sample_words(how_.site, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                 (before + n_ + 7) / 8, words);
    auto* const to = reinterpret_cast<bf16*>(place_);
    const float* const values = run_.values();
    for (std::int64_t i = 0; i < n_; ++i) {
      const std::int64_t k = before + i;
      to[i] = round_stochastically(values[i], words[k / 2] >> (16 * (k % 2)) & 0xFFFFu);
    }
  }

  void store_compensated() {
    alignas(64) float lost[run_elements];
    float* const values = run_.values();
    store_f32(values, place_, dtype_, 1, n_);
    load_f32(place_, dtype_, 1, lost, n_);
    for (std::int64_t i = 0; i < n_; ++i) lost[i] = values[i] - lost[i];
    store_f32(lost, bytes_at(how_.compensation), dtype_, 1, n_);
  }

  ElementRun<float> run_;
  const NarrowArgs& how_;
  NarrowForm form_;
  DType dtype_;
  std::int64_t at_, n_;
  std::byte* place_;
};

/// A parameter in the compute type of its update; f64 is the widest type.
template <class T>
using ParameterRun = std::conditional_t<std::is_same_v<T, float>, NarrowRun, ElementRun<double>>;

// ---- A block of an 8-bit moment during an update on the CPU. Its magnitude is a maximum, so no variant changes bits.

template <bool is_first, Isa target>
struct BlockMoment {
  using Code = quant::DynamicCode<is_first>;
  using V = Simd<float, target>;
  using U = Simd<std::uint32_t, target>;

  /// The block at `at` has n elements; those behind it are 0.
  THIMBLE_ALWAYS_INLINE BlockMoment(const MomentArgs& moment, std::int64_t at, std::int64_t n)
      : codes(static_cast<std::uint8_t*>(moment.values) + at), scale(moment.scales + at / state_block) {
    V::broadcast(factor, *scale);
    for (std::int64_t i = 0; i < n; ++i) words[i] = codes[i];
    std::fill(words + n, words + state_block, is_first ? 127u : 0u);
  }
  THIMBLE_ALWAYS_INLINE void load(std::int64_t i) {
    typename V::Vector x;
    V::look_up(x, code.table->values.data(), U::at(words + i));
    V::at(values + i) = x * factor;
  }
  THIMBLE_ALWAYS_INLINE void store(std::int64_t n) {
    const quant::BlockScale s = quant::block_scale(largest_bits(values, state_block), 1.0f, DType::f32);
    *scale = s.scale;
    V::broadcast(factor, s.inverse);
    for (std::int64_t i = 0; i < state_block; i += V::lanes) {
      typename U::Vector found;
      const typename V::Vector scaled = V::at(values + i) * factor;
      EncodeLoop<Code, target>::find(code, scaled, found);
      if constexpr (!is_first) {  // not_lost(): no second moment is negative
        const typename U::Vector bits = U::at(reinterpret_cast<const std::uint32_t*>(values) + i);
        const typename U::Vector least = bits > 1u ? typename U::Vector{} + 1u : bits;
        found = found > least ? found : least;
      }
      U::at(words + i) = found;
    }
    for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(words[i]);
    for (std::int64_t i = 0; !s.is_finite && i < n; ++i) codes[i] = is_first ? 0 : not_lost(0, values[i]);
  }

  std::uint8_t* codes;
  float* scale;
  typename V::Vector factor;  // the scale, then its inverse
  Code code{&quant::dynamic_table(is_first)};
  alignas(64) float values[state_block];
  alignas(64) std::uint32_t words[state_block];  // codes
};

/// *total += the squares of n values, and `more` for each, in lanes, which are added in order.
struct SquareSum {
  template <class T>
  THIMBLE_ALWAYS_INLINE static void run(const T* x, double more, double* total, std::int64_t n) {
    constexpr int lanes = AdafactorArgs::lanes;
    double lane[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (int k = 0; k < lanes; ++k) lane[k] += AdafactorRule::square(x[i + k], more);
    }
    for (; i < n; ++i) lane[i % lanes] += AdafactorRule::square(x[i], more);
    for (const double sum : lane) *total += sum;
  }
};

// ---- Adafactor on the CPU, in four passes over the gradient: rows, columns, the size of the update, the update. Sums
// over rows and over the whole add up `shares` equal ranges of rows, whatever the number of threads.

namespace adafactor_detail {

constexpr std::int64_t tile = AdafactorArgs::tile;        // values processed at once
constexpr std::int64_t shares = AdafactorArgs::shares;    // ranges of rows with separate sums
constexpr std::int64_t stretch = AdafactorArgs::stretch;  // rows of a column with a separate sum
static_assert(tile <= run_elements);

struct AddSquares {
  THIMBLE_ALWAYS_INLINE static void run(const float* x, double more, double* __restrict sums, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) sums[i] += AdafactorRule::square(x[i], more);
  }
};

// y = x / sqrt(row moment * columns), with the row moment divided by the mean of all rows' moments. Uses the product of
// the roots where the product itself has few digits or none.
template <Isa target>
struct Precondition {
  THIMBLE_ALWAYS_INLINE static void run(const float* x, float row, const float* columns, float* __restrict y,
                                        std::int64_t n) {
    using V = Simd<float, target>;
    constexpr float small = AdafactorRule::small_product;
    typename V::Vector least, root;
    V::broadcast(least, small);
    std::int64_t i = 0;
    for (; i + V::lanes <= n; i += V::lanes) {
      const typename V::Vector v = row * V::at(columns + i);
      least = v < least ? v : least;
      V::square_root(root, v);
      V::at(y + i) = V::at(x + i) / root;
    }
    bool is_small = i < n;
    for (int k = 0; k < V::lanes; ++k) is_small |= least[k] < small;
    for (; i < n; ++i) y[i] = x[i] / std::sqrt(row * columns[i]);
    for (i = 0; is_small && i < n; ++i) {
      if (row * columns[i] < small) y[i] = x[i] / (std::sqrt(row) * std::sqrt(columns[i]));
    }
  }
};

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

  // The mean of f over all values.
  template <class F>
  double mean(F&& f) const {
    return sum_rows(f) / (static_cast<double>(a_.rows) * static_cast<double>(a_.columns));
  }

  const float* load_gradient(std::int64_t at, float* buffer, std::int64_t n) const {
    const float* const g = read_elements(a_.gradient, a_.gradient_dtype, at, n, buffer);
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

  // f(u, at, n) with the unclipped update of a row, run by run; `at` is the run's first element in the parameter.
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
      f(static_cast<const float*>(u), at, n);
    }
  }

  // Updates the second moments; returns the mean of the rows' moments.
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
    constexpr std::int64_t width = 4 * tile;  // rows are read in long runs
    parallel_for(a_.columns, tile, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float buffer[width];
      for (std::int64_t c = begin; c < end; c += width) {
        const std::int64_t n = std::min(width, end - c);
        alignas(64) double totals[width] = {}, sums[width];
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

// Whether an update needs no buffer for a chunk's elements.
template <class T, class Args>
bool is_in_place(const Args& a) {
  return a.dtype == dtype_of<T> && a.gradient_dtype == dtype_of<T> &&
         (a.state_dtype == dtype_of<T> || a.state_dtype == DType::u8) && form_of(a.narrow) == NarrowForm::rounded;
}

// Arrays in the type of their update; moments that the rule lacks are null.
template <class Rule, class T, Isa target>
struct Update {
  /// Elements between an update and its prefetches: a processor by itself follows four streams too late.
  static constexpr std::int64_t ahead = 512, line = 64 / sizeof(T);

  static void run(const Rule& rule, T* __restrict p, const T* __restrict g, T* __restrict first, T* __restrict second,
                  std::int64_t n) {
    if constexpr (Rule::moments == 0) {
      for (std::int64_t i = 0; i < n; ++i) p[i] = rule.updated(p[i], g[i]);
    } else {
      if constexpr (Rule::moments == 1) second = first;  // not used, but no null
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
        if constexpr (Rule::moments == 1) {
          rule.update(p[i], g[i], first[i]);
        } else {
          rule.advance(p[i], g[i], first[i], second[i]);
          rule.update(p[i], first[i], std::sqrt(second[i]));
        }
      }
    }
  }

  // In one go, so that a vector's roots and quotients are computed while the next vectors are read.
  static THIMBLE_ALWAYS_INLINE void update_vector(const Rule& rule, T* p, const T* g, T* first, T* second) {
    using V = Simd<T, target>;
    typename V::Vector x = V::at(p), m = V::at(first);
    const typename V::Vector gradient = V::at(g);
    if constexpr (Rule::moments == 1) {
      rule.update(x, gradient, m);
    } else {
      typename V::Vector v = V::at(second), root;
      rule.advance(x, gradient, m, v);
      V::at(second) = v;
      V::square_root(root, v);
      rule.update(x, m, root);
    }
    V::at(first) = m;
    V::at(p) = x;
  }
};

template <class Rule, Isa target>
struct BlockUpdate {
  static void run(const Rule& rule, float* p, const float* g, const MomentArgs& first, const MomentArgs& second,
                  std::int64_t begin, std::int64_t end) {
    using Vectors = Update<Rule, float, target>;
    alignas(64) float rest[2][state_block] = {};  // p and g of a short block, then zeros
    for (std::int64_t at = begin; at < end; at += state_block, p += state_block, g += state_block) {
      const std::int64_t n = std::min(state_block, end - at);
      const bool is_short = n < state_block;
      float* const x = is_short ? std::copy(p, p + n, rest[0]) - n : p;
      const float* const gradient = is_short ? std::copy(g, g + n, rest[1]) - n : g;
      BlockMoment<true, target> m(first, at, n);
      BlockMoment<false, target> v(Rule::moments == 2 ? second : first, at, n);
      for (std::int64_t i = 0; i < state_block; i += Simd<float, target>::lanes) {
        __builtin_prefetch(p + i + Vectors::ahead);
        __builtin_prefetch(g + i + Vectors::ahead);
        m.load(i);
        if constexpr (Rule::moments == 2) v.load(i);
        Vectors::update_vector(rule, x + i, gradient + i, m.values + i, v.values + i);
      }
      m.store(n);
      if constexpr (Rule::moments == 2) v.store(n);
      if (is_short) std::copy(x, x + n, p);
    }
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
      if constexpr (Rule::moments > 0 && std::is_same_v<T, float>) {  // moments of f64 parameters are f64
        if (a.state_dtype == DType::u8) {
          with_target(isa(), [&]<Isa target>() {
            compiled_for<target, BlockUpdate<Rule, target>, Rule, float*, const float*, MomentArgs, MomentArgs,
                         std::int64_t, std::int64_t>(rule, p.values(), g.values(), a.first, a.second, at, at + n);
          });
          return p.store();
        }
      }
      ElementRun<T> first(a.first.values, a.state_dtype, at, n), second(a.second.values, a.state_dtype, at, n);
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

// Elements [begin, end), chunk after chunk; T holds them exactly.
template <class T>
double squares_in(const SquareSumArgs& a, std::int64_t begin, std::int64_t end) {
  double total = 0;
  alignas(64) T values[chunk];
  for (std::int64_t at = begin; at < end; at += chunk) {
    const std::int64_t n = std::min(chunk, end - at);
    run_variant<SquareSum>(read_elements<T>(a.gradient, a.dtype, at, n, values), 0.0, &total, n);
  }
  return total;
}

double squares_of(const SquareSumArgs& a, std::int64_t begin, std::int64_t end) {
  return a.dtype == DType::f64 ? squares_in<double>(a, begin, end) : squares_in<float>(a, begin, end);
}

// Ranges are summed separately and added one after the other, so the order depends only on n.
void square_sum(const SquareSumArgs& a) {
  constexpr std::int64_t most = 1024;  // ranges in one pass
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
