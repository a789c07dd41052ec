#pragma once
// An optimizer's update of one element, shared by the kernels of all devices: the same operations in the same order, so
// the same bits. Values that all elements of an update share are computed on the host, once.
//
// The rule of an ElementUpdate defines its number of moments, and
// - with none: the new p is updated(p, g);
// - with one: update(p, g, m) makes the new p and moment;
// - with two: advance(p, g, m, v) makes the new moments, and update(p, m, sqrt(v)) the new p.
//
// With moments, these take elements or vectors of them.
//
// with_rule finds it. Dtypes of parameters and moments are the kernels' concern.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <thimble/core/config.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/numbers/convert.h>

namespace thimble::kernels {

/// SgdArgs' formula, with momentum or without.
template <class T, int moment_count>
struct SgdRule {
  static constexpr int moments = moment_count;
  T rate, momentum, decay, factor;
  bool nesterov;

  explicit SgdRule(const SgdArgs& a)
      : rate(static_cast<T>(a.rate)),
        momentum(static_cast<T>(a.momentum)),
        decay(static_cast<T>(a.weight_decay)),
        factor(static_cast<T>(a.gradient_factor)),
        nesterov(a.nesterov) {}

  THIMBLE_HD T updated(T p, T g) const { return p - rate * (g * factor + decay * p); }
  template <class X>
  THIMBLE_HD void update(X& p, const X& g, X& m) const {
    const X d = g * factor + decay * p;
    m = momentum * m + d;
    p = p - rate * (nesterov ? d + momentum * m : m);
  }
};

/// AdamArgs' formula.
template <class T>
struct AdamRule {
  static constexpr int moments = 2;
  T factor, b1, b2, r1, r2, shrink, decay, rate, correction, epsilon;

  explicit AdamRule(const AdamArgs& a)
      : factor(static_cast<T>(a.gradient_factor)),
        b1(static_cast<T>(a.beta1)),
        b2(static_cast<T>(a.beta2)),
        r1(static_cast<T>(1 - a.beta1)),
        r2(static_cast<T>(1 - a.beta2)),
        shrink(a.is_decoupled ? static_cast<T>(1 - a.rate * a.weight_decay) : T(1)),
        decay(a.is_decoupled ? T(0) : static_cast<T>(a.weight_decay)),
        rate(static_cast<T>(a.rate / (1 - std::pow(a.beta1, static_cast<double>(a.step))))),
        correction(static_cast<T>(1 / std::sqrt(1 - std::pow(a.beta2, static_cast<double>(a.step))))),
        epsilon(static_cast<T>(a.epsilon)) {}

  template <class X>
  THIMBLE_HD void advance(const X& p, const X& g, X& m, X& v) const {
    const X d = g * factor + decay * p;
    m = b1 * m + r1 * d;
    v = b2 * v + r2 * (d * d);
  }
  template <class X>
  THIMBLE_HD void update(X& p, const X& m, const X& root_of_v) const {
    p = p * shrink - rate * (m / (root_of_v * correction + epsilon));
  }
};

/// Calls f(rule) with the rule of an update that computes in T.
template <class T, class F>
void with_rule(const SgdArgs& a, F&& f) {
  a.first.values != nullptr ? f(SgdRule<T, 1>(a)) : f(SgdRule<T, 0>(a));
}
template <class T, class F>
void with_rule(const AdamArgs& a, F&& f) {
  f(AdamRule<T>(a));
}

/// The code of an 8-bit second moment: a value above zero is never rounded to code 0 (MomentArgs).
THIMBLE_HD inline std::uint8_t not_lost(std::uint8_t code, float second_moment) {
  const std::uint32_t least = second_moment > 0.0f ? 1u : 0u;
  return static_cast<std::uint8_t>(code > least ? code : least);
}

/// The rate of an Adafactor step: the schedule's, or relative to the step number (algorithm 5).
inline double adafactor_rate(const AdafactorArgs& a) {
  return a.has_relative_step ? std::min(1e-2, 1 / std::sqrt(static_cast<double>(a.step))) : a.rate;
}

/// AdafactorArgs' formula for single elements. Sums of squares are of f32 values in f64.
struct AdafactorRule {
  /// A product of row and column below this has lost digits; the product of their roots has all.
  static constexpr float small_product = 0x1p-100f;

  double beta2, rest, epsilon1, epsilon2, clip, base_rate;
  float beta1, shrink, factor;
  bool scales_by_parameter;

