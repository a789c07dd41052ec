#pragma once
// Products on tensor cores, as warps do them: D (16, 8) += A (16, 16) B (16, 8), with A and B in f16, bf16 or, of f32
// tensors, TF32, and sums in f32. T is the type of the elements in memory; float stands for TF32.
//
// Glossary
// - share: the elements of a block that a lane holds. Left is A, Right two neighbouring B, Sums is D; which elements of
//   them a lane holds is fixed by the instruction, and lane_map says it.
//
// Policy
// - Rows of a tile in shared memory are an odd number of chunks apart, so that the eight rows that ldmatrix reads at
//   once lie in different banks. The chunk behind a row is free for what goes with the row.
// - f32 elements are rounded to TF32 on their way from shared memory into a share, results on their way into the next
//   product; what is added to and what is stored is f32.
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
  std::uint32_t word[own_lanes][share_words<T>];
};
/// Of two B (16, 8) side by side.
template <class T, Order order = loaded_order<T>>
struct Right {
  std::uint32_t word[own_lanes][share_words<T>];
};
/// Of D (16, 8). Element e of lane L is at lane_map::sums(L, e): two neighbours in row L / 4, two in row L / 4 + 8.
struct Sums {
  float value[own_lanes][4];
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
    return first + static_cast<SharedAddressStep>(row * row_bytes + element_bytes * column);
  }

 private:
  using SharedAddressStep = std::conditional_t<std::is_pointer_v<SharedAddress>, std::ptrdiff_t, std::uint32_t>;
};

namespace tensor_core_detail {

/// The four words that ldmatrix gives a lane, from word `first` of a share on; of f32 rounded to TF32.
template <bool is_transposed, int N, class T, int W, class Source>
THIMBLE_DEVICE inline void load_block(const Warp& warp, std::uint32_t (&to)[own_lanes][N], int first,
                                      const SharedTile<T, W>& tile, int row, int column, Source source) {
  SharedAddress rows[own_lanes];
  std::uint32_t words[own_lanes][4];
  for (int i = 0; i < own_lanes; ++i) {
    const Place at = source(warp.lane(i));
    rows[i] = tile.at(row + at.row, column + at.column);
  }
  load_matrices<is_transposed>(words, rows);
  for (int i = 0; i < own_lanes; ++i) {
    THIMBLE_UNROLL
    for (int w = 0; w < 4; ++w) {
      to[i][first + w] = sizeof(T) == 2 ? words[i][w] : tf32_word(bit_cast<float>(words[i][w]));
    }
  }
}

/// d += left x the first or second B of right.
template <class T, Order order>
THIMBLE_DEVICE inline void multiply_half(Sums& d, const Left<T, order>& left, const Right<T, order>& right, int half) {
  std::uint32_t a[own_lanes][4], b[own_lanes][2];
  THIMBLE_UNROLL
  for (int step = 0; step < share_words<T> / 4; ++step) {
    for (int i = 0; i < own_lanes; ++i) {
      const std::uint32_t* const l = left.word[i] + 4 * step;
      const std::uint32_t* const r = right.word[i] + share_words<T> / 2 * half + 2 * step;
      a[i][0] = l[0], a[i][3] = l[3], b[i][0] = r[0], b[i][1] = r[1];
      a[i][1] = sizeof(T) == 2 ? l[1] : l[2];  // in TF32 first the rows, then the places along the sum
      a[i][2] = sizeof(T) == 2 ? l[2] : l[1];
    }
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
    tensor_core_detail::load_block<false>(warp, left.word, 0, tile, row, column,
                                          [](int lane) { return lane_map::left_source(lane); });
  } else {
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      tensor_core_detail::load_block<false>(warp, left.word, 4 * half, tile, row, column,
                                            [half](int lane) { return lane_map::tf32_left_source(lane, half); });
    }
  }
  return left;
}

/// Two B: the transpose of that block.
template <class T, int W>
THIMBLE_DEVICE inline Right<T> load_right(const Warp& warp, const SharedTile<T, W>& tile, int row, int column) {
  Right<T> right;
  if constexpr (sizeof(T) == 2) {
    tensor_core_detail::load_block<false>(warp, right.word, 0, tile, row, column,
                                          [](int lane) { return lane_map::right_source(lane); });
  } else {
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      tensor_core_detail::load_block<false>(warp, right.word, 4 * half, tile, row, column,
                                            [half](int lane) { return lane_map::tf32_right_source(lane, half); });
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
    tensor_core_detail::load_block<true>(warp, right.word, 0, tile, row, column,
                                         [](int lane) { return lane_map::transposed_source(lane); });
  } else {
    for (int i = 0; i < own_lanes; ++i) {
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) {
        const Place at = lane_map::right(warp.lane(i), e);
        right.word[i][e] = tf32_word(load_shared(tile.at(row + at.row, column + at.column)));
      }
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
  for (int i = 0; i < own_lanes; ++i) {
    if constexpr (sizeof(T) == 2) {
      left.word[i][0] = packed<T>(first.value[i][0], first.value[i][1]);
      left.word[i][1] = packed<T>(first.value[i][2], first.value[i][3]);
      left.word[i][2] = packed<T>(second.value[i][0], second.value[i][1]);
      left.word[i][3] = packed<T>(second.value[i][2], second.value[i][3]);
    } else {
      THIMBLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        left.word[i][e] = tf32_word(first.value[i][e]);
        left.word[i][4 + e] = tf32_word(second.value[i][e]);
      }
    }
  }
  return left;
}

template <int N>
THIMBLE_DEVICE inline void clear(Sums (&sums)[N]) {
  THIMBLE_UNROLL
  for (int n = 0; n < N; ++n) {
    for (int i = 0; i < own_lanes; ++i) {
      for (int e = 0; e < 4; ++e) sums[n].value[i][e] = 0;
    }
  }
}

/// Combines the values of the four lanes that share a row of D; all four get the result.
template <class Op>
THIMBLE_DEVICE inline void combine_rows(float (&value)[own_lanes], Op op) {
  float other[own_lanes];
  for (int mask = 1; mask <= 2; mask *= 2) {
    exchange(other, value, mask);
    for (int i = 0; i < own_lanes; ++i) value[i] = op(value[i], other[i]);
  }
}

}  // namespace thimble::cuda_kernels
