#pragma once
// Cross entropy over sharded classes (Shoeybi et al. 2019, arXiv:1909.08053, section 3): no rank has all scores.
//
//   shard p   m_p = max x,  s_p = sum e^(x - m_p),  x_t or 0        three numbers a row, which ranks exchange
//   all       M = max m_p,  lse = M + log sum_p s_p e^(m_p - M),  loss = lse - x_t        in the order of shards
//   backward  dx = g (e^(x - lse) - [c = t]) of a shard's columns           nothing is exchanged

#include <thimble/core/ops/op.h>
#include <thimble/dist/sharding/group.h>

namespace thimble::dist {

/// Mean cross entropy of logits (N, V) and class numbers (N) in i32 or i64. The V columns are the classes of this
/// rank's shards side by side; all shards have `classes` together. Rows with target `ignore_index` do not count. Result
/// f32 (f64 for f64), with the same bits on all ranks of the group and on one rank with all shards.
///
/// Keeps the logits and the targets by reference, and lse per row; the textbook form keeps log-probabilities (N, V)
/// instead of logits and lse. Throws ShapeError, DTypeError, DeviceError, RankError, ValueError (on a CPU: a target
/// that is no class).
struct ClassShardsLoss {
  static constexpr const char* name = "class_shards_loss";
  static constexpr ops::Cost cost = ops::Cost::reduction;
  struct Saved {
    Tensor scores, targets, lse;
  };
  ShardGroup group;
  std::int64_t classes = 0;
  bool is_textbook = false;
  std::int64_t ignore_index = -100;

  Tensor forward(const Tensor& logits, const Tensor& targets, ops::Needs needs, Saved& saved) const;
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const;
};

// Cross entropy of a sharded sequence (dist/sharding/sequence.h): each rank has its tokens' scores for all classes.
//
//   shard p   losses of its tokens          one number a token, which ranks exchange
//   all       their mean, shard after shard
//   backward  of a shard's scores           nothing is exchanged

/// Mean cross entropy of logits (N, V), the rows of this rank's shards of the sequence, shard after shard, and class
/// numbers (B, T) of all tokens in i32 or i64. Rows with target `ignore_index` do not count. Result f32 (f64 for f64),
/// with the same bits on all ranks of the group and on one rank with all shards.
///
/// Keeps the logits and the targets by reference, and lse per row. Throws ShapeError (the number of shards does not
/// divide T), DTypeError, DeviceError, RankError, ValueError (on a CPU: a target that is no class).
struct TokenShardsLoss {
  static constexpr const char* name = "token_shards_loss";
  static constexpr ops::Cost cost = ops::Cost::reduction;
  struct Saved {
    Tensor logits, targets, lse;
  };
  ShardGroup group;
  std::int64_t ignore_index = -100;

  Tensor forward(const Tensor& logits, const Tensor& targets, ops::Needs needs, Saved& saved) const;
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const;
};

}  // namespace thimble::dist
