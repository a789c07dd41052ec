#pragma once
// What the machine can do at most, multiply-adds and bytes: the rates that those of kernels and steps are held against.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::bench {

/// Runs `rounds` rounds of multiply-adds, x <- x * factor + addend in f32, in registers alone: twelve independent
/// chains, enough to keep the arithmetic units of `isa` busy, each of a vector of it (generic: 128 bits, the
/// multiplication and the addition apart). Chain i begins at i, so that no compiler takes one for another. Returns the
/// sum over all chains and lanes: with factor = addend = 1 and fewer than 2^23 rounds, the sum of no rounds and the
/// number of multiply-adds that were made. Throws ValueError when this machine does not support `isa`.
double fma_chains(kernels::Isa isa, std::int64_t rounds, float factor, float addend);

/// Gflop/s (10^9; a multiply-add counts as two) that fma_chains reaches on `threads` threads at once: the best of as
/// many runs of a millisecond or two as `seconds` hold, three at least, because other work on the machine only ever
/// makes one slower. Throws ValueError for `isa` as above, and unless 1 <= threads <= thread_count().
double ceiling_gflops(kernels::Isa isa, int threads, double seconds);

/// The triad of STREAM (McCalpin 1995), a[i] = b[i] + factor * c[i] for i < n, in vectors of `isa`; the product is
/// rounded before the sum. `streams`: the stores go round the caches, where `isa` has vectors of its own. The arrays
/// are aligned to 64 bytes and n is a multiple of 16. Throws ValueError when this machine does not support `isa`.
void triad(kernels::Isa isa, float* a, const float* b, const float* c, float factor, std::int64_t n, bool streams);

/// GB/s (10^9) of the triad over three arrays of n floats each, rounded up to multiples of 16, cut into parts for
/// `threads` threads: 12 bytes an element, the better of both kinds of stores, the best of the runs that `seconds` hold
/// for each, three at least. Throws ValueError as above, and unless n > 0.
double memory_gbs(kernels::Isa isa, int threads, std::int64_t n, double seconds);

/// The sum of n floats in vectors of `isa`: all that reading them costs. n is a multiple of 128. Throws ValueError as
/// above.
float read_sum(kernels::Isa isa, const float* x, std::int64_t n);

// ---- Where the time of a training step goes, by kind of operator.

/// All nodes of one operator in a recording.
struct OperatorTime {
  std::string name;
  std::int64_t calls = 0;
  double forward_s = 0, recompute_s = 0, backward_s = 0;
  /// Minimum memory traffic in bytes, each tensor once. Forward: operands and result. Backward: saved tensors, the
  /// result's gradient and the requested gradients. 0 for views.
  double forward_bytes = 0, backward_bytes = 0;
  double multiply_adds = 0;  ///< of forward and backward, re-runs left out

  double seconds() const { return forward_s + recompute_s + backward_s; }
};

/// The operators of a recording, the slowest first. Throws ValueError when the times are those of another recording.
std::vector<OperatorTime> operator_times(const TapeGraph& graph, const TapeTimes& times);

/// Multiply-adds of a node's forward and backward. Backward counts the forward's once for each of the first two
/// operands that need a gradient; attention's (two products forward, five backward) two and a half times.
double multiply_adds(const TapeGraph::Node& node);
/// Of all nodes.
double multiply_adds(const TapeGraph& graph);

}  // namespace thimble::bench
