#pragma once
// Tensors during an update on the CPU, a run of elements at a time, in the compute type.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/optimizer_narrow.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/numbers/convert.h>

namespace thimble::kernels {

/// Elements of a run, at most.
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
    if constexpr (std::is_same_v<T, float>) {
      load_f32(place_, dtype, 1, buffer_, n);
    } else {
      load_f64(place_, dtype, 1, buffer_, n);
    }
  }

  T* values() { return values_; }  ///< null without a tensor
  void store() {
    if (values_ != buffer_) return;
    if constexpr (std::is_same_v<T, float>) {
      store_f32(buffer_, place_, dtype_, 1, n_);
    } else {
      store_f64(buffer_, place_, dtype_, 1, n_);
    }
  }

 protected:
  std::byte* place_;
  DType dtype_;
  std::int64_t n_;
  T* values_;
  alignas(64) T buffer_[run_elements];
};

/// Elements [at, at + n) of a parameter that is updated in f32: read in place, with their compensation, or from their
/// master copy; store() follows NarrowArgs.
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

/// The same for parameters that are updated in f64, the widest type.
class WideRun {
 public:
  WideRun(void* parameter, DType dtype, const NarrowArgs&, std::int64_t at, std::int64_t n)
      : run_(parameter, dtype, at, n) {}
  double* values() { return run_.values(); }
  void store() { run_.store(); }

 private:
  ElementRun<double> run_;
};

/// A parameter in the compute type of its update.
template <class T>
using ParameterRun = std::conditional_t<std::is_same_v<T, float>, NarrowRun, WideRun>;

}  // namespace thimble::kernels