  explicit AdafactorRule(const AdafactorArgs& a)
      : beta2(1 - std::pow(static_cast<double>(a.step), -a.decay)),
        rest(1 - beta2),
        epsilon1(a.epsilon1),
        epsilon2(a.epsilon2),
        clip(a.clip),
        base_rate(adafactor_rate(a)),
        beta1(static_cast<float>(a.beta1)),
        shrink(static_cast<float>(1 - base_rate * a.weight_decay)),
        factor(static_cast<float>(a.gradient_factor)),
        scales_by_parameter(a.scales_by_parameter) {}

  /// The new moment, from `mean`, the mean of its squares: never infinite, which would end as 0 / 0 in other rows.
  THIMBLE_HD float moment(float before, double mean) const {
    constexpr float most = std::numeric_limits<float>::max();
    const double next = beta2 * before + rest * mean;
    return next > static_cast<double>(most) ? most : static_cast<float>(next);
  }
  /// A square plus epsilon.
  THIMBLE_HD static double square(double x, double more) { return x * x + more; }
  /// The factor of updates whose mean square is `size`.
  THIMBLE_HD float clipping(double size) const {
    const double ratio = std::sqrt(size) / clip;
    return static_cast<float>(1 / (ratio > 1 ? ratio : 1.0));
  }
  /// The length of the step of a parameter whose mean square is `size`.
  THIMBLE_HD float length(double size) const {
    if (!scales_by_parameter) return static_cast<float>(base_rate);
    const double root = std::sqrt(size);
    return static_cast<float>(base_rate * (root > epsilon2 ? root : epsilon2));
  }
  /// The new first moment.
  THIMBLE_HD float momentum(float m, float u, float clipping) const {
    return beta1 * m + (1.0f - beta1) * (u * clipping);
  }
  THIMBLE_HD float updated(float p, float length, float direction) const { return p * shrink - length * direction; }
};

// ---- Storage of a parameter narrower than f32 (NarrowArgs, core/kernels/optimizer.h), as far as all devices share it.
// Every optimizer's kernel reads and stores parameters through one class: in optimizer_cpu.cpp on the CPU, in
// cuda/optimizer/parameter.h on CUDA devices.

/// The form that NarrowArgs select; `rounded` for f32 and f64 parameters, which need no rounding.
enum class NarrowForm : std::uint8_t { rounded, master, compensated, stochastic };

inline NarrowForm form_of(const NarrowArgs& how) noexcept {
  if (how.is_stochastic) return NarrowForm::stochastic;
  if (how.master != nullptr) return NarrowForm::master;
  return how.compensation != nullptr ? NarrowForm::compensated : NarrowForm::rounded;
}

/// `value` in bf16, rounded up or down so that the mean over `random` (16 uniform bits) is `value`: adding random
/// carries from the bits below bf16's last one. Infinity and NaN stay unchanged; a value beyond bf16's largest number
/// may become infinity, as in rounding to nearest.
THIMBLE_HD inline bf16 round_stochastically(float value, std::uint32_t random) noexcept {
  const auto bits = bit_cast<std::uint32_t>(value);
  if ((bits & 0x7F800000u) == 0x7F800000u) return bf16(value);
  return bf16::from_bits(static_cast<std::uint16_t>((bits + random) >> 16));
}

/// The 16 random bits of element `place` of a block of eight: half place % 2 of word place / 2 % 4.
THIMBLE_HD inline std::uint32_t rounding_bits(const PhiloxBlock& words, int place) noexcept {
  const std::uint32_t low = place % 4 < 2 ? words.word[0] : words.word[1];  // no index: registers have no addresses
  const std::uint32_t high = place % 4 < 2 ? words.word[2] : words.word[3];
  return (place < 4 ? low : high) >> (16 * (place % 2)) & 0xFFFFu;
}

/// The random numbers of elements 8 block .. 8 block + 7.
THIMBLE_HD inline PhiloxBlock rounding_block(const RandomSite& site, std::int64_t block) noexcept {
  return random_block(site, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32));
}

/// The 16 random bits of an element.
THIMBLE_HD inline std::uint32_t rounding_bits(const RandomSite& site, std::int64_t element) noexcept {
  return rounding_bits(rounding_block(site, element / 8), static_cast<int>(element % 8));
}

}  // namespace thimble::kernels
