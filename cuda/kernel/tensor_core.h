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
// - f32 elements are rounded to TF32 when they move from shared memory into a share, results when they enter the next
//   product; accumulators and stored values are f32.
// - A block in TF32 takes two of the instruction's blocks along the sum, 16 x 8 and 8 x 8. ldmatrix cannot transpose
//   32-bit elements: they are read one by one, in the order of results (Order::paired), which avoids bank conflicts.

#include <cstdint>
#include <type_traits>

#include <thimble/core/numbers/bits.h>
#include <thimble/core/numbers/minifloat.h>
#include <thimble/cuda/kernel/quick.h>
#include <thimble/cuda/kernel/words.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "attention on tensor cores needs compute capability 8.0: set CMAKE_CUDA_ARCHITECTURES to 80 or later"
#endif

// ---- The instructions of tensor cores, issued by a warp: blocks of shared memory into registers (ldmatrix), products
// (mma.sync), and the roundings of their operands. Needs compute capability 8.0.
//
// Glossary
// - share: the elements of a block that a lane holds; lane_map lists them.
// - TF32: an f32 with 11 significant bits instead of 24, the other 13 bits zero. It is in a 32-bit word.
//
// Policy
// - The host (tests/emulated/tensor_core.h) executes the instructions by the tables of the PTX ISA on the words of a
//   warp's 32 lanes, so a wrong map gives wrong products there. It also treats a TF32 operand with more than 11
//   significant bits as NaN, which finds a missing rounding. (A GPU silently drops the bits.)

namespace thimble::cuda_kernels {

struct Place {
  int row, column;
};

/// Which two of the eight indices along a TF32 sum a lane holds: lane % 4 and lane % 4 + 4 (straight), or two
/// neighbours (paired). Both operands of a product need the same order. Words loaded by ldmatrix are straight, shares
/// of results are paired; f16 and bf16, with two elements in a word, are paired in both cases.
enum class Order { straight, paired };

/// Positions of the elements of a lane's share, and of the 16 bytes whose address a lane gives ldmatrix.x4. Kernels use
/// lane_map:: (on the host tests/emulated/lane_map.h, so that a test can swap lanes).
namespace instruction_map {

/// Element e < 4 of D (16, 8).
THIMBLE_HD constexpr Place sums(int lane, int e) { return {lane / 4 + 8 * (e / 2), 2 * (lane % 4) + e % 2}; }
/// Element e < 8 of B (16, 16), two of (16, 8) side by side; of f16 and bf16 in word e / 2, of TF32 in word e. Paired.
THIMBLE_HD constexpr Place right(int lane, int e) {
  return {2 * (lane % 4) + e % 2 + 8 * (e / 2 % 2), lane / 4 + 8 * (e / 4)};
}

/// For A of 16-bit elements from a tile (rows, k).
THIMBLE_HD constexpr Place left_source(int lane) { return {lane % 16, 8 * (lane / 16)}; }
/// For B from a tile that holds its transpose, (columns, k).
THIMBLE_HD constexpr Place right_source(int lane) { return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)}; }
/// For B from a tile (k, columns): ldmatrix transposes.
THIMBLE_HD constexpr Place transposed_source(int lane) { return {lane % 16, 8 * (lane / 16)}; }

/// For half of an A in TF32, its columns 8 half .. 8 half + 7.
THIMBLE_HD constexpr Place tf32_left_source(int lane, int half) {
  return {lane % 8 + 8 * (lane / 16), 4 * (lane / 8 % 2) + 8 * half};
}
/// For one of two B in TF32, from a tile (columns, k).
THIMBLE_HD constexpr Place tf32_right_source(int lane, int half) { return {lane % 8 + 8 * half, 4 * (lane / 8)}; }

}  // namespace instruction_map
}  // namespace thimble::cuda_kernels

#if defined(__CUDACC__)
namespace thimble::cuda_kernels {

namespace lane_map = instruction_map;

/// Lanes 8 m .. 8 m + 7 address the rows of matrix m, which goes to word m. Lane L gets elements 2 (L % 4) and
/// 2 (L % 4) + 1 of row L / 4, or of the transpose's row.
template <bool is_transposed>
__device__ inline void load_matrices(std::uint32_t (&word)[4], SharedAddress row) {
  if constexpr (is_transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(row)
                 : "memory");
  }
}

/// D (16, 8) += A (16, 16) B (16, 8), of f16 or bf16.
template <class T>
__device__ inline void multiply_words(float (&sum)[4], const std::uint32_t (&left)[4],
                                      const std::uint32_t (&right)[2]) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  }
}

/// D (16, 8) += A (16, 8) B (8, 8), of TF32.
__device__ inline void multiply_tf32(float (&sum)[4], const std::uint32_t (&left)[4], const std::uint32_t (&right)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

/// A value as TF32, rounded to nearest, halves away from zero; the relative error is at most 2^-11.
__device__ inline std::uint32_t tf32_word(float value) {
  std::uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
}

}  // namespace thimble::cuda_kernels

#else
#include <emulated/tensor_core.h>
#endif

namespace thimble::cuda_kernels {

/// Words of a lane's share of 256 elements: two elements per word, or one.
template <class T>
inline constexpr int share_words = sizeof(T) == 2 ? 4 : 8;
template <class T>
inline constexpr Order loaded_order = sizeof(T) == 2 ? Order::paired : Order::straight;

/// A share of A (16, 16).
template <class T, Order order = loaded_order<T>>
struct Left {
  std::uint32_t word[share_words<T>];
};
/// A share of two B (16, 8) side by side.
template <class T, Order order = loaded_order<T>>
struct Right {
  std::uint32_t word[share_words<T>];
};
/// A share of D (16, 8). Element e of lane L is at lane_map::sums(L, e): two neighbours in row L / 4, two in L / 4 + 8.
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

/// Loads the lane's four words from ldmatrix into a share from word `first` on; f32 becomes TF32.
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
    // TF32 has the rows first, then the places along the sum.
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

/// Two B: the transpose of the block that load_left loads.
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

/// Two B: the block that load_left loads.
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
