#pragma once
// The instructions of tensor cores, as a warp gives them: blocks of shared memory into registers (ldmatrix), products
// (mma.sync), and the roundings to what they multiply. Needs compute capability 8.0.
//
// Glossary
// - share: the elements of a block that a lane holds; lane_map says which.
// - TF32: an f32 with 11 significant bits instead of 24, the other 13 bits zero. It stands in a 32-bit word.
//
// Policy
// - The maps are constexpr functions that both builds use. The host does the instructions by their definition on the
//   words of 32 lanes, so a wrong map gives wrong products there, too.
// - On the host a TF32 operand with bits behind its 11 counts as NaN: who forgets to round is found. (A GPU leaves
//   those bits out, and says nothing.)

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <thimble/core/numbers/bits.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/half.h>
#include <thimble/cuda/kernel/warp.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "attention on tensor cores needs compute capability 8.0: set CMAKE_CUDA_ARCHITECTURES to 80 or later"
#endif

namespace thimble::cuda_kernels {

struct Place {
  int row, column;
};

/// Which of the eight places along a sum an instruction's product in TF32 takes first and second from a lane: its
/// lane % 4 and 4 further on, or two neighbours. The order of a sum's terms is free as long as both operands have the
/// same. Words that ldmatrix has loaded are straight, shares of results are paired; for f16 and bf16, of which a word
/// holds two, both are the latter.
enum class Order { straight, paired };

/// Where the elements of a lane's share lie, and for which 16 bytes of a row of a tile a lane gives ldmatrix.x4 the
/// address.
namespace lane_map {

/// Element e < 4 of D (16, 8).
THIMBLE_HD constexpr Place sums(int lane, int e) { return {lane / 4 + 8 * (e / 2), 2 * (lane % 4) + e % 2}; }

/// Place i < 2 of a lane's two in eight along a sum.
THIMBLE_HD constexpr int along(Order order, int lane, int i) {
  return order == Order::paired ? 2 * (lane % 4) + i : lane % 4 + 4 * i;
}
/// Element e < 8 of A (16, 16): of f16 and bf16 in word e / 2, of TF32 in word e. (PTX ISA, "Matrix Fragments for
/// mma.m16n8k16" with .f16 and .bf16.)
THIMBLE_HD constexpr Place left(int lane, int e, Order order = Order::paired) {
  return {lane / 4 + 8 * (e / 2 % 2), along(order, lane, e % 2) + 8 * (e / 4)};
}
/// Element e < 8 of B (16, 16), two of (16, 8) side by side; words as for A.
THIMBLE_HD constexpr Place right(int lane, int e, Order order = Order::paired) {
  return {along(order, lane, e % 2) + 8 * (e / 2 % 2), lane / 4 + 8 * (e / 4)};
}

/// Word i < 4 of A (16, 8) and i < 2 of B (8, 8) in TF32, as the instruction takes them (PTX ISA, "Matrix Fragments for
/// mma.m16n8k8", .tf32).
THIMBLE_HD constexpr Place tf32_left(int lane, int i) { return {lane / 4 + 8 * (i % 2), lane % 4 + 4 * (i / 2)}; }
THIMBLE_HD constexpr Place tf32_right(int lane, int i) { return {lane % 4 + 4 * i, lane / 4}; }

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

/// D (16, 8) += A (16, 16) B (16, 8), of f16 or bf16.
template <class T>
__device__ inline void multiply_words(float (&d)[1][4], const std::uint32_t (&a)[1][4],
                                      const std::uint32_t (&b)[1][2]) {
  float* const sum = d[0];
  const std::uint32_t* const left = a[0];
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(b[0][0]), "r"(b[0][1]));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(b[0][0]), "r"(b[0][1]));
  }
}

/// D (16, 8) += A (16, 8) B (8, 8), of TF32.
__device__ inline void multiply_tf32(float (&d)[1][4], const std::uint32_t (&a)[1][4], const std::uint32_t (&b)[1][2]) {
  float* const sum = d[0];
  const std::uint32_t* const left = a[0];
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(b[0][0]), "r"(b[0][1]));
}

/// Two values as T, rounded to nearest even; `low` in the lower half.
template <class T>
__device__ inline std::uint32_t packed(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

/// A value as TF32, rounded to nearest, halves away from zero: at most 2^-11 of it off.
__device__ inline std::uint32_t tf32_word(float value) {
  std::uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
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

namespace tensor_core_detail {

/// d += left right, with the right one's columns as rows.
template <int K>
inline void multiply_blocks(float (&d)[32][4], const float (&left)[16][K], const float (&right)[8][K]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const Place at = lane_map::sums(lane, e);
      for (int k = 0; k < K; ++k) d[lane][e] += left[at.row][k] * right[at.column][k];
    }
  }
}

}  // namespace tensor_core_detail

template <class T>
inline void multiply_words(float (&d)[32][4], const std::uint32_t (&a)[32][4], const std::uint32_t (&b)[32][2]) {
  float left[16][16], right[8][16];
  const auto value = [](std::uint32_t word, int e) {
    return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(word >> (16 * (e % 2)))));
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const Place at = lane_map::left(lane, e);
      left[at.row][at.column] = value(a[lane][e / 2], e);
    }
    for (int e = 0; e < 4; ++e) {
      const Place at = lane_map::right(lane, e);
      right[at.column][at.row] = value(b[lane][e / 2], e);
    }
  }
  tensor_core_detail::multiply_blocks(d, left, right);
}

inline void multiply_tf32(float (&d)[32][4], const std::uint32_t (&a)[32][4], const std::uint32_t (&b)[32][2]) {
  float left[16][8], right[8][8];
  const auto value = [](std::uint32_t word) {
    return (word & 0x1fffu) == 0 ? bit_cast<float>(word) : std::numeric_limits<float>::quiet_NaN();
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Place at = lane_map::tf32_left(lane, i);
      left[at.row][at.column] = value(a[lane][i]);
    }
    for (int i = 0; i < 2; ++i) {
      const Place at = lane_map::tf32_right(lane, i);
      right[at.column][at.row] = value(b[lane][i]);
    }
  }
  tensor_core_detail::multiply_blocks(d, left, right);
}

template <class T>
inline std::uint32_t packed(float low, float high) {
  return convert_value<T>(low).bits | static_cast<std::uint32_t>(convert_value<T>(high).bits) << 16;
}

inline std::uint32_t tf32_word(float value) {
  if (value != value) return 0x7fffffffu & ~0x1fffu;
  const auto word = bit_cast<std::uint32_t>(value);
  return std::isinf(value) ? word : (word + 0x1000u) & ~0x1fffu;  // from the largest exponent on to infinity
}

inline float power_of_two(float x) { return std::exp2(x); }

#endif

}  // namespace thimble::cuda_kernels
