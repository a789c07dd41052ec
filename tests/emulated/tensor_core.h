#pragma once
// The instructions of tensor cores on the host, by the PTX ISA's tables for the words of a warp's 32 lanes.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <thimble/core/numbers/bits.h>
#include <thimble/core/numbers/convert.h>

#include "emulated/isa.h"
#include "emulated/lane_map.h"
#include "emulated/warp.h"

namespace thimble::cuda_kernels {

template <bool is_transposed>
void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  struct Row {
    std::uint16_t elements[8];
  };
  struct Words {
    std::uint32_t word[4];
  };
  emulated::Block& block = emulated::Block::current();
  Row own;
  std::memcpy(&own, block.read(row, sizeof own), sizeof own);
  const Words words = block.together<Words>(own, [](const Row* rows, Words* out) {
    const auto element = [&](int matrix, int i, int j) {
      return static_cast<std::uint32_t>(rows[8 * matrix + i].elements[j]);
    };
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) {
        const int i = lane / 4, j = 2 * (lane % 4);
        out[lane].word[m] = is_transposed ? element(m, j, i) | element(m, j + 1, i) << 16
                                          : element(m, i, j) | element(m, i, j + 1) << 16;
      }
    }
  });
  std::memcpy(to, words.word, sizeof to);
}

namespace tensor_core_detail {

struct Factors {
  std::uint32_t a[4], b[2];
};
struct Products {
  float value[4];
};

/// d += A (16, K) B (K, 8) of a warp: take(factors of a lane, lane, left, right) stores a lane's elements at their
/// places, the right one's columns as rows.
template <int K, class Take>
void multiply_lanes(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const Take& take) {
  Factors own;
  std::memcpy(own.a, a, sizeof a), std::memcpy(own.b, b, sizeof b);
  struct Blocks {
    float left[16][K], right[8][K];
  };
  // After all factors have arrived, each lane adds its four sums.
  const Products all = emulated::Block::current().together<Products>(own, [&](const Factors* in, Products* out) {
    Blocks blocks;
    for (int lane = 0; lane < 32; ++lane) take(in[lane], lane, blocks.left, blocks.right);
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        const testing::IsaPlace at = testing::isa_c(lane, e);
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += blocks.left[at.row][k] * blocks.right[at.column][k];
        out[lane].value[e] = sum;
      }
    }
  });
  for (int e = 0; e < 4; ++e) d[e] += all.value[e];
}

}  // namespace tensor_core_detail

template <class T>
void multiply_words(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const auto take = [](const tensor_core_detail::Factors& own, int lane, float(&left)[16][16], float(&right)[8][16]) {
    const auto value = [](std::uint32_t word, int e) {
      return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(word >> (16 * (e % 2)))));
    };
    for (int e = 0; e < 8; ++e) {
      const testing::IsaPlace at = testing::isa_a(lane, e);
      left[at.row][at.column] = value(own.a[e / 2], e);
    }
    for (int e = 0; e < 4; ++e) {
      const testing::IsaPlace at = testing::isa_b(lane, e);
      right[at.column][at.row] = value(own.b[e / 2], e);
    }
  };
  tensor_core_detail::multiply_lanes<16>(d, a, b, take);
}

inline void multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const auto take = [](const tensor_core_detail::Factors& own, int lane, float(&left)[16][8], float(&right)[8][8]) {
    const auto value = [](std::uint32_t word) {
      return (word & 0x1fffu) == 0 ? bit_cast<float>(word) : std::numeric_limits<float>::quiet_NaN();
    };
    for (int i = 0; i < 4; ++i) {
      const testing::IsaPlace at = testing::isa_tf32_a(lane, i);
      left[at.row][at.column] = value(own.a[i]);
    }
    for (int i = 0; i < 2; ++i) {
      const testing::IsaPlace at = testing::isa_tf32_b(lane, i);
      right[at.column][at.row] = value(own.b[i]);
    }
  };
  tensor_core_detail::multiply_lanes<8>(d, a, b, take);
}

inline std::uint32_t tf32_word(float value) {
  if (value != value) return 0x7fffffffu & ~0x1fffu;
  const auto word = bit_cast<std::uint32_t>(value);
  return std::isinf(value) ? word : (word + 0x1000u) & ~0x1fffu;  // from the largest exponent on to infinity
}

}  // namespace thimble::cuda_kernels
