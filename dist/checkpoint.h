#pragma once
// Files of ranks that train together: one file, as one rank with all parameters and state writes it
// (nn/files/checkpoint.h). So it is read by any number of ranks in any stage of ZeRO, whose blocks are in any number of
// parts: each takes its parts of the file.
//
// Rank 0 writes, and is given the parts of the others one after the other: it needs room for the largest part of one
// parameter's state, where blocks are in parts for one whole parameter as well (nn::Assembly), and no rank has all
// state at any moment. What goes wrong with the file is thrown on all ranks.

#include <map>
#include <string>
#include <vector>

#include <thimble/dist/data_parallel.h>
#include <thimble/nn/files/checkpoint.h>

namespace thimble::dist {

/// Names, shapes and dtypes of the state that the optimizer of one rank, whose blocks are whole, would have: by the
/// parameter's name.
using WholeState = std::map<std::string, std::vector<nn::NamedTensor>>;

/// Of an optimizer of all parameters as wholes, which may be dry.
WholeState whole_state(const optim::Optimizer& of_all);

/// On every rank. What nn::save_checkpoint throws on rank 0 the others throw as well, as nn::NotFiniteError or Error
/// with the same text: all have told each other all there was, and may go on. RankError: they may not. Where blocks are
/// in parts, state has an element for each of its parameter's, or ShapeError is thrown.
void save_checkpoint(const std::string& path, const nn::Module& module, DataParallel& parallel,
                     const optim::Optimizer& optimizer, const WholeState& whole, const Generator& generator,
                     const nn::Metadata& metadata = {}, const optim::GradScaler* scaler = nullptr);
/// On rank 0 in the place of save_checkpoint: there will be no file, and the others throw Error with `why`.
void refuse_checkpoint(const nn::Module& module, DataParallel& parallel, const optim::Optimizer& optimizer,
                       const WholeState& whole, const std::string& why);

/// nn::load_checkpoint, where `optimizer` has this rank's parts. On every rank: in stage 3 they bring parameters here.
nn::Metadata load_checkpoint(const std::string& path, nn::Module& module, optim::Optimizer& optimizer,
                             const WholeState& whole, Generator& generator, optim::GradScaler* scaler = nullptr);

/// nn::save_weights of all ranks, in one file. Throws as save_checkpoint here.
void save_weights(const std::string& path, const nn::Module& module, DataParallel& parallel,
                  const nn::Metadata& metadata = {});

/// What these do to memory, without a file: for dry runs. What load_checkpoint does is nn::visit_state.
void visit_save(const nn::Module& module, DataParallel& parallel, const optim::Optimizer& optimizer,
                const WholeState& whole);
void visit_save_weights(const nn::Module& module, DataParallel& parallel);

}  // namespace thimble::dist
