#pragma once
// Neighbouring elements that a thread reads and writes together, in words of up to 16 bytes.

#include <cstdint>
#include <initializer_list>

#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

template <class S, int count>
struct alignas(sizeof(S) * count < 16 ? sizeof(S) * count : 16) Words {
  S values[count];
};

/// Elements at .. at + count - 1, which begin at a multiple of the words' alignment.
template <int count, class S>
THIMBLE_DEVICE inline Words<S, count> words_at(const S* from, std::int64_t at) {
  return *reinterpret_cast<const Words<S, count>*>(from + at);
}
template <class S, int count>
THIMBLE_DEVICE inline void put_words(S* to, std::int64_t at, const Words<S, count>& words) {
  *reinterpret_cast<Words<S, count>*>(to + at) = words;
}

/// Whether all operands (null: none) begin at multiples of 16 bytes.
inline bool are_aligned(std::initializer_list<const void*> operands) {
  std::uintptr_t addresses = 0;
  for (const void* const operand : operands) addresses |= reinterpret_cast<std::uintptr_t>(operand);
  return addresses % 16 == 0;
}

}  // namespace thimble::cuda_kernels
