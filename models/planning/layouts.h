#pragma once
// Finds the fastest layout of a model over ranks that fits each rank's memory: data, tensor, sequence and pipeline
// parallelism, ZeRO's stage, micro-batches, recomputation, buckets and reading ahead.
//
// - Times are modelled: rooflines of operators (nn/fit/cost.h), links (dist/links.h), a simulated pipeline schedule.
//   Bytes are exact: dry runs of every distinct rank.
// - Pipelines use the 1F1B schedule; the search does not try the others of dist/pipeline/schedule.h.
// - The search visits layouts in the order of their times. So the first that fits is the fastest: every faster one was
//   shown not to fit.
//
// The modelled time of a step is the pipeline's, in which each stage runs its operators and sums shards over its
// group's links; data-parallel traffic that backward does not hide; gathering the parameters after the update; and the
// memory traffic of the update.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/dist/links.h>
#include <thimble/models/planning/planning.h>

namespace thimble::models {

/// Equal ranks, in nodes.
struct Cluster {
  int ranks = 8;
  int per_node = 8;
  dist::Link inside = dist::link("nvlink-4"), between = dist::link("infiniband-400");
  std::size_t memory_bytes = 0;  ///< that each rank's arena may commit
};

struct Layout {
  int dp = 1, tp = 1, pp = 1, zero = 0;
  std::int64_t micro_batches = 1;  ///< per rank
  bool recomputes_blocks = false;
  std::size_t bucket_bytes = 25 << 20;
  bool cuts_sequence = false;  ///< sequence parallelism, with tp > 1
  int read_ahead = 1;          ///< units of parameters fetched before use, in ZeRO's stage 3
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// "dp 2, tp 4, sequence as well, pp 1, ZeRO 3, 8 micro-batches, blocks again, 0 read ahead, buckets of 25 MiB".
std::string to_string(const Layout& layout);

/// The values of a layout that the caller has fixed.
struct FixedLayout {
  std::optional<int> dp, tp, pp, zero;
  std::optional<std::int64_t> micro_batches;
  std::optional<bool> recomputes_blocks, cuts_sequence;
  std::optional<std::size_t> bucket_bytes;
  std::optional<int> read_ahead;
};

/// Seconds of a step, by the model.
struct LayoutTime {
  double pipeline_s = 0;  ///< forward and backward of all micro-batches, idle time included
  double idle_s = 0;      ///< of pipeline_s: the mean over stages
  double parts_s = 0;     ///< of pipeline_s: traffic of tensor-parallel groups, in the slowest stage
  double shares_s = 0;    ///< data-parallel traffic that is not hidden, and traffic of a tied table
  double update_s = 0;
  double step_s() const noexcept { return pipeline_s + shares_s + update_s; }
};

struct JudgedLayout {
  Layout layout;
  LayoutTime time;
  std::size_t peak_bytes = 0;  ///< largest of the ranks that were run dry; 0 if none was
  bool fits = false;           ///< by judge()
};

struct LayoutReport {
  JudgedLayout best;
  std::vector<RankPlan> ranks;           ///< every distinct rank of the best layout, by its lowest number
  std::vector<JudgedLayout> neighbours;  ///< layouts with one change
  std::size_t examined = 0;              ///< layouts with a modelled time
  std::size_t run = 0;                   ///< of these, layouts with ranks that were run dry
  double search_s = 0;                   ///< seconds of everything but the proofs
  double proof_s = 0;                    ///< seconds of dry runs of every distinct rank, with its evaluation
};

/// The setup of rank `rank` of the layout, counted over all ranks.
Setup setup_of(const Setup& setup, const Layout& layout, int rank = 0);

/// All layouts of the setup on the cluster with the fixed values: tensor-parallel groups that divide the heads and lie
/// within a node, stages up to the number of blocks, powers of two of samples in a micro-batch, buckets of 25 and 100
/// MiB, in stage 3 of ZeRO zero or one unit read ahead.
std::vector<Layout> layouts_of(const Setup& setup, const Cluster& cluster, const FixedLayout& fixed);

/// Models the time of layouts and the bytes that they need at least, from recordings of one block and of the layers
/// around the blocks, or of each stage if the blocks differ.
class LayoutTimes {
 public:
  /// Throws as make_model does; of() and least_bytes() throw as dry runs do.
  LayoutTimes(const Setup& setup, const Cluster& cluster, nn::CostModel costs, memory::Device device);
  ~LayoutTimes();
  LayoutTime of(const Layout& layout);
  /// A lower bound of the largest rank's bytes: parameters, state, and the larger of gradients and activations.
  std::size_t least_bytes(const Layout& layout);

 private:
  struct Known;
  std::unique_ptr<Known> known_;
};

/// Runs ranks of the layout dry, up to one that does not fit: a rank of the first, the second and the last stage, which
/// need most, for two steps of at most 2 pp + 2 micro-batches, because more need no more bytes. With `ranks`, which it
/// fills in, it proves the layout: every distinct rank runs a whole training program, with all micro-batches and the
/// evaluation.
JudgedLayout judge(const RunOptions& options, const Cluster& cluster, const Layout& layout, const LayoutTime& time,
                   std::vector<RankPlan>* ranks = nullptr);

/// The fastest layout that fits. `options.setup` has model, sizes, precision, optimizer and the batch of all ranks.
/// Throws ValueError for a cluster without ranks or memory, a `pipeline` other than 1f1b, `cp`, `bucket_bytes` 0, and
/// fixed values that no layout has; BudgetError, with the fewest bytes found to be needed, if no layout fits.
LayoutReport find_layout(const RunOptions& options, const Cluster& cluster, const FixedLayout& fixed = {});

}  // namespace thimble::models
