#pragma once
// Parameters in the type that updates are made in: read from where they lie or from their master copy, and stored as
// NarrowArgs (core/kernels/optimizer.h) says. Also the readable form of each way to store, element by element.

#include <cstddef>
#include <cstdint>

#include <thimble/core/convert.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/random_bits.h>

namespace thimble::kernels {

/// `value` in bf16, up or down so that the mean over `random` (16 bits, uniform) is `value`: the bits below bf16's last
/// one carry into it when random is added to them. Infinite and NaN stay what they are; beyond bf16's largest number it
/// may give infinity, as rounding to nearest does.
THIMBLE_HD inline bf16 round_stochastically(float value, std::uint32_t random) noexcept {
  const auto bits = bit_cast<std::uint32_t>(value);
  if ((bits & 0x7F800000u) == 0x7F800000u) return bf16(value);
  return bf16::from_bits(static_cast<std::uint16_t>((bits + random) >> 16));
}

/// The 16 random bits of an element: half i % 2 of word i / 2 % 4 of block i / 8.
THIMBLE_HD inline std::uint32_t rounding_bits(const RandomSite& site, std::int64_t element) noexcept {
  const std::int64_t block = element / 8;
  const PhiloxBlock words =
      random_block(site, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32));
  return words.word[element / 2 % 4] >> (16 * (element % 2)) & 0xFFFFu;
}

namespace optimizer_detail {

inline constexpr std::int64_t narrow_chunk = 512;  // of an update; runs begin at its multiples

/// Elements [at, at + n) of a parameter, in f32; `Run` is the update's own, for what lies in memory as it is.
template <class Run>
class NarrowRun {
 public:
  NarrowRun(void* parameter, DType dtype, const NarrowArgs& how, std::int64_t at, std::int64_t n)
      : run_(how.master != nullptr ? how.master : parameter, how.master != nullptr ? DType::f32 : dtype, at, n),
        how_(how),
        dtype_(dtype),
        at_(at),
        n_(n),
        place_(bytes_at(parameter)),
        compensation_(how.compensation != nullptr ? bytes_at(how.compensation) : nullptr) {
    if (compensation_ == nullptr) return;
    alignas(64) float lost[narrow_chunk];
    load_f32(compensation_, dtype_, 1, lost, n_);
    for (std::int64_t i = 0; i < n_; ++i) run_.values()[i] += lost[i];
  }

  float* values() { return run_.values(); }

  void store() {
    if (how_.is_stochastic) return store_stochastically();
    if (compensation_ != nullptr) return store_compensated();
    run_.store();
    if (how_.master != nullptr) store_f32(run_.values(), place_, dtype_, 1, n_);
  }

 private:
  std::byte* bytes_at(void* data) const {
    return static_cast<std::byte*>(data) + at_ * static_cast<std::int64_t>(size_of(dtype_));
  }

  void store_stochastically() {
    std::uint32_t words[narrow_chunk / 2];
    const std::int64_t block = at_ / 8;
    sample_words(how_.site, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), (n_ + 7) / 8,
                 words);
    auto* const to = reinterpret_cast<bf16*>(place_);
    const float* const values = run_.values();
    for (std::int64_t i = 0; i < n_; ++i) {
      to[i] = round_stochastically(values[i], words[i / 2] >> (16 * (i % 2)) & 0xFFFFu);
    }
  }

  void store_compensated() {
    alignas(64) float lost[narrow_chunk];
    float* const values = run_.values();
    store_f32(values, place_, dtype_, 1, n_);
    load_f32(place_, dtype_, 1, lost, n_);
    for (std::int64_t i = 0; i < n_; ++i) lost[i] = values[i] - lost[i];
    store_f32(lost, compensation_, dtype_, 1, n_);
  }

  Run run_;
  const NarrowArgs& how_;
  DType dtype_;
  std::int64_t at_, n_;
  std::byte* place_;
  std::byte* compensation_;  // null: there is none
};

/// The same for f64, which nothing is narrower than.
template <class Run>
class PlainRun {
 public:
  PlainRun(void* parameter, DType dtype, const NarrowArgs&, std::int64_t at, std::int64_t n)
      : run_(parameter, dtype, at, n) {}
  auto* values() { return run_.values(); }
  void store() { run_.store(); }

 private:
  Run run_;
};

}  // namespace optimizer_detail
}  // namespace thimble::kernels
