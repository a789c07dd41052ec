#pragma once
// Products on tensor cores, by warps: D (16, 8) += A (16, 16) B (16, 8), with A and B in f16, bf16 or, for f32 tensors,
// TF32, and sums in f32. T is the type of the elements in memory; float means TF32.
//
// Glossary
// - share: the elements of a block that a lane holds. Left is A, Right two neighbouring B, Sums is D; the instruction
//   fixes which elements a lane holds, and lane_map lists them.
//
// Policy
// - Rows of a tile in shared memory are an odd number of chunks apart, so that the eight rows that ldmatrix reads at
//   once are in different banks. The chunk behind a row is free for the row's extra data.
// - f32 elements are rounded to TF32 on their way from shared memory into a share, results on their way into the next
//   product; accumulators and stored values are f32.
// - A block in TF32 is two of the instruction's along the sum, 16 x 8 and 8 x 8. ldmatrix cannot transpose 32-bit
//   elements: they are read one by one, in the order of results (Order::paired), in which 32 lanes meet 32 banks.

#include <cstdint>
#include <type_traits>

#include <thimble/core/numbers/bits.h>
#include <thimble/cuda/kernel/tensor_core_instructions.h>

namespace thimble::cuda_kernels {

/// Of a share of 256 elements: two in a word, or one.
template <class T>
inline constexpr int share_words = sizeof(T) == 2 ? 4 : 8;
template <class T>
inline constexpr Order loaded_order = sizeof(T) == 2 ? Order::paired : Order::straight;

/// A share of A (16, 16).
template <class T, Order order = loaded_order<T>>
struct Left {
  std::uint32_t word[share_words<T>];
};
/// Of two B (16, 8) side by side.
template <class T, Order order = loaded_order<T>>
struct Right {
  std::uint32_t word[share_words<T>];
};
/// Of D (16, 8). Element e of lane L is at lane_map::sums(L, e): two neighbours in row L / 4, two in row L / 4 + 8.
struct Sums {
  float value[4];
};

/// Rows of W elements in shared memory.
template <class T, int W>
struct SharedTile {
  static_assert(W % 16 == 0);
  static constexpr int element_bytes = static_cast<int>(sizeof(T));
  static constexpr int chunks = W * element_bytes / 16;     ///< of a row
  static constexpr int row_bytes = W * element_bytes + 16;  ///< from one row to the next
  SharedAddress first;

  /// The row's column W is the chunk behind it.
  THIMBLE_DEVICE SharedAddress at(int row, int column) const {
    return first + static_cast<SharedAddress>(row * row_bytes + element_bytes * column);
  }
};

namespace tensor_core_detail {

/// The four words that ldmatrix gives the lane with this source, from word `first` of a share on; of f32 in TF32.
template <bool is_transposed, int N, class T, int W>
THIMBLE_DEVICE inline void load_block(std::uint32_t (&to)[N], int first, const SharedTile<T, W>& tile, int row,
                                      int column, Place source) {
  std::uint32_t words[4];
  load_matrices<is_transposed>(words, tile.at(row + source.row, column + source.column));
  THIMBLE_UNROLL
  for (int w = 0; w < 4; ++w) to[first + w] = sizeof(T) == 2 ? words[w] : tf32_word(bit_cast<float>(words[w]));
}

/// d += left x the first or second B of right.
template <class T, Order order>
THIMBLE_DEVICE inline void multiply_half(Sums& d, const Left<T, order>& left, const Right<T, order>& right, int half) {
  THIMBLE_UNROLL
  for (int step = 0; step < share_words<T> / 4; ++step) {
    const std::uint32_t* const l = left.word + 4 * step;
    const std::uint32_t* const r = right.word + share_words<T> / 2 * half + 2 * step;
    // In TF32 first the rows, then the places along the sum.
    const std::uint32_t a[4] = {l[0], l[sizeof(T) == 2 ? 1 : 2], l[sizeof(T) == 2 ? 2 : 1], l[3]}, b[2] = {r[0], r[1]};
    if constexpr (sizeof(T) == 2) {
      multiply_words<T>(d.value, a, b);
    } else {
      multiply_tf32(d.value, a, b);
    }
  }
}

}  // namespace tensor_core_detail

/// A = rows row .. row + 15, columns column .. column + 15 of the tile.
template <class T, int W>
THIMBLE_DEVICE inline Left<T> load_left(const Warp& warp, const SharedTile<T, W>& tile, int row, int column) {
  Left<T> left;
  if constexpr (sizeof(T) == 2) {
    tensor_core_detail::load_block<false>(left.word, 0, tile, row, column, lane_map::left_source(warp.lane));
  } else {
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      tensor_core_detail::load_block<false>(left.word, 4 * half, tile, row, column,
                                            lane_map::tf32_left_source(warp.lane, half));
    }
  }
  return left;
}

