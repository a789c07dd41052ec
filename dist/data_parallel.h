#pragma once
// Data parallel training with ZeRO's stages (Rajbhandari et al. 2020, arXiv:1910.02054): N ranks, each with its own
// micro-batches, make one step, with the bits of one rank that has all micro-batches (optim/ranks.h).
//
//   dist::run_ranks(4, [&](dist::Communicator& ranks) {
//     Net net(...);
//     dist::DataParallel parallel(ranks, net.trainable(), {.zero = 2});
//     optim::Adam adam(parallel.parameters(), {});
//     nn::StepOptions options{.micro_samples = 8, .ranks = &parallel};
//     const auto loss_of = [&](std::int64_t i) { return net.loss(data.part(step, parallel.number(i))); };
//     nn::training_step(adam, loss_of, options);  // as often as there are steps
//   });
//
//   stage   a rank has, besides its activations
//   0       parameters, gradients, optimizer state
//   1       the same, but of the state its shards (dist/shards.h)
//   2       parameters; of gradients and state its shards
//   3       shards of all three: the parameters are in a store (dist/shard_store.h)
//
// How a gradient goes: backward completes it; it is copied into its bucket (a bucket of one parameter is the gradient);
// a bucket that is full goes at once, while backward goes on: to each rank its shard, and from each rank this rank's.
// When the next bucket is full, what came is added in the order of ranks, by the operator that adds micro-batches on
// one rank. Nobody else adds: communicators move bytes. At most one bucket is on its way, so its bytes are the same in
// every step.
//
// One rank alone, as in a team that shares the batch with nobody, has no buckets: it adds gradients by parameter.
//
// Bytes: in stages 0 and 1 the buckets are the gradients. In stages 2 and 3 they live until they have gone, and count
// as `communication`; so does in every stage what comes from other ranks, (N - 1) / N of the largest bucket.

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

/// The other ranks that compute the same samples, and of each parameter the layer that it is a part of; below 0: it is
/// whole.
struct TeamParts {
  Communicator* ranks = nullptr;  ///< null: parameters are whole
  std::vector<int> layers = {};
  Communicator* all = nullptr;  ///< of all teams: the rank with part p of team t is number t * ranks->size() + p
};

struct DataParallelOptions {
  int zero = 0;                ///< stage: 0, 1, 2, 3
  BucketOptions buckets = {};  ///< bytes as PyTorch's (Li et al. 2020, arXiv:2006.15704, section 3.2.3)
  TeamParts parts = {};        ///< where blocks are cut into parts: dist/parts/parts.h
};

/// The parameters of a model on the ranks of a communicator. Every rank has made the model with the same values and
/// steps alike. The first step compares version, instruction set, stage, buckets, names, shapes and dtypes, values that
/// are here on the cpu, the optimizer with its rate and updates, and the number of micro-batches; what else makes the
/// function, as seed, data and clipping, is the caller's to give to require_alike (dist/alike.h). Not thread-safe; of
/// the thread whose rank it is.
class DataParallel final : public optim::Ranks {
 public:
  /// The communicator must live as long. Throws ValueError: a stage that there is not, a parameter that is listed twice
  /// or is not dense, in
  /// stage 3 one that is in no ShardStore or not the same as the others.
  DataParallel(Communicator& ranks, std::vector<optim::Named> parameters, DataParallelOptions options = {});
  ~DataParallel() override;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// What this rank's optimizer updates: all parameters, or from stage 1 on its shards of them, as leaves of their own
  /// under the names of the parameters. A shard has the rank of its parameter, with all but the last size 1.
  const std::vector<optim::Named>& parameters() const noexcept { return updated_; }
  /// The number among those of all ranks of this rank's micro-batch i.
  std::int64_t number(std::int64_t i) const noexcept { return i * size() + rank(); }
  /// All parameters, in the order of the model.
  const std::vector<optim::Named>& whole() const noexcept { return whole_; }
  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  /// That has the parameters in stage 3; null: they are here.
  const ShardStore* store() const noexcept { return store_.get(); }
  Communicator& communicator() noexcept { return ranks_; }
  const DataParallelOptions& options() const noexcept { return options_; }

  int rank() const noexcept override { return ranks_.rank(); }
  int size() const noexcept override { return ranks_.size(); }
  const LeafSet& leaves() const noexcept override { return leaves_; }
  /// Throws ValueError on all ranks where they differ, in the first step; PlanError.
  void begin_step(const optim::Optimizer& optimizer, std::int64_t micro_batches) override;
  /// The same without an optimizer. Throws PlanError.
  void begin_step(std::int64_t micro_batches);
  std::span<const optim::MicroBatch> all_parts(std::span<const optim::MicroBatch> own) override;
  void take_gradient(const std::shared_ptr<Leaf>& leaf) override;
  void end_micro_batch(std::size_t chunk) override;
  void complete_gradients() override;
  Tensor sum_losses(std::span<const Tensor> own) override;
  Tensor gradient_square_sums(const optim::Optimizer& optimizer) override;
  /// Of those sums, the number that chunks 0 to `chunk` have together.
  std::int64_t square_sums_to(int chunk) const;
  void share_state(Transaction& transaction) override;
  void share_parameters() override;
  void drop_gradients() noexcept override;

 private:
  /// A bucket in a step.
  struct Load {
    Tensor all;             // (elements): a micro-batch's gradients; in stage 0 their sums in the end
    Tensor mine;            // (shard): this rank's sums, where they do not lie in `all`
    std::vector<char> has;  // of each parameter: its gradient of this micro-batch
    std::size_t count = 0;  // of them
    bool has_sum = false;   // `mine` has one, of earlier micro-batches
  };
  struct Moves;  // what is on its way
  /// A parameter's place in its bucket.
  struct Place {
    const Leaf* leaf;
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
  std::vector<std::size_t> updated_at_;  // of each parameter: its place in updated_; none: this rank has nothing of it
  LeafSet leaves_;
  std::vector<Place> places_;  // sorted by leaf

  bool is_compared_ = false;  // with the other ranks
  std::int64_t micro_batches_ = 1;
  std::vector<std::int64_t> micro_batch_;  // of each chunk, the one that is under way
  std::vector<Load> loads_;
  std::unique_ptr<Moves> moves_;
  std::vector<char> has_gradient_;  // of each parameter, in any micro-batch
  std::vector<Tensor> sums_alone_;  // of one rank: of each parameter the sum so far
  std::vector<optim::MicroBatch> parts_;
};

}  // namespace thimble::dist
