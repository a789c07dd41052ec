#pragma once
// A parameter in the kernels of all optimizers, read and stored element by element: NarrowArgs
// (core/kernels/optimizer.h) on a GPU.

#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/shared/optimizer_narrow.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/words.h>
#include <thimble/cuda/optimizer/update_list.h>

namespace thimble::cuda_kernels {

/// Eight neighbours of an array of n elements in f32, f16 or bf16, from a multiple of 8; the array begins at a multiple
/// of 16 bytes. Elements behind its end are any number, and are not written.
using Eights = float[8];
THIMBLE_DEVICE inline void read_eights(const void* data, DType dtype, std::int64_t at, std::int64_t n, Eights& values) {
  if (dtype == DType::f32) {
    const float* const from = static_cast<const float*>(data);
    const Words<float, 4> low = words_at<4>(from, at),
                          high = at + 4 < n ? words_at<4>(from, at + 4) : Words<float, 4>{};
    THIMBLE_UNROLL
    for (int e = 0; e < 4; ++e) values[e] = low.values[e], values[4 + e] = high.values[e];
  } else if (dtype == DType::bf16) {
    const Words<bf16, 8> words = words_at<8>(static_cast<const bf16*>(data), at);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] = widened(words.values[e]);
  } else {
    const Words<f16, 8> words = words_at<8>(static_cast<const f16*>(data), at);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] = widened(words.values[e]);
  }
}
/// The first `count` of eight neighbours, at any alignment, element by element; 0 for the others.
THIMBLE_DEVICE inline void read_singly(const void* data, DType dtype, std::int64_t at, int count, Eights& values) {
  THIMBLE_UNROLL
  for (int e = 0; e < 8; ++e) values[e] = 0;
  visit_met<float>(dtype, [&]<class S>() {
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      if (e < count) values[e] = convert_value<float>(static_cast<const S*>(data)[at + e]);
    }
  });
}
template <class S>
THIMBLE_DEVICE inline void put_eights(S* to, std::int64_t at, std::int64_t n, const Words<S, 8>& words) {
  if (at + 8 <= n) return put_words(to, at, words);
  THIMBLE_UNROLL
  for (int e = 0; e < 8; ++e) {
    if (at + e < n) to[at + e] = words.values[e];
  }
}
/// Returns the stored, rounded numbers in `values`.
THIMBLE_DEVICE inline void write_eights(void* data, DType dtype, std::int64_t at, std::int64_t n, Eights& values) {
  const auto put = [&]<class S>() {
    const Words<S, 8> words = narrowed<S>(values);
    put_eights(static_cast<S*>(data), at, n, words);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] = widened(words.values[e]);
  };
  if (dtype == DType::f32) return put.template operator()<float>();
  dtype == DType::bf16 ? put.template operator()<bf16>() : put.template operator()<f16>();
}

/// Elements of any dtype, one by one.
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

/// Shared by the parameters of a launch.
struct ParameterKind {
  DType dtype;
  kernels::NarrowForm form;
  template <class Args>
  explicit ParameterKind(const Args& a) : dtype(a.dtype), form(kernels::form_of(a.narrow)) {}
};

/// One of them; f64 parameters are stored unrounded. `step` is the update of the random bits.
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
  THIMBLE_DEVICE void get_eights(std::int64_t i, std::int64_t n, Eights& values) const {
    get_with(values, [&](const void* data, DType of_data, Eights& to) { read_eights(data, of_data, i, n, to); });
  }
  /// As read_singly().
  THIMBLE_DEVICE void get_singly(std::int64_t i, int count, Eights& values) const {
    get_with(values, [&](const void* data, DType of_data, Eights& to) { read_singly(data, of_data, i, count, to); });
  }
  THIMBLE_DEVICE void set_eights(std::int64_t i, std::int64_t n, const Eights& values) const {
    Eights stored;
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) stored[e] = values[e];
    if (form == kernels::NarrowForm::stochastic) {
      const PhiloxBlock bits = kernels::rounding_block(site, (first_element + i) / 8);
      Words<bf16, 8> words;
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) {
        words.values[e] = kernels::round_stochastically(values[e], kernels::rounding_bits(bits, e));
      }
      return put_eights(static_cast<bf16*>(place), i, n, words);
    }
    if (form == kernels::NarrowForm::master) write_eights(extra, DType::f32, i, n, stored);
    write_eights(place, dtype, i, n, stored);
    if (form != kernels::NarrowForm::compensated) return;
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) stored[e] = values[e] - stored[e];
    write_eights(extra, dtype, i, n, stored);
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

 private:
  template <class Read>
  THIMBLE_DEVICE void get_with(Eights& values, const Read& read) const {
    if (form == kernels::NarrowForm::master) return read(extra, DType::f32, values);
    read(place, dtype, values);
    if (form != kernels::NarrowForm::compensated) return;
    Eights more;
    read(extra, dtype, more);
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) values[e] += more[e];
  }
};

}  // namespace thimble::cuda_kernels
