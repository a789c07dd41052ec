#pragma once
// Data parallel training with ZeRO's stages (Rajbhandari et al. 2020, arXiv:1910.02054): N ranks share the
// micro-batches of a step and get the bits of one rank with all micro-batches (optim/ranks.h).
//
//   dist::run_ranks(4, [&](dist::Communicator& ranks) {
//     Net net(...);
//     dist::DataParallel parallel(ranks, net.trainable(), {.zero = 2});
//     optim::Adam adam(parallel.parameters(), {});
//     nn::StepOptions options{.micro_samples = 8, .ranks = &parallel};
//     const auto loss_of = [&](std::int64_t i) { return net.loss(data.part(step, parallel.number(i))); };
//     nn::training_step(adam, loss_of, options);  // once per step
//   });
//
//   stage   a rank has, besides its activations
//   0       parameters, gradients, optimizer state
//   1       the same, but only its shards of the state (dist/shards.h)
//   2       parameters; its shards of gradients and state
//   3       shards of all three: the parameters are in a store (dist/shard_store.h)
//
// Backward copies each complete gradient into its bucket (a bucket of one parameter is the gradient itself). A full
// bucket is sent while backward goes on: each rank sends the others their shards and gets its shard from them. When the
// next bucket is full, the received shards are added in the order of ranks, by the operator that adds micro-batches on
// one rank. Communicators only move bytes. At most one bucket is in flight, so its bytes are the same in every step.
//
// Without data parallelism (a single rank, or a tensor-parallel group) there are no buckets: gradients are added by
// parameter.
//
// Bytes: in stages 0 and 1 the buckets are the gradients. In stages 2 and 3 buckets live until they are sent and count
// as `communication`, as do in every stage the bytes received from other ranks, (N - 1) / N of the largest bucket.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <thimble/dist/communicator.h>
#include <thimble/dist/shards.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/ranks.h>

namespace thimble::dist {

class ShardStore;

/// The tensor-parallel group of ranks that compute the same samples, and for each parameter the layer that it is a
/// shard of (below 0 for a whole parameter).
struct GroupShards {
  Communicator* ranks = nullptr;  ///< null when parameters are whole
  std::vector<int> layers = {};
  Communicator* all = nullptr;  ///< of all groups: the rank with shard p of group t is number t * ranks->size() + p
};

struct DataParallelOptions {
  int zero = 0;                ///< stage: 0, 1, 2, 3
  BucketOptions buckets = {};  ///< bytes as PyTorch's (Li et al. 2020, arXiv:2006.15704, section 3.2.3)
  GroupShards group = {};      ///< with sharded blocks: dist/sharding/operators.h
};

/// The parameters of a model on the ranks of a communicator. Every rank makes the model with the same values and takes
/// the same steps. The first step compares version, instruction set, stage, buckets, names, shapes and dtypes, values
/// in the cpu's memory, the optimizer with its rate and updates, and the number of micro-batches; the caller passes
/// other traits of the function, such as seed, data and clipping, to require_alike (dist/alike.h). Only its rank's
/// thread may use it.
class DataParallel final : public optim::Ranks {
 public:
  /// The communicator must live as long. Throws ValueError for an unknown stage, a duplicate, empty or non-contiguous
  /// parameter, and in stage 3 unless all parameters share one ShardStore.
  DataParallel(Communicator& ranks, std::vector<optim::Named> parameters, DataParallelOptions options = {});
  ~DataParallel() override;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// The parameters of this rank's optimizer: all, or from stage 1 on its shards, as separate leaves under the names of
  /// the parameters. A shard has as many dimensions as its parameter, all of size 1 but the last.
  const std::vector<optim::Named>& parameters() const noexcept { return updated_; }
  /// Global index of this rank's micro-batch i.
  std::int64_t number(std::int64_t i) const noexcept { return i * size() + rank(); }
  /// All parameters, in the order of the model.
  const std::vector<optim::Named>& whole() const noexcept { return whole_; }
  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  /// Holds the parameters in stage 3; null in other stages.
  const ShardStore* store() const noexcept { return store_.get(); }
  Communicator& communicator() noexcept { return ranks_; }
  const DataParallelOptions& options() const noexcept { return options_; }

