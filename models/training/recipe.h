#pragma once
// The recipe of a training run in its checkpoints: settings that may change when a run resumes, but not silently.

#include <string>
#include <vector>

#include <thimble/dist/alike.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// One number or name of a recipe: `recipe.<key>` in a checkpoint, and the option that sets it.
struct RecipePart {
  std::string key, option, value;
  std::string unwritten = {};  ///< the value if a checkpoint does not name the part; empty: there is none
};

/// Batch, dropout, learning rate and its schedule (its steps if they shape it), weight decay, beta2, techniques that a
/// resumed run may change (OnResume::told) and the data's digest, with defaults filled in.
std::vector<RecipePart> recipe_of(const TrainOptions& options, const Dataset& data, const Model& model);

/// Adds the recipe, and settings of the model that no tensor's shape shows: the number of heads, a window, and its
/// function if it differs from the named model's (function_metadata).
void put_recipe(nn::Metadata& metadata, const TrainOptions& options, const Dataset& data, const Model& model);

/// A run's changes to a checkpoint's recipe: "`rate` 0.003 -> 0.01, other data: a.txt, ... -> b.txt, ..."; empty: none.
/// Parts that the checkpoint does not name (files of older versions) are skipped. Throws ValueError, beginning with
/// `start`, for another number of heads, window, or function of the same parameters.
std::string recipe_change(const nn::Metadata& before, const TrainOptions& options, const Dataset& data,
                          const Model& model, const std::string& start);

// ---- Traits that the ranks of a run must share on all machines.

/// The process's traits, the recipe, and every other option that makes the function of a run, its collective calls or
/// its files: model and sizes, data, weights, adapters and checkpoint by their bytes, seed, optimizer, formats, layout,
/// evaluations, files to write. The budget and other inputs of a plan are among them if ranks follow one plan or it
/// determines bits: with parts, stages or stage 3 of ZeRO, `allows_lossy`, `micro_batches` auto. Threads, strictness
/// and logs may differ. open_training has filled in `options`. Throws FileError.
std::vector<dist::Trait> rank_traits(const TrainOptions& options, const Dataset& data, const Model& model);

}  // namespace thimble::models
