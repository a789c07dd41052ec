#pragma once
// Operations on tiles of scores between attention's products. Each step is a struct for run_panel: compiled for every
// instruction set with its panel width as a constant, so that the loops over queries become vectors.

#include <cstdint>
#include <limits>

#include <thimble/core/kernels/cpu/attention/attention_product.h>
#include <thimble/core/kernels/cpu/base/exp_below.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/numbers/math.h>

namespace thimble::kernels::attention_detail {

/// Queries of a panel: two vectors of them. More would read the keys less often, but with a causal mask compute more
/// hidden scores.
template <class T>
constexpr std::int64_t panel_queries(Isa isa) noexcept {
  return 2 * tile_lanes<T>(isa);
}

/// Step<T, panel, is_fused>::run(args...) for the current instruction set.
template <template <class, int, bool> class Step, class T, class... Args>
void run_panel(const Args&... args) {
#if defined(__x86_64__)
  constexpr int wide = panel_queries<T>(Isa::avx512), narrow = panel_queries<T>(Isa::avx2);
  if (isa() == Isa::avx512) return variants_detail::run_avx512<Step<T, wide, true>>(args...);
  if (isa() == Isa::avx2) return variants_detail::run_avx2<Step<T, narrow, true>>(args...);
#endif
  Step<T, panel_queries<T>(Isa::generic), false>::run(args...);
}

/// The probabilities of a block that dropout keeps: bit j % 32 of [j / 32 panel + w] is key j's for query w.
using KeptBits = std::uint32_t;

/// The decisions on 64 keys of one query, from their random words.
struct PackKept {
  static void run(std::uint32_t threshold, const std::uint32_t* words, std::int64_t panel, KeptBits* kept) {
    for (int half = 0; half < 2; ++half) {
      KeptBits bits = 0;
      for (int i = 0; i < 32; ++i) bits |= KeptBits{words[32 * half + i] >= threshold} << i;
      kept[half * panel] = bits;
    }
  }
};

/// x where the bit is set, else 0, as bits.
inline float keep_if(float x, KeptBits bits, int bit) noexcept {
  return math::detail::from_bits(math::detail::bits_of(x) & (KeptBits{0} - (bits >> bit & 1)));
}
inline double keep_if(double x, KeptBits bits, int bit) noexcept { return bits >> bit & 1 ? x : 0.0; }

/// scores (rows, panel) = -infinity but where low[w] <= row < high[w].
template <class T, int panel, bool is_fused>
struct HideUnseen {
  static void run(std::int64_t rows, const T* __restrict low, const T* __restrict high, T* __restrict scores) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      const T row = static_cast<T>(j);
      for (int w = 0; w < panel; ++w) {
        z[w] = row >= low[w] && row < high[w] ? z[w] : -std::numeric_limits<T>::infinity();
      }
    }
  }
};

/// scores (rows, panel) = exp(scores - running maximum); updates maximum, sum and the factor of the earlier blocks
/// (`old`). A query with only -infinity so far subtracts a maximum of 0.
template <class T, int panel, bool is_fused>
struct OnlineSoftmax {
  static void run(std::int64_t rows, T* __restrict scores, T* __restrict largest, T* __restrict sum,
                  T* __restrict old) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    alignas(64) T added[panel], subtracted[panel], found[panel];
    for (int w = 0; w < panel; ++w) added[w] = 0, found[w] = largest[w];
    std::int64_t j = 0;
    // Four rows at a time: a maximum that waits for the row before it is slower than reading.
    for (; j + 4 <= rows; j += 4) {
      const T* const z = scores + j * panel;
      for (int w = 0; w < panel; ++w) {
        const T a = z[w] > z[w + panel] ? z[w] : z[w + panel];
        const T b = z[w + 2 * panel] > z[w + 3 * panel] ? z[w + 2 * panel] : z[w + 3 * panel];
        const T c = a > b ? a : b;
        found[w] = c > found[w] ? c : found[w];
      }
    }
    for (; j < rows; ++j) {
      const T* const z = scores + j * panel;
      for (int w = 0; w < panel; ++w) found[w] = z[w] > found[w] ? z[w] : found[w];
    }
    for (int w = 0; w < panel; ++w) {
      subtracted[w] = found[w] == lowest ? T(0) : found[w];
      old[w] = exp_below<is_fused>(largest[w] - subtracted[w]);
      largest[w] = found[w];
    }
    for (j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      for (int w = 0; w < panel; ++w) {
        const T e = exp_below<is_fused>(z[w] - subtracted[w]);
        z[w] = e;
        added[w] += e;
      }
    }
    for (int w = 0; w < panel; ++w) sum[w] = sum[w] * old[w] + added[w];
  }
};

/// scores (rows, panel) = scale x scores where kept, else 0.
template <class T, int panel, bool is_fused>
struct DropScores {
  static void run(std::int64_t rows, T scale, const KeptBits* __restrict kept, T* __restrict scores) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      const KeptBits* const bits = kept + j / 32 * panel;
      const int bit = static_cast<int>(j % 32);
      for (int w = 0; w < panel; ++w) z[w] = keep_if(z[w] * scale, bits[w], bit);
    }
  }
};

/// With P the probabilities and dP the gradients of the dropped ones: scores become the dropped P, gradients the
/// scores' gradients, P (dP factor - delta).
template <class T, int panel, bool is_fused>
struct ScoreGradients {
  static void run(std::int64_t rows, const T* __restrict lse, const T* __restrict delta, T* __restrict scores,
                  T* __restrict gradients) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      T* const __restrict g = gradients + j * panel;
      for (int w = 0; w < panel; ++w) {
        const T p = exp_below<is_fused>(z[w] - lse[w]);
        z[w] = p;
        g[w] = p * (g[w] - delta[w]);
      }
    }
  }
};
template <class T, int panel, bool is_fused>
struct DroppedScoreGradients {
  static void run(std::int64_t rows, T scale, const KeptBits* __restrict kept, const T* __restrict lse,
                  const T* __restrict delta, T* __restrict scores, T* __restrict gradients) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      T* const __restrict g = gradients + j * panel;
      const KeptBits* const bits = kept + j / 32 * panel;
      const int bit = static_cast<int>(j % 32);
      for (int w = 0; w < panel; ++w) {
        const T p = exp_below<is_fused>(z[w] - lse[w]);
        z[w] = keep_if(p * scale, bits[w], bit);
        g[w] = p * (keep_if(g[w] * scale, bits[w], bit) - delta[w]);
      }
    }
  }
};

/// x (rows, panel) has every row multiplied by the row of factors.
template <class T, int panel, bool is_fused>
struct ScaleColumns {
  static void run(std::int64_t rows, const T* __restrict factors, T* __restrict x) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int w = 0; w < panel; ++w) x[r * panel + w] *= factors[w];
    }
  }
};

/// A finished panel's divisors and logarithms: lse = largest + log(sum), inverse = 1 / sum; `of_none` in both where a
/// query has only -infinity.
template <class T, int panel, bool is_fused>
struct FinishSums {
  static void run(T of_none, const T* __restrict largest, const T* __restrict sum, T* __restrict inverse,
                  T* __restrict lse) {
    for (int w = 0; w < panel; ++w) {
      const T inverse_sum = T(1) / sum[w], log_sum = largest[w] + math::log(sum[w]);
      inverse[w] = sum[w] == 0 ? of_none : inverse_sum;
      lse[w] = sum[w] == 0 ? of_none : log_sum;
    }
  }
};

}  // namespace thimble::kernels::attention_detail