/// Two B: the transpose of that block.
template <class T, int W>
THIMBLE_DEVICE inline Right<T> load_right(const Warp& warp, const SharedTile<T, W>& tile, int row, int column) {
  Right<T> right;
  if constexpr (sizeof(T) == 2) {
    tensor_core_detail::load_block<false>(right.word, 0, tile, row, column, lane_map::right_source(warp.lane));
  } else {
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      tensor_core_detail::load_block<false>(right.word, 4 * half, tile, row, column,
                                            lane_map::tf32_right_source(warp.lane, half));
    }
  }
  return right;
}

/// Two B: the block as it stands.
template <class T, int W>
THIMBLE_DEVICE inline Right<T, Order::paired> load_right_transposed(const Warp& warp, const SharedTile<T, W>& tile,
                                                                    int row, int column) {
  Right<T, Order::paired> right;
  if constexpr (sizeof(T) == 2) {
    tensor_core_detail::load_block<true>(right.word, 0, tile, row, column, lane_map::transposed_source(warp.lane));
  } else {
    THIMBLE_UNROLL
    for (int e = 0; e < 8; ++e) {
      const Place at = lane_map::right(warp.lane, e);
      right.word[e] = tf32_word(load_shared(tile.at(row + at.row, column + at.column)));
    }
  }
  return right;
}

/// first += left x the first B of right, second += left x the second.
template <class T, Order order>
THIMBLE_DEVICE inline void multiply(Sums& first, Sums& second, const Left<T, order>& left,
                                    const Right<T, order>& right) {
  tensor_core_detail::multiply_half(first, left, right, 0);
  tensor_core_detail::multiply_half(second, left, right, 1);
}

/// Two D side by side, rounded to T, or TF32, as an A: a lane holds the same elements of both.
template <class T>
THIMBLE_DEVICE inline Left<T, Order::paired> rounded(const Sums& first, const Sums& second) {
  Left<T, Order::paired> left;
  if constexpr (sizeof(T) == 2) {
    left.word[0] = packed<T>(first.value[0], first.value[1]);
    left.word[1] = packed<T>(first.value[2], first.value[3]);
    left.word[2] = packed<T>(second.value[0], second.value[1]);
    left.word[3] = packed<T>(second.value[2], second.value[3]);
  } else {
    THIMBLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      left.word[e] = tf32_word(first.value[e]);
      left.word[4 + e] = tf32_word(second.value[e]);
    }
  }
  return left;
}

template <int N>
THIMBLE_DEVICE inline void clear(Sums (&sums)[N]) {
  THIMBLE_UNROLL
  for (int n = 0; n < N; ++n) {
    for (float& value : sums[n].value) value = 0;
  }
}

/// Combines the values of the four lanes that share a row of D; all four get the result.
template <class Op>
THIMBLE_DEVICE inline float combine_rows(float value, Op op) {
  for (int mask = 1; mask <= 2; mask *= 2) value = op(value, exchange(value, mask));
  return value;
}

}  // namespace thimble::cuda_kernels
