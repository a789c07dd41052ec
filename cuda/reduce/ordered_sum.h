#pragma once
// Sums in sequential order with many loads in flight, which do not wait for additions.

#include <cstdint>

#include <thimble/cuda/kernel/words.h>

namespace thimble::cuda_kernels {

/// Neighbouring columns that a thread sums.
inline constexpr int columns_together = 4;
template <class S>
using ColumnWord = Words<S, columns_together>;

/// take(row, words) for `rows` rows in ascending order, `stride` elements apart; `words` has a word of each operand.
template <int operands, class S, class Take>
THIMBLE_DEVICE inline void for_each_row(const S* const (&from)[operands], std::int64_t rows, std::int64_t stride,
                                        const Take& take) {
  constexpr int ahead = 256 / operands / static_cast<int>(sizeof(ColumnWord<S>));
  const auto read = [&](std::int64_t row, ColumnWord<S>(&words)[operands]) {
    THIMBLE_UNROLL
    for (int k = 0; k < operands; ++k) words[k] = words_at<columns_together>(from[k], row * stride);
  };
  std::int64_t row = 0;
  THIMBLE_ROLLED
  for (; row + ahead <= rows; row += ahead) {
    ColumnWord<S> held[ahead][operands];
    THIMBLE_UNROLL
    for (int i = 0; i < ahead; ++i) read(row + i, held[i]);
    THIMBLE_UNROLL
    for (int i = 0; i < ahead; ++i) take(row + i, held[i]);
  }
  THIMBLE_ROLLED
  for (; row < rows; ++row) {
    ColumnWord<S> words[operands];
    read(row, words);
    take(row, words);
  }
}

/// The sums of four neighbouring columns.
template <class S>
THIMBLE_DEVICE inline Words<float, columns_together> sum_of_rows(const S* from, std::int64_t rows,
                                                                 std::int64_t stride) {
  Words<float, columns_together> sums{};
  for_each_row<1>({from}, rows, stride, [&](std::int64_t, const ColumnWord<S>(&word)[1]) {
    THIMBLE_UNROLL
    for (int e = 0; e < columns_together; ++e) sums.values[e] += widened(word[0].values[e]);
  });
  return sums;
}

/// first + from[0] + from[stride] + ..., `count` numbers.
template <class Total, class T>
THIMBLE_DEVICE inline Total sum_in_order(Total first, const T* from, std::int64_t count, std::int64_t stride) {
  constexpr int ahead = 32;
  std::int64_t n = 0;
  THIMBLE_ROLLED
  for (; n + ahead <= count; n += ahead) {
    T held[ahead];
    THIMBLE_UNROLL
    for (int i = 0; i < ahead; ++i) held[i] = from[(n + i) * stride];
    THIMBLE_UNROLL
    for (int i = 0; i < ahead; ++i) first += static_cast<Total>(held[i]);
  }
  THIMBLE_ROLLED
  for (; n < count; ++n) first += static_cast<Total>(from[n * stride]);
  return first;
}

}  // namespace thimble::cuda_kernels
