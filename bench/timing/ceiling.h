#pragma once
// The machine's peak rates of multiply-adds and bytes, with which kernels and steps are compared.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::bench {

/// Runs `rounds` rounds of f32 multiply-adds, x <- x * factor + addend, in registers only: twelve independent chains,
/// enough to fill the arithmetic units, each one vector of `isa` (generic: 128 bits, separate multiplication and
/// addition). Chain i starts at i, so that the compiler cannot merge chains. Returns the sum over all chains and lanes;
/// with factor = addend = 1 and fewer than 2^23 rounds it exceeds the sum for zero rounds by the number of
/// multiply-adds. Throws ValueError if this machine does not support `isa`.
double fma_chains(kernels::Isa isa, std::int64_t rounds, float factor, float addend);

/// Gflop/s (10^9; a multiply-add counts as two) of fma_chains on `threads` threads at once: the best of the runs, about
/// 2 ms each, that fit in `seconds`, at least three, because other work on the machine only adds time. Throws
/// ValueError for `isa` as above, and unless 1 <= threads <= thread_count().
double ceiling_gflops(kernels::Isa isa, int threads, double seconds);

/// The triad of STREAM (McCalpin 1995), a[i] = b[i] + factor * c[i] for i < n, in vectors of `isa`; the product is
/// rounded before the sum. `streams` makes the stores bypass the caches on AVX2 and AVX-512. The arrays are aligned to
/// 64 bytes and n is a multiple of 16. Throws ValueError if this machine does not support `isa`.
void triad(kernels::Isa isa, float* a, const float* b, const float* c, float factor, std::int64_t n, bool streams);

/// GB/s (10^9) of the triad over three arrays of n floats, split into equal multiples of 16 for `threads` threads. An
/// element counts 12 bytes. Returns the better kind of stores, the best of at least three runs and `seconds` each.
/// Throws ValueError as above, for `threads` as in ceiling_gflops, and unless n > 0.
double memory_gbs(kernels::Isa isa, int threads, std::int64_t n, double seconds);

/// Sums n floats in vectors of `isa`, as fast as memory delivers them. Throws ValueError as above, and unless n is a
/// multiple of 128.
float read_sum(kernels::Isa isa, const float* x, std::int64_t n);

// ---- Profile of a training step by operator.

/// All nodes of one operator in a recording.
struct OperatorTime {
  std::string name;
  std::int64_t calls = 0;
  double forward_s = 0, recompute_s = 0, backward_s = 0;
  /// Minimum memory traffic in bytes, each tensor once. Forward: operands and result. Backward: saved tensors, the
  /// result's gradient and the requested gradients. 0 for views.
  double forward_bytes = 0, backward_bytes = 0;
  double multiply_adds = 0;  ///< in forward and backward, without recomputation

  double seconds() const { return forward_s + recompute_s + backward_s; }
};

/// The operators of a recording, slowest first. Throws ValueError if `times` has another number of nodes.
std::vector<OperatorTime> operator_times(const TapeGraph& graph, const TapeTimes& times);

/// Multiply-adds of a node's forward and backward. Backward repeats the forward's count for each of the first two
/// operands that needs a gradient. Attention's backward counts 2.5 times: five products to the forward's two.
double multiply_adds(const TapeGraph::Node& node);
/// Sum over all nodes.
double multiply_adds(const TapeGraph& graph);

}  // namespace thimble::bench
