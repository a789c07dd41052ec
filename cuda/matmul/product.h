#pragma once
// Tiled matrix products for operands that are functions of their indices: products that no library computes (any
// strides, integers, f64 and 8-bit floats, padding on one side), and all products without a library.

#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/functors/unary.h>
#include <thimble/core/kernels/shared/activation.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/quick.h>

namespace thimble::cuda_kernels {

template <class T>
THIMBLE_DEVICE inline T activate(kernels::Activation activation, T x) {
  if (activation == kernels::Activation::relu) return ops::Relu{}.fwd(x);
  if constexpr (!std::is_same_v<T, std::int64_t>) {
    if (activation == kernels::Activation::gelu_tanh) return ops::GeluTanh{}.fwd(x);
    if (activation == kernels::Activation::gelu_erf) return ops::GeluErf{}.fwd(x);
  }
  return x;
}

/// activate() for a result stored as `dtype`.
template <class T>
THIMBLE_DEVICE inline T activate(kernels::Activation activation, T x, DType dtype) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_quick(dtype)) return static_cast<float>(activate(activation, Quick(x)));
  }
  return activate(activation, x);
}

/// c = activate(activation, stored) for dense elements of one dtype, 16 bytes at a time; c may alias stored. False if
/// dtype, count or addresses do not fit words.
bool activate_words(kernels::Activation activation, const void* stored, void* c, DType dtype, std::int64_t elements);

/// For every matrix of a batch: c.store(matrix, i, j, sum over p of a.at(matrix, i, p) b.at(matrix, p, j)). The order
/// is GemmArgs': chains of 256 in ascending p, added in ascending order; a pure function of k.
template <class T, class A, class B, class C>
struct Product {
  static constexpr int threads = 256, tile = 32, depth = 16, chain_elements = 256;
  static constexpr int pitch = tile + 2;  // of a's rows, so that 32 lanes that store 16 x 2 elements use 32 banks
  static constexpr std::size_t shared_bytes = (pitch + tile) * depth * sizeof(T);
  std::int64_t m, n, k;
  A a;
  B b;
  C c;

  std::int64_t teams(std::int64_t matrices) const {
    return matrices * ((m + tile - 1) / tile) * ((n + tile - 1) / tile);
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    constexpr int own = tile * tile / Team::size, rows_apart = Team::size / tile;  // elements of one column
    const int row = team.rank() / tile, column = team.rank() % tile;
    const std::int64_t columns = (n + tile - 1) / tile, rows = (m + tile - 1) / tile;
    const std::int64_t j0 = job % columns * tile, i0 = job / columns % rows * tile, matrix = job / columns / rows;
    const Shared<T> at = team.template shared<T>();  // (depth, tile), pitch
    const Shared<T> bt = at + pitch * depth;         // (depth, tile)
    T total[own], chain[own];
    for (int o = 0; o < own; ++o) total[o] = chain[o] = T(0);
    for (std::int64_t p0 = 0; p0 < k; p0 += depth) {
      for (int e = team.rank(); e < tile * depth; e += Team::size) {
        const std::int64_t i = i0 + e / depth, pa = p0 + e % depth, pb = p0 + e / tile, j = j0 + e % tile;
        at[e % depth * pitch + e / depth] = i < m && pa < k ? a.template at<T>(matrix, i, pa) : T(0);
        bt[e] = pb < k && j < n ? b.template at<T>(matrix, pb, j) : T(0);
      }
      team.sync();
      const int steps = k - p0 < depth ? static_cast<int>(k - p0) : depth;
      for (int p = 0; p < steps; ++p) {
        const T factor = bt[p * tile + column];
        for (int o = 0; o < own; ++o) {
          chain[o] = multiply_add<T>(at[p * pitch + row + o * rows_apart], factor, chain[o]);
        }
      }
      team.sync();
      if ((p0 + depth) % chain_elements == 0 || p0 + depth >= k) {
        for (int o = 0; o < own; ++o) {
          total[o] = static_cast<T>(total[o] + chain[o]);
          chain[o] = T(0);
        }
      }
    }
    for (int o = 0; o < own; ++o) {
      const std::int64_t i = i0 + row + o * rows_apart, j = j0 + column;
      if (i < m && j < n) c.store(matrix, i, j, total[o]);
    }
  }
};

template <class T, class A, class B, class C>
void multiply(std::int64_t matrices, std::int64_t m, std::int64_t n, std::int64_t k, const A& a, const B& b,
              const C& c) {
  const Product<T, A, B, C> body{m, n, k, a, b, c};
  for_each_team(body.teams(matrices), body, body.shared_bytes);
}

// The convolutions of matmul_cuda (cuda/matmul/conv.cu).
void conv_forward(const kernels::ConvForwardArgs& args, void* workspace, int threads);
void conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, int threads);
void conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, int threads);

}  // namespace thimble::cuda_kernels
