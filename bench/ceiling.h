#pragma once
// What the machine can multiply and add at most: the rate that the rates of kernels and steps are held against.

#include <cstdint>

#include <thimble/core/kernels/isa.h>

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

}  // namespace thimble::bench
