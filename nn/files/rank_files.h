#pragma once
// Files of ranks that train together: one file, as one rank with all parameters and state writes it
// (nn/files/checkpoint.h). So it is read by any number of ranks in any stage of ZeRO, whose blocks are in any number of
// parts and whose chain is in any number of stages: each takes its parts of the file.
//
// Rank 0 writes, and is given the parts of the others one after the other: it needs room for the largest part of one
// parameter's state, where blocks are in parts for one whole parameter as well (Assembly), and no rank has all
// state at any moment. What goes wrong with the file is thrown on all ranks.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/dist/data_parallel.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/init.h>

namespace thimble::nn {

/// Names, shapes and dtypes of the state that the optimizer of one rank, whose blocks are whole, would have: by the
/// parameter's name.
using WholeState = std::map<std::string, std::vector<NamedTensor>>;

/// Of an optimizer of all parameters as wholes, which may be dry.
WholeState whole_state(const optim::Optimizer& of_all);

/// What the ranks of a stage of a pipeline have, as plain data: rank 0 knows it of those behind its own by dry twins.
struct StageOutline {
  /// Some of a parameter, or of a part of it, and who has it.
  struct Owned {
    int rank;  ///< among those with the same parts
    dist::Range range;
  };
  struct Parameter {
    NamedTensor whole;                 ///< as files have it; without bytes
    std::optional<init::PartOf> part;  ///< of a rank; none: it is whole
    /// Of each part as ZeRO shares it out, in the order of elements; of a whole one by the first of each team.
    std::vector<std::vector<Owned>> shards;

    std::int64_t elements(int of_part) const;  ///< before they are shared out
  };
  std::vector<Parameter> parameters;
  std::vector<NamedTensor> buffers;  ///< without bytes
  int first_rank = 0;                ///< of all ranks
  int team = 1;                      ///< parts of a block
  int zero = 0;
  bool is_stored = false;  ///< parameters are in a dist::ShardStore
};
StageOutline stage_outline(const Module& module, const dist::DataParallel& parallel);

/// `later`, on rank 0: the stages behind its own, in order.
/// On every rank. What save_checkpoint throws on rank 0 the others throw as well, as NotFiniteError or Error
/// with the same text: all have told each other all there was, and may go on. RankError: they may not. Where blocks are
/// in parts, state has an element for each of its parameter's, or ShapeError is thrown.
void save_checkpoint(const std::string& path, const Module& module, dist::DataParallel& parallel,
                     const optim::Optimizer& optimizer, const WholeState& whole, const Generator& generator,
                     const Metadata& metadata = {}, const optim::GradScaler* scaler = nullptr,
                     std::span<const StageOutline> later = {});
/// On rank 0 in the place of save_checkpoint: there will be no file, and the others throw Error with `why`.
void refuse_checkpoint(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                       const WholeState& whole, const std::string& why, std::span<const StageOutline> later = {});

/// load_checkpoint, where `optimizer` has this rank's parts. On every rank: in stage 3 they bring parameters here.
/// `others`: the file's tensors of other stages.
Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer, const WholeState& whole,
                         Generator& generator, optim::GradScaler* scaler = nullptr,
                         std::span<const NamedTensor> others = {});

/// save_weights of all ranks, in one file. Throws as save_checkpoint here.
void save_weights(const std::string& path, const Module& module, dist::DataParallel& parallel,
                  const Metadata& metadata = {}, std::span<const StageOutline> later = {});

/// What these do to memory, without a file: for dry runs. What load_checkpoint does is visit_state.
void visit_save(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                const WholeState& whole, std::span<const StageOutline> later = {});
void visit_save_weights(const Module& module, dist::DataParallel& parallel, std::span<const StageOutline> later = {});

}  // namespace thimble::nn
