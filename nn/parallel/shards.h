#pragma once
// Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3) as layers that replace a model's own. A model
// has a table of its sharded children; the rest of it knows nothing of groups.
//
//        x ---- c_attn: column-parallel ---- attention of H / t heads ---- c_proj: row-parallel ----+
//                                                                                                 sum, bias ---- y
//        (the same for the other shards) ----------------------------------------------------------+
//
// The number of shards is an attribute of the arithmetic (dist/sharding/group.h). A rank of a group has one shard; one
// rank without a group has all, and runs them in order with the same bits. Shard p is a separate module,
// "attn.c_attn.1", and begins with the whole layer's values in its place. The whole is never made.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/threads/parallel.h>
#include <thimble/dist/sharding/group.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::nn {

/// A shard of a linear layer.
class LinearShard final : public Linear {
 public:
  struct Cut {
    bool by_inputs = false;
    std::int64_t shards = 1, index = 0, projections = 1;
    RandomSite weight = {}, bias = {};  ///< where the whole layer's values are drawn
  };
  /// `in` and `out` are the whole layer's.
  LinearShard(std::int64_t in, std::int64_t out, const TensorOptions& on, const LinearOptions& options, const Cut& cut);
  std::optional<PlaceInWhole> place_in_whole(const Tensor& parameter) const override;

 private:
  Cut cut_;
  std::int64_t cut_size_;  // the whole layer's number of inputs or outputs, whichever is cut
  char joint_;
};

/// A shard of a table; returns zeros for rows of other shards.
class EmbeddingShard final : public Layer {
 public:
  EmbeddingShard(const init::ShardOf& shard, double deviation, const RandomSite& site, const TensorOptions& on);
  Parameter weight;
  std::optional<PlaceInWhole> place_in_whole(const Tensor&) const override { return PlaceInWhole{shard_}; }

 protected:
  Tensor forward(const Tensor& ids) override;

 private:
  init::ShardOf shard_;
};

/// A layer in shards. A call runs the shard whose turn it is in ShardRules::run; elsewhere it throws ValueError.
class ShardedLayer : public Layer {
 public:
  explicit ShardedLayer(const std::size_t& turn) : turn_(turn) {}
  std::string_view difference() const override { return "is in shards"; }
  const std::vector<Layer*>& shards() const noexcept { return shards_; }

 protected:
  Tensor forward(const Tensor& x) override;
  std::vector<Layer*> shards_;

 private:
  const std::size_t& turn_;
};

class ShardRules;

/// (..., I) -> (..., O / t).
class ColumnParallelLinear final : public ShardedLayer {
 public:
  ColumnParallelLinear(const Linear& whole, const TensorOptions& on, const ShardRules& rules, std::int64_t projections);
};

/// (..., I / t) -> (..., O), a term of the sum over shards; the bias is added to the sum.
class RowParallelLinear final : public ShardedLayer {
 public:
  RowParallelLinear(const Linear& whole, const TensorOptions& on, const ShardRules& rules);
  const ShardRules& rules() const noexcept { return rules_; }
  std::optional<DType> compute;
  Parameter bias;

 private:
  const ShardRules& rules_;
};

/// Ids -> rows of the whole vocabulary: sums the shards' rows.
class VocabularyParallelEmbedding final : public Layer {
 public:
  VocabularyParallelEmbedding(const Shape& whole, const TensorOptions& on, double deviation,
                              const dist::ShardGroup& group);
  std::string_view difference() const override { return "is in shards"; }
  const std::vector<EmbeddingShard*>& shards() const noexcept { return shards_; }

 protected:
  Tensor forward(const Tensor& ids) override;

 private:
  dist::ShardGroup group_;
  std::vector<EmbeddingShard*> shards_;
};

/// Dropout of shards, each with separate random numbers.
class ShardedDropout final : public ShardedLayer {
 public:
  ShardedDropout(const Dropout& whole, const ShardRules& rules);
};

/// The sharded children of a model, for a group.
class ShardRules final : public LayerRules {
 public:
  ShardRules(const dist::ShardGroup& group, std::span<const ShardedChild> table) : group_(group), table_(table) {}

  std::unique_ptr<Layer> for_linear(Linear& made, const TensorOptions& on) const override;
  std::unique_ptr<Layer> for_table(const Shape& shape, const TensorOptions& on, double deviation) const override;
  /// Replaces a finished module's layers without parameters by their sharded versions.
  void finish(Module& module) const;

  const dist::ShardGroup& group() const noexcept { return group_; }
  const std::size_t& turn() const noexcept { return turn_; }
  /// Sums forward(x) over all shards, in order, and adds the row-parallel layer's bias. Runs this rank's shards, each
  /// below the path "0", "1", ...; `forward` owns its x, so that x can be freed as soon as it has been read.
  Tensor run(Tensor x, const RowParallelLinear& last, FunctionRef<Tensor(Tensor)> forward) const;

 private:
  static constexpr std::size_t nobody = ~std::size_t{0};
  const ShardedChild* find(std::string_view path) const;

  dist::ShardGroup group_;
  std::span<const ShardedChild> table_;
  mutable std::size_t turn_ = nobody;  // index of the running shard among this rank's
};

/// Calls f with the weight of each of this rank's shards of a linear layer or table, or with an unsharded weight.
void each_shard_weight(Linear& layer, FunctionRef<void(Parameter&)> f);
void each_shard_weight(Embedding& table, FunctionRef<void(Parameter&)> f);

/// For each parameter the number of the layer that it is a shard of; negative for whole parameters.
std::vector<int> shard_layers(const std::vector<Module*>& modules, const std::vector<Named>& parameters);

}  // namespace thimble::nn
