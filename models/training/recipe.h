#pragma once
// The recipe of a training run: settings in its checkpoints that may change when a run resumes, but not silently.

#include <string>
#include <vector>

#include <thimble/dist/alike.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// A value of a recipe, `recipe.<key>` in a checkpoint, and the option that sets it.
struct RecipePart {
  std::string key, option, value;
  std::string unwritten = {};  ///< the value of checkpoints without the key, if known
};

/// Batch, dropout, learning rate and its schedule (with the steps unless it is constant), weight decay, beta2,
/// techniques that a resumed run may change (OnResume::told) and the data's digest, with defaults filled in.
std::vector<RecipePart> recipe_of(const RunOptions& options, const Dataset& data, const Model& model);

/// Adds the recipe, the data's name, and model settings that no tensor's shape shows: the number of heads, a window,
/// and the function if it differs from the named model's (function_metadata).
void put_recipe(nn::Metadata& metadata, const RunOptions& options, const Dataset& data, const Model& model);

/// A run's changes to a checkpoint's recipe, or empty: "`rate` 0.003 -> 0.01, other data: a.txt, ... -> b.txt, ...".
/// Skips values that neither the checkpoint (of an older version) nor `unwritten` gives. Throws ValueError, beginning
/// with `start`, for another number of heads, window, or function of the same parameters.
std::string recipe_change(const nn::Metadata& before, const RunOptions& options, const Dataset& data,
                          const Model& model, const std::string& start);

// ---- Traits that all ranks of a run must share.

/// The process's traits, the recipe, and every other option that determines a run's results, collective calls or files:
/// model and sizes, data, weights, adapters and checkpoint by their checksums, seed, optimizer, formats, layout,
/// evaluations, files to write. The budget and other inputs of a plan are included if ranks follow one plan or the plan
/// determines bits: with shards, stages or stage 3 of ZeRO, `allows_lossy`, `micro_batches` auto. Threads, strictness
/// and logs may differ. `options` are an Engine's. Throws FileError.
std::vector<dist::Trait> rank_traits(const RunOptions& options, const Dataset& data, const Model& model);

}  // namespace thimble::models
