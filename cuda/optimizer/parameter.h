#pragma once
// A parameter as the kernels of all optimizers read and store it, element by element: NarrowArgs
// (core/kernels/optimizer.h) on a GPU.

#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/shared/optimizer_narrow.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/optimizer/update_list.h>

namespace thimble::cuda_kernels {

/// What the parameters of a launch share.
struct ParameterKind {
  DType dtype;
  kernels::NarrowForm form;
  template <class Args>
  explicit ParameterKind(const Args& a) : dtype(a.dtype), form(kernels::form_of(a.narrow)) {}
};

/// One of them; those in f64 are stored as they are. `step` says the update that random bits are of.
struct Parameter {
  void* place;
  DType dtype;
  kernels::NarrowForm form;
  void* extra;  // master copy or compensation
  RandomSite site;
  std::int64_t first_element = 0;

  THIMBLE_DEVICE Parameter(const ParameterKind& kind, void* data, const NarrowExtra& more, const RandomSite& step)
      : place(data), dtype(kind.dtype), form(kind.form), extra(nullptr), site(step) {
    if (form == kernels::NarrowForm::stochastic) {
      site.site = more.rounding.site;
      first_element = 8 * static_cast<std::int64_t>(more.rounding.first_block);
    } else {
      extra = more.tensor;
    }
  }

  template <class T>
  THIMBLE_DEVICE T get(std::int64_t i) const {
    if constexpr (std::is_same_v<T, float>) {
      if (form == kernels::NarrowForm::master) return static_cast<const float*>(extra)[i];
      if (form == kernels::NarrowForm::compensated) return load<float>(place, dtype, i) + load<float>(extra, dtype, i);
    }
    return load<T>(place, dtype, i);
  }
  template <class T>
  THIMBLE_DEVICE void set(std::int64_t i, T value) const {
    if constexpr (std::is_same_v<T, float>) {
      if (form == kernels::NarrowForm::stochastic) {
        const std::uint32_t bits = kernels::rounding_bits(site, first_element + i);
        static_cast<bf16*>(place)[i] = kernels::round_stochastically(value, bits);
        return;
      }
      if (form == kernels::NarrowForm::master) static_cast<float*>(extra)[i] = value;
    }
    store<T>(place, dtype, i, value);
    if constexpr (std::is_same_v<T, float>) {
      if (form == kernels::NarrowForm::compensated) {
        store<float>(extra, dtype, i, value - load<float>(place, dtype, i));
      }
    }
  }
};

}  // namespace thimble::cuda_kernels
