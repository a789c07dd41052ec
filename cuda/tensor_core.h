#pragma once
// Products on tensor cores, as warps do them: D (16, 8) += A (16, 16) B (16, 8), with A and B in f16 or bf16 and sums
// in f32. Needs compute capability 8.0.
//
// Glossary
// - share: the elements of a block that a lane holds. Left is A, Right two neighbouring B, Sums is D; which elements of
//   them a lane holds is fixed by the instruction, and lane_map says it.
//
// Policy
// - The maps are constexpr functions that both builds use. The host runs ldmatrix and mma by their definition on the
//   shares of 32 lanes, so a wrong map gives wrong products there, too.
// - Rows of a tile in shared memory are an odd number of chunks apart, so that the eight rows that ldmatrix reads at
//   once lie in different banks. The chunk behind a row is free for what goes with the row.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <thimble/core/convert.h>
#include <thimble/core/half.h>
#include <thimble/cuda/warp.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "attention on tensor cores needs compute capability 8.0: set CMAKE_CUDA_ARCHITECTURES to 80 or later"
#endif

namespace thimble::cuda_kernels {

struct Place {
  int row, column;
};

/// Where the elements of a lane's share lie (PTX ISA, "Matrix Fragments for mma.m16n8k16"), and for which eight
/// elements in a row of a tile a lane gives ldmatrix.x4 the address.
namespace lane_map {

/// Element e < 4 of D (16, 8).
THIMBLE_HD constexpr Place sums(int lane, int e) { return {lane / 4 + 8 * (e / 2), 2 * (lane % 4) + e % 2}; }
/// Element e < 8 of A (16, 16); register e / 2.
THIMBLE_HD constexpr Place left(int lane, int e) {
  return {lane / 4 + 8 * (e / 2 % 2), 2 * (lane % 4) + e % 2 + 8 * (e / 4)};
}
/// Element e < 8 of B (16, 16), two of (16, 8) side by side; register e / 2.
THIMBLE_HD constexpr Place right(int lane, int e) {
  return {2 * (lane % 4) + e % 2 + 8 * (e / 2 % 2), lane / 4 + 8 * (e / 4)};
}
/// For A from a tile (rows, k).
THIMBLE_HD constexpr Place left_source(int lane) { return {lane % 16, 8 * (lane / 16)}; }
/// For B from a tile that holds its transpose, (columns, k).
THIMBLE_HD constexpr Place right_source(int lane) { return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)}; }
/// For B from a tile (k, columns): ldmatrix transposes.
THIMBLE_HD constexpr Place transposed_source(int lane) { return {lane % 16, 8 * (lane / 16)}; }

}  // namespace lane_map

#if defined(__CUDACC__)

template <bool is_transposed>
__device__ inline void load_matrices(std::uint32_t (&to)[1][4], const SharedAddress (&rows)[1]) {
  std::uint32_t* const word = to[0];
  if constexpr (is_transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(rows[0])
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(rows[0])
                 : "memory");
  }
}

template <class T>
__device__ inline void multiply_words(float (&d)[1][4], const std::uint32_t (&a)[1][4], const std::uint32_t (&b)[1][4],
                                      int half) {
  float* const sum = d[0];
  const std::uint32_t* const left = a[0];
  const std::uint32_t right0 = b[0][2 * half], right1 = b[0][2 * half + 1];
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
  }
}

/// Two values as T, rounded to nearest even; `low` in the lower half.
template <class T>
__device__ inline std::uint32_t packed(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

/// 2^x within 2 units in the last place.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else  // the host's emulation

/// Lanes 8 m .. 8 m + 7 name the rows of matrix m, which goes to register m: lane L gets elements 2 (L % 4) and the
/// next one of row L / 4, or of the transpose's.
template <bool is_transposed>
inline void load_matrices(std::uint32_t (&to)[32][4], const SharedAddress (&rows)[32]) {
  const auto element = [&](int matrix, int row, int column) {
    std::uint16_t bits;
    std::memcpy(&bits, rows[8 * matrix + row] + 2 * column, sizeof bits);
    return static_cast<std::uint32_t>(bits);
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      const int row = lane / 4, column = 2 * (lane % 4);
      to[lane][m] = is_transposed ? element(m, column, row) | element(m, column + 1, row) << 16
                                  : element(m, row, column) | element(m, row, column + 1) << 16;
    }
  }
}

