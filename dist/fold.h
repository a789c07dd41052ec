#pragma once
// Sums over ranks. Communicators move bytes; the sums are made here, in a fixed order.
//
//   three ranks, a tensor of six elements: each rank adds up its shard of two, and all shards are gathered
//
//   rank 0   [a0 a1 | a2 a3 | a4 a5]  --  adds a0 + b0 + c0, a1 + b1 + c1  --
//   rank 1   [b0 b1 | b2 b3 | b4 b5]  --  adds a2 + b2 + c2, ...           --  all have all sums
//   rank 2   [c0 c1 | c2 c3 | c4 c5]  --  adds a4 + b4 + c4, ...           --
//
// Each of N ranks sends 2 (N - 1) / N of the tensor's bytes, and has (N - 1) / N of them in flight at a time.

#include <thimble/core/tensor/tensor.h>
#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// sum += term, by the operator that adds micro-batches on one rank.
void add_to(const Tensor& sum, const Tensor& term);

/// Reduce-scatter: sums the ranks' dense tensors of equal shape and returns this rank's range of elements (equal ranges
/// by rank) in a tensor of `shape`. Sends half of fold()'s bytes. Throws RankError.
Tensor fold_share(Communicator& ranks, const Tensor& mine, const Shape& shape, bool last_first = false);

/// All-reduce: sums the ranks' tensors of equal shape, from the first rank to the last or, with `last_first`, back.
/// Received bytes are booked as `communication`. Reuses `mine` if it has no other holder. Throws RankError.
Tensor fold(Communicator& ranks, Tensor mine, bool last_first = false);

}  // namespace thimble::dist
