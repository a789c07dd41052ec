#pragma once
// Checkpoints of ranks that train together: one file, as one rank with all state writes it (nn/files/checkpoint.h).
// So it is read by any number of ranks in any stage of ZeRO: each takes its parts of the file.
//
// Rank 0 writes, and is given the parts of the others one after the other: it needs room for the largest part of one
// parameter's state, and no rank has all state at any moment. What goes wrong with the file is thrown on all ranks.

#include <string>
#include <vector>

#include <thimble/dist/data_parallel.h>
#include <thimble/nn/files/checkpoint.h>

namespace thimble::dist {

/// Names, shapes and dtypes of the state that one rank's optimizer would have, by parameter.
using WholeState = std::vector<std::vector<nn::NamedTensor>>;

/// Of an optimizer of all parameters, which may be dry.
WholeState whole_state(const optim::Optimizer& of_all);

/// On every rank. What nn::save_checkpoint throws on rank 0 the others throw as well, as nn::NotFiniteError or Error
/// with the same text: all have told each other all there was, and may go on. RankError: they may not.
void save_checkpoint(const std::string& path, const nn::Module& module, DataParallel& parallel,
                     const optim::Optimizer& optimizer, const WholeState& whole, const Generator& generator,
                     const nn::Metadata& metadata = {}, const optim::GradScaler* scaler = nullptr);
/// On rank 0 in the place of save_checkpoint: there will be no file, and the others throw Error with `why`.
void refuse_checkpoint(DataParallel& parallel, const optim::Optimizer& optimizer, const WholeState& whole,
                       const std::string& why);

/// nn::load_checkpoint, where `optimizer` has this rank's parts. On every rank: in stage 3 they bring parameters here.
nn::Metadata load_checkpoint(const std::string& path, nn::Module& module, optim::Optimizer& optimizer,
                             const WholeState& whole, Generator& generator, optim::GradScaler* scaler = nullptr);

/// What save_checkpoint does to memory, without a file: for dry runs. What load_checkpoint does is nn::visit_state.
void visit_save(DataParallel& parallel, const optim::Optimizer& optimizer, const WholeState& whole);

}  // namespace thimble::dist
