#pragma once
// How a model is best laid out over ranks: data, tensor, sequence and pipeline parallelism, ZeRO's stage,
// micro-batches, recomputation, buckets and what is read ahead, so that every rank fits its memory and a step takes
// least.
//
// - Times are a model: rooflines of operators (nn/fit/cost.h), links (dist/links.h), the schedule of the pipeline as it
//   is simulated. Bytes are exact: dry runs of every distinct rank.
// - Pipelines have the 1F1B schedule; the others of dist/pipeline/schedule.h are not tried.
// - Layouts are looked at by their time. The first one that fits is the fastest of all that were counted, because each
//   faster one was seen not to fit.
//
// What a step takes, by the model: the pipeline's time, where each stage takes its operators' and sums parts over its
// team's links; what data-parallel traffic backward does not hide, the parameters that are gathered after the update,
// and the update's memory traffic.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/dist/links.h>
#include <thimble/models/planning/planning.h>

namespace thimble::models {

/// Ranks that are alike, in nodes.
struct Cluster {
  int ranks = 8;
  int per_node = 8;
  dist::Link inside = dist::link("nvlink-4"), between = dist::link("infiniband-400");
  std::size_t memory_bytes = 0;  ///< of each rank, that its arena may commit
};

/// What is chosen.
struct Layout {
  int dp = 1, tp = 1, pp = 1, zero = 0;
  std::int64_t micro_batches = 1;  ///< of each rank
  bool recomputes_blocks = false;
  std::size_t bucket_bytes = 25 << 20;
  bool cuts_sequence = false;  ///< sequence parallelism, with more than one part
  int read_ahead = 1;          ///< units of parameters that come before they are used, in ZeRO's stage 3
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// "dp 2, tp 4, sequence as well, pp 1, ZeRO 3, 8 micro-batches, blocks again, 0 read ahead, buckets of 25 MiB".
std::string to_string(const Layout& layout);

/// What is given, and not to be chosen.
struct FixedLayout {
  std::optional<int> dp, tp, pp, zero;
  std::optional<std::int64_t> micro_batches;
  std::optional<bool> recomputes_blocks, cuts_sequence;
  std::optional<std::size_t> bucket_bytes;
  std::optional<int> read_ahead;
};

/// Seconds of a step, by the model.
struct LayoutTime {
  double pipeline_s = 0;  ///< forwards and backwards of all micro-batches, idle stages among it
  double idle_s = 0;      ///< of that: of a stage, on average
  double parts_s = 0;     ///< of that: what teams exchange, of the slowest stage
  double shares_s = 0;  ///< traffic between ranks that share the batch, as far as it is not hidden, and of a tied table
  double update_s = 0;
  double step_s() const noexcept { return pipeline_s + shares_s + update_s; }
};

struct JudgedLayout {
  Layout layout;
  LayoutTime time;
  std::size_t peak_bytes = 0;  ///< of the rank that needs most of those that were run; 0: none was
  bool fits = false;           ///< as judge() found
};

struct LayoutReport {
  JudgedLayout best;
  std::vector<RankPlan> ranks;           ///< of the best one: every distinct rank, by its lowest number
  std::vector<JudgedLayout> neighbours;  ///< one thing changed
  std::size_t examined = 0;              ///< layouts whose time was counted
  std::size_t run = 0;                   ///< of those, whose ranks were run dry
  double search_s = 0;                   ///< seconds that all of it took, but for
  double proof_s = 0;                    ///< every distinct rank of the best layout, with its evaluation
};

/// The setup as a rank of the layout has it; `rank` is of all.
Setup setup_of(const Setup& setup, const Layout& layout, int rank = 0);

/// All layouts of the setup on the cluster that go with what is given: parts that divide heads and lie within a node,
/// stages up to the number of blocks, powers of two of samples in a micro-batch, buckets of 25 and 100 MiB, in stage
/// 3 of ZeRO nothing or one unit read ahead.
std::vector<Layout> layouts_of(const Setup& setup, const Cluster& cluster, const FixedLayout& fixed);

/// What layouts of a setup take and need by the model, from recordings of a block and of what lies around the blocks;
/// of models whose blocks differ, of each stage.
class LayoutTimes {
 public:
  /// Throws what make_model throws; of() and least_bytes() throw what dry runs throw.
  LayoutTimes(const Setup& setup, const Cluster& cluster, nn::CostModel costs, memory::Device device);
  ~LayoutTimes();
  LayoutTime of(const Layout& layout);
  /// Bytes that one of the ranks needs at least: parameters, state, and the larger of gradients and what is kept for
  /// backward.
  std::size_t least_bytes(const Layout& layout);

 private:
  struct Known;
  std::unique_ptr<Known> known_;
};

/// The layout run dry up to a rank that does not fit: one of the first stage, the second and the last, which need most,
/// two steps of no more micro-batches than can be under way and a few. With `ranks`, which gets them, it is a proof:
/// every distinct rank, and the program of a training run, its evaluation and all micro-batches included.
JudgedLayout judge(const PlanOptions& options, const Cluster& cluster, const Layout& layout, const LayoutTime& time,
                   std::vector<RankPlan>* ranks = nullptr);

/// The fastest layout that fits. `options.setup` has model, sizes, precision, optimizer and the batch of all ranks.
/// Throws ValueError for a cluster of no memory, a `pipeline` other than 1f1b, `cp`, `bucket_bytes` 0, and where
/// nothing goes with what is given; BudgetError where no layout fits: with the fewest bytes that were seen to be
/// needed.
LayoutReport find_layout(const PlanOptions& options, const Cluster& cluster, const FixedLayout& fixed = {});

}  // namespace thimble::models
