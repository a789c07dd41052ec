#pragma once
// Sharding of a model's parameters over ranks. Parameters form buckets, each sent in one go. Of each bucket a rank has
// a shard: it sums the shard's gradients and (from ZeRO-1 on) keeps the shard's optimizer state.
//
//   parameters, last ones first    | head.weight              | head.bias | fc.weight             | fc.bias |
//   buckets                        |<------------- 0 ------------------->|<------------ 1 --------------->|
//   shards of four ranks           |    0    |    1    |   2   |    3    |   0   |   1   |   2   |    3   |
//
// - Backward completes the last parameters first, so buckets are filled in this order and sent while backward goes on.
// - A bound within a parameter is a multiple of `shard_grain` elements of it: blocks of 8-bit state (256) and ranges of
//   sums of squares (kernels::square_stretch) lie in one shard. So a rank has at most one grain more of a bucket than
//   an equal shard.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/optim/optimizer.h>

namespace thimble::dist {

inline constexpr std::int64_t shard_grain = kernels::square_stretch;

/// Elements [begin, end) of a parameter, at offset `at` in its bucket.
struct Piece {
  std::size_t parameter = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t at = 0;
};

/// Parameters of one dtype on one device, of one chunk.
struct Bucket {
  std::vector<std::size_t> parameters;  ///< in bucket order
  std::vector<std::int64_t> offsets;    ///< of each, in elements; empty where each parameter is sharded separately
  std::int64_t elements = 0;
  DType dtype = DType::f32;
  memory::Device device;
  int chunk = 0;                           ///< of a pipeline's stage, whose parameters they are
  std::vector<std::int64_t> bounds;        ///< of shards, in elements: rank r has [bounds[r], bounds[r + 1])
  std::vector<std::vector<Piece>> pieces;  ///< of the parameters, by rank

  std::int64_t shard_elements(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return bounds[r + 1] - bounds[r];
  }
};

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const noexcept { return end - begin; }
};

/// A rank's shard of a parameter that is sharded separately (ZeRO-3), equal up to whole grains. `number` rotates the
/// rank of the first shard, so that small parameters spread over the ranks.
Range shard_range(std::int64_t elements, int ranks, int rank, std::size_t number);

struct BucketOptions {
  std::size_t bytes = 25 << 20;   ///< limit of a bucket with several parameters; 0 gives each parameter a bucket
  bool keeps_parameters = false;  ///< no parameter is split
  /// For each parameter its chunk in a pipeline's stage; no bucket spans chunks. Empty for a single chunk.
  std::vector<int> chunks = {};
};

/// A rank's range of elements of a parameter, which its index names.
using RangeOf = FunctionRef<Range(std::size_t parameter, int rank)>;

/// Buckets in backward order. A parameter of another dtype does not end a bucket. Throws ValueError if ranks < 1.
std::vector<Bucket> make_buckets(const std::vector<optim::Named>& parameters, int ranks,
                                 const BucketOptions& options = {});
/// Buckets of parameters that are sharded separately: all shards of rank 0, then of rank 1, and so on.
std::vector<Bucket> make_buckets(const std::vector<optim::Named>& parameters, int ranks, const BucketOptions& options,
                                 RangeOf range_of);

}  // namespace thimble::dist