  int rank() const noexcept override { return ranks_.rank(); }
  int size() const noexcept override { return ranks_.size(); }
  const LeafSet& leaves() const noexcept override { return leaves_; }
  /// The first step throws ValueError on all ranks if their traits differ. Throws PlanError.
  void begin_step(const optim::Optimizer& optimizer, std::int64_t micro_batches) override;
  /// The same without an optimizer. Throws PlanError.
  void begin_step(std::int64_t micro_batches);
  std::span<const optim::MicroBatch> all_parts(std::span<const optim::MicroBatch> own) override;
  void take_gradient(const std::shared_ptr<tape::Leaf>& leaf) override;
  void end_micro_batch(std::size_t chunk) override;
  void complete_gradients() override;
  Tensor sum_losses(std::span<const Tensor> own) override;
  Tensor gradient_square_sums(const optim::Optimizer& optimizer) override;
  /// Number of gradient_square_sums of chunks 0 to `chunk`.
  std::int64_t square_sums_to(int chunk) const;
  void share_state(tape::Transaction& transaction) override;
  void share_parameters() override;
  void drop_gradients() noexcept override;

 private:
  /// A bucket's tensors during a step.
  struct Load {
    Tensor all;             // (elements): a micro-batch's gradients; in stage 0 at the end their sums
    Tensor mine;            // (shard): this rank's sums, if not in `all`
    std::vector<char> has;  // per parameter: has its gradient of this micro-batch
    std::size_t count = 0;  // true entries of `has`
    bool has_sum = false;   // `mine` has the sum of earlier micro-batches
  };
  struct Moves;  // state of the bucket in flight
  /// A parameter's position in its bucket.
  struct Place {
    const tape::Leaf* leaf;
    std::size_t bucket, at;
  };

  bool is_gathered() const noexcept { return options_.zero == 0; }
  bool keeps_buckets() const noexcept { return options_.zero < 2; }
  bool sums_in_place() const noexcept { return keeps_buckets() && micro_batches_ == 1; }
  std::vector<Bucket> buckets_of(const DataParallelOptions& options);
  Tensor shard_of(const Tensor& all, const Bucket& bucket, int rank) const;
  const Tensor& sums_of(std::size_t bucket) const;
  void make_leaves();
  void require_alike(const optim::Optimizer& optimizer, std::int64_t micro_batches);
  void put(const Place& place, Tensor gradient);
  void add_alone(std::size_t parameter, Tensor gradient);
  void send(std::size_t bucket);
  void land();
  void sum(std::size_t bucket, const Tensor& incoming);
  void gather(std::size_t bucket);
  void set_gradients(std::size_t bucket);
  void share_rows(const Tensor& rows);
  Tensor own_square_sums(const optim::Optimizer& optimizer);

  Communicator& ranks_;
  std::vector<optim::Named> whole_;  // all parameters
  DataParallelOptions options_;
  std::shared_ptr<ShardStore> store_;  // in stage 3
  std::vector<Bucket> buckets_;
  std::vector<optim::Named> updated_;
  std::vector<std::size_t> updated_at_;  // of each parameter: its index in updated_; none when this rank has no shard
                                         // of it
  LeafSet leaves_;
  std::vector<Place> places_;  // sorted by leaf

  bool is_compared_ = false;  // with the other ranks
  std::int64_t micro_batches_ = 1;
  std::vector<std::int64_t> micro_batch_;  // of each chunk, the current one
  std::vector<Load> loads_;
  std::unique_ptr<Moves> moves_;
  std::vector<char> has_gradient_;  // of each parameter, in any micro-batch
  std::vector<Tensor> sums_alone_;  // with one rank: the sum so far of each parameter
  std::vector<optim::MicroBatch> parts_;
};

}  // namespace thimble::dist
