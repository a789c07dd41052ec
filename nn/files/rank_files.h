#pragma once
// Files of ranks that train together: one file, the same as one rank with all parameters and state writes
// (nn/files/checkpoint.h). So any number of ranks can read it in any stage of ZeRO, with any tensor-parallel degree and
// any number of pipeline stages: each takes its shards of the file.
//
// Rank 0 writes, receiving the other ranks' shards one after the other: it needs room for the largest shard of one
// parameter's state, with tensor parallelism also for one whole parameter (Assembly), and no rank has all state at any
// moment. Errors of the file are thrown on all ranks.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/dist/data_parallel.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/init.h>

namespace thimble::nn {

/// Names, shapes and dtypes of the optimizer state of one rank with whole blocks, by the parameter's name.
using WholeState = std::map<std::string, std::vector<NamedTensor>>;

/// For an optimizer of all parameters as wholes, which may be dry.
WholeState whole_state(const optim::Optimizer& of_all);

/// The tensors of a pipeline stage's ranks, as plain data: rank 0 knows the later stages' by dry twins.
struct StageOutline {
  /// A range of a parameter, or of a shard of it, and its owner.
  struct Owned {
    int rank;  ///< among the ranks with the same shards
    dist::Range range;
  };
  struct Parameter {
    NamedTensor whole;                 ///< in the files' layout; without bytes
    std::optional<init::PartOf> part;  ///< of a rank; nullopt for a whole parameter
    /// For each shard its ZeRO ranges, in the order of elements; for a whole parameter the ranges of each group's first
    /// rank.
    std::vector<std::vector<Owned>> shards;

    std::int64_t elements(int of_part) const;  ///< before ZeRO divides them
  };
  std::vector<Parameter> parameters;
  std::vector<NamedTensor> buffers;  ///< without bytes
  int first_rank = 0;                ///< of all ranks
  int team = 1;                      ///< shards of a block
  int zero = 0;
  bool is_stored = false;  ///< parameters are in a dist::ShardStore
};
StageOutline stage_outline(const Module& module, const dist::DataParallel& parallel);

/// Tensors that files of several ranks have beside this rank's.
struct RankFiles {
  const WholeState& whole;                   ///< of the optimizer
  std::span<const StageOutline> later = {};  ///< on rank 0: the stages behind its own
  std::span<const NamedTensor> others = {};  ///< tensors of other stages
};

/// `later`, on rank 0: the stages behind its own, in order. Called on every rank. Errors of save_checkpoint on rank 0
/// are thrown on the others as well, as NotFiniteError or Error with the same text: all messages are complete, and
/// ranks may go on. After a RankError they may not. With tensor parallelism, state has an element for each of its
/// parameter's, or ShapeError is thrown.
void save_checkpoint(const std::string& path, const Module& module, dist::DataParallel& parallel,
                     const optim::Optimizer& optimizer, const WholeState& whole, const RandomGenerator& generator,
                     const Metadata& metadata = {}, const optim::GradScaler* scaler = nullptr,
                     std::span<const StageOutline> later = {}, bool overwrites = false);
/// On rank 0 in place of save_checkpoint: no file will be written, and the others throw Error with `why`.
void refuse_checkpoint(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                       const WholeState& whole, const std::string& why, std::span<const StageOutline> later = {});

/// load_checkpoint, where `optimizer` has this rank's shards. Called on every rank: in stage 3 they fetch parameters.
/// `others`: the file's tensors of other stages.
Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer, const WholeState& whole,
                         RandomGenerator& generator, optim::GradScaler* scaler = nullptr,
                         std::span<const NamedTensor> others = {});

/// save_weights of all ranks, in one file. Throws as save_checkpoint here.
void save_weights(const std::string& path, const Module& module, dist::DataParallel& parallel,
                  const Metadata& metadata = {}, std::span<const StageOutline> later = {});

/// The memory use of these functions, without a file: for dry runs. visit_state mirrors load_checkpoint.
void visit_save(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                const WholeState& whole, std::span<const StageOutline> later = {});
void visit_save_weights(const Module& module, dist::DataParallel& parallel, std::span<const StageOutline> later = {});

}  // namespace thimble::nn
