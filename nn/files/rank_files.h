#pragma once
// Ranks that train together write the file that a single rank with all parameters and state writes
// (nn/files/checkpoint.h). So any number of ranks can read it with any ZeRO stage, any tensor-parallel degree and any
// number of pipeline stages: each takes its shards of the file.
//
// Rank 0 writes and receives the other ranks' shards one after the other. It needs memory for the largest shard of one
// parameter's state, with tensor parallelism also for one whole parameter (Assembly). No rank ever has all state.
// Errors of the file are thrown on all ranks.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/dist/data_parallel.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/init.h>

namespace thimble::nn {

/// Names, shapes and dtypes of the optimizer state of whole parameters, by the parameter's name.
using WholeState = std::map<std::string, std::vector<NamedTensor>>;

/// `of_all` is an optimizer of all parameters, unsharded; it may be dry.
WholeState whole_state(const optim::Optimizer& of_all);

/// The tensors of a pipeline stage's ranks, as plain data. Rank 0 gets the later stages' outlines from dry models.
struct StageOutline {
  /// A range of a parameter, or of a shard of it, and its owner.
  struct Owned {
    int rank;  ///< in its data-parallel group
    dist::Range range;
  };
  struct Parameter {
    NamedTensor whole;                   ///< in the file's layout, without bytes
    std::optional<init::ShardOf> shard;  ///< this rank's shard; nullopt for a whole parameter
    /// ZeRO's ranges of each shard, in the order of elements. A whole parameter has the ranges of each group's first
    /// rank.
    std::vector<std::vector<Owned>> shards;

    std::int64_t elements(int index) const;  ///< before ZeRO divides them
  };
  std::vector<Parameter> parameters;
  std::vector<NamedTensor> buffers;  ///< without bytes
  int first_rank = 0;                ///< among all ranks
  int group = 1;                     ///< tensor-parallel degree
  int zero = 0;
  bool is_stored = false;  ///< parameters are in a dist::ShardStore
};
StageOutline stage_outline(const Module& module, const dist::DataParallel& parallel);

/// A file's tensors besides this rank's.
struct RankFiles {
  const WholeState& whole;                   ///< of the optimizer
  std::span<const StageOutline> later = {};  ///< on rank 0, the stages after its stage
  std::span<const NamedTensor> others = {};  ///< tensors of other stages
};

/// Called on every rank. `later`: on rank 0, the stages after its stage, in order. Errors of save_checkpoint on rank 0
/// are thrown on the other ranks as NotFiniteError or Error with equal text; all messages are complete and ranks may go
/// on, but not after a RankError. With tensor parallelism, throws ShapeError unless state has an element for each of
/// its parameter's.
void save_checkpoint(const std::string& path, const Module& module, dist::DataParallel& parallel,
                     const optim::Optimizer& optimizer, const WholeState& whole, const RandomGenerator& generator,
                     const Metadata& metadata = {}, const optim::GradScaler* scaler = nullptr,
                     std::span<const StageOutline> later = {}, bool overwrites = false);
/// Called on rank 0 in place of save_checkpoint: writes no file; the other ranks throw Error with `why`.
void refuse_checkpoint(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                       const WholeState& whole, const std::string& why, std::span<const StageOutline> later = {});

/// load_checkpoint for an optimizer with this rank's shards. Called on every rank: with ZeRO 3 they fetch parameters.
/// `others`: the file's tensors of other stages.
Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer, const WholeState& whole,
                         RandomGenerator& generator, optim::GradScaler* scaler = nullptr,
                         std::span<const NamedTensor> others = {});

/// save_weights of all ranks, in one file. Throws as save_checkpoint above.
void save_weights(const std::string& path, const Module& module, dist::DataParallel& parallel,
                  const Metadata& metadata = {}, std::span<const StageOutline> later = {});

/// For dry runs: the memory use of these functions without a file. visit_state mirrors load_checkpoint.
void visit_save(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                const WholeState& whole, std::span<const StageOutline> later = {});
void visit_save_weights(const Module& module, dist::DataParallel& parallel, std::span<const StageOutline> later = {});

}  // namespace thimble::nn