template <class T>
inline void multiply_words(float (&d)[32][4], const std::uint32_t (&a)[32][4], const std::uint32_t (&b)[32][4],
                           int half) {
  float left[16][16], right[8][16];  // the right one's columns lie as rows
  const auto value = [](std::uint32_t word, int e) {
    return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(word >> (16 * (e % 2)))));
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const Place at = lane_map::left(lane, e);
      left[at.row][at.column] = value(a[lane][e / 2], e);
    }
    for (int e = 4 * half; e < 4 * half + 4; ++e) {
      const Place at = lane_map::right(lane, e);
      right[at.column - 8 * half][at.row] = value(b[lane][e / 2], e);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const Place at = lane_map::sums(lane, e);
      for (int k = 0; k < 16; ++k) d[lane][e] += left[at.row][k] * right[at.column][k];
    }
  }
}

template <class T>
inline std::uint32_t packed(float low, float high) {
  return convert_value<T>(low).bits | static_cast<std::uint32_t>(convert_value<T>(high).bits) << 16;
}

inline float power_of_two(float x) { return std::exp2(x); }

#endif

/// A share of A (16, 16).
struct Left {
  std::uint32_t word[own_lanes][4];
};
/// Of two B (16, 8) side by side.
struct Right {
  std::uint32_t word[own_lanes][4];
};
/// Of D (16, 8). Element e of lane L is at lane_map::sums(L, e): two neighbours in row L / 4, two in row L / 4 + 8.
struct Sums {
  float value[own_lanes][4];
};

/// Rows of W 16-bit elements in shared memory.
template <int W>
struct SharedTile {
  static_assert(W % 16 == 0);
  static constexpr int chunks = W / 8;          ///< of a row
  static constexpr int row_bytes = 2 * W + 16;  ///< from one row to the next
  SharedAddress first;

  /// The row's column W is the chunk behind it.
  THIMBLE_DEVICE SharedAddress at(int row, int column) const {
    return first + static_cast<SharedAddressStep>(row * row_bytes + 2 * column);
  }

 private:
  using SharedAddressStep = std::conditional_t<std::is_pointer_v<SharedAddress>, std::ptrdiff_t, std::uint32_t>;
};

namespace tensor_core_detail {

template <bool is_transposed, int W, class Source>
THIMBLE_DEVICE inline void load_block(const Warp& warp, std::uint32_t (&to)[own_lanes][4], const SharedTile<W>& tile,
                                      int row, int column, Source source) {
  SharedAddress rows[own_lanes];
  for (int i = 0; i < own_lanes; ++i) {
    const Place at = source(warp.lane(i));
    rows[i] = tile.at(row + at.row, column + at.column);
  }
  load_matrices<is_transposed>(to, rows);
}

}  // namespace tensor_core_detail

/// A = rows row .. row + 15, columns column .. column + 15 of the tile.
template <int W>
THIMBLE_DEVICE inline Left load_left(const Warp& warp, const SharedTile<W>& tile, int row, int column) {
  Left left;
  tensor_core_detail::load_block<false>(warp, left.word, tile, row, column,
                                        [](int lane) { return lane_map::left_source(lane); });
  return left;
}

/// Two B: the transpose of that block.
template <int W>
THIMBLE_DEVICE inline Right load_right(const Warp& warp, const SharedTile<W>& tile, int row, int column) {
  Right right;
  tensor_core_detail::load_block<false>(warp, right.word, tile, row, column,
                                        [](int lane) { return lane_map::right_source(lane); });
  return right;
}

/// Two B: the block as it stands.
template <int W>
THIMBLE_DEVICE inline Right load_right_transposed(const Warp& warp, const SharedTile<W>& tile, int row, int column) {
  Right right;
  tensor_core_detail::load_block<true>(warp, right.word, tile, row, column,
                                       [](int lane) { return lane_map::transposed_source(lane); });
  return right;
}

/// first += left x the first B of right, second += left x the second.
template <class T>
THIMBLE_DEVICE inline void multiply(Sums& first, Sums& second, const Left& left, const Right& right) {
  multiply_words<T>(first.value, left.word, right.word, 0);
  multiply_words<T>(second.value, left.word, right.word, 1);
}

/// Two D side by side, rounded to T, as an A: a lane holds the same elements of both.
template <class T>
THIMBLE_DEVICE inline Left rounded(const Sums& first, const Sums& second) {
  Left left;
  for (int i = 0; i < own_lanes; ++i) {
    left.word[i][0] = packed<T>(first.value[i][0], first.value[i][1]);
    left.word[i][1] = packed<T>(first.value[i][2], first.value[i][3]);
    left.word[i][2] = packed<T>(second.value[i][0], second.value[i][1]);
    left.word[i][3] = packed<T>(second.value[i][2], second.value[i][3]);
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
