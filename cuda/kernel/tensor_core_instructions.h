#pragma once
// The instructions of tensor cores, issued by a warp: blocks of shared memory into registers (ldmatrix), products
// (mma.sync), and the roundings of their operands. Needs compute capability 8.0.
//
// Glossary
// - share: the elements of a block that a lane holds; lane_map lists them.
// - TF32: an f32 with 11 significant bits instead of 24, the other 13 bits zero. It is in a 32-bit word.
//
// Policy
// - The host (tests/emulated/tensor_core.h) executes the instructions by the tables of the PTX ISA, on the words of the
//   32 lanes of a warp, so a wrong map gives wrong products there. A TF32 operand with bits behind its 11 counts as NaN
//   there, which finds a missing rounding. (A GPU silently drops the bits.)

#include <cstdint>
#include <type_traits>

#include <thimble/core/numbers/half.h>
#include <thimble/cuda/kernel/exponential.h>
#include <thimble/cuda/kernel/warp.h>
#include <thimble/cuda/kernel/words.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "attention on tensor cores needs compute capability 8.0: set CMAKE_CUDA_ARCHITECTURES to 80 or later"
#endif

namespace thimble::cuda_kernels {

struct Place {
  int row, column;
};

/// The order in which an instruction's product in TF32 takes two of the eight indices along a sum from a lane: its lane
/// % 4 and 4 further on, or two neighbours. The order of a sum's terms is free as long as both operands have the same.
/// Words loaded by ldmatrix are straight, shares of results are paired; for f16 and bf16, with two in a word, both are
/// paired.
enum class Order { straight, paired };

/// Positions of the elements of a lane's share, and the 16 bytes of a row of a tile whose address a lane gives
/// ldmatrix.x4. Kernels use lane_map:: (on the host tests/emulated/lane_map.h, so that a test can swap lanes).
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

/// Lanes 8 m .. 8 m + 7 name the rows of matrix m, which goes to word m: lane L gets elements 2 (L % 4) and the next
/// one of row L / 4, or of the transpose's.
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

/// A value as TF32, rounded to nearest, halves away from zero: at most 2^-11 of it off.
__device__ inline std::uint32_t tf32_word(float value) {
  std::uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
}

}  // namespace thimble::cuda_kernels

#else
#include <emulated/tensor_core.h>
#endif
