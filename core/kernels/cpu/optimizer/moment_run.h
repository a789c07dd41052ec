#pragma once
// A moment during an update on the CPU, a run of elements at a time: an 8-bit moment is decoded when the run is made
// and encoded again when it is stored. A block's magnitude is a maximum, so no variant changes bits.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/optimizer/parameter_run.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/core/numbers/quant_code.h>

namespace thimble::kernels {
namespace moment_run_detail {

template <bool is_first>
struct Decode {
  THIMBLE_ALWAYS_INLINE static void run(const std::uint8_t* codes, float scale, float* x, std::int64_t n) {
    const quant::DynamicCode<is_first> code{&quant::dynamic_table(is_first)};
    decode_loop(
        code, codes, [scale](std::int64_t) { return scale; }, x, n);
  }
};

template <bool is_first>
struct Encode {
  THIMBLE_ALWAYS_INLINE static void run(const float* x, std::uint8_t* codes, float* scale, std::int64_t n) {
    const quant::DynamicCode<is_first> code{&quant::dynamic_table(is_first)};
    const quant::BlockScale s = quant::block_scale(largest_bits(x, n), 1.0f, DType::f32);
    *scale = s.scale;
    if (s.is_finite) {
      encode_loop(
          code, x, [inverse = s.inverse](std::int64_t) { return inverse; }, codes, n);
    } else {
      std::fill(codes, codes + n, std::uint8_t{0});
    }
    for (std::int64_t i = 0; !is_first && i < n; ++i) codes[i] = not_lost(codes[i], x[i]);
  }
};

}  // namespace moment_run_detail

/// Elements [at, at + n) of the first or second moment of an update that computes in T; a block begins at `at`.
template <class T, bool is_first>
class MomentRun : public ElementRun<T> {
 public:
  MomentRun(const MomentArgs& moment, DType dtype, std::int64_t at, std::int64_t n)
      : ElementRun<T>(moment.scales != nullptr ? nullptr : moment.values, dtype, at, n) {
    if (moment.scales == nullptr) return;
    codes_ = static_cast<std::uint8_t*>(moment.values) + at;
    scales_ = moment.scales + at / state_block;
    this->values_ = this->buffer_;
    for_blocks([&](float* values, std::uint8_t* codes, float* scale, std::int64_t count) {
      run_variant<moment_run_detail::Decode<is_first>>(codes, *scale, values, count);
    });
  }

  void store() {
    if (codes_ == nullptr) return ElementRun<T>::store();
    for_blocks([&](float* values, std::uint8_t* codes, float* scale, std::int64_t count) {
      run_variant<moment_run_detail::Encode<is_first>>(values, codes, scale, count);
    });
  }

 private:
  static_assert(run_elements % state_block == 0);

  // f(values, codes, scale, count) for each block. Moments of f64 parameters are f64.
  template <class F>
  void for_blocks(F&& f) {
    if constexpr (std::is_same_v<T, float>) {
      for (std::int64_t begin = 0; begin < this->n_; begin += state_block) {
        f(this->buffer_ + begin, codes_ + begin, scales_ + begin / state_block,
          std::min(state_block, this->n_ - begin));
      }
    }
  }

  std::uint8_t* codes_ = nullptr;  // null without codes
  float* scales_ = nullptr;
};

}  // namespace thimble::kernels
