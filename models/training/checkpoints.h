#pragma once
// Checkpoints of a named model's run: the settings they hold besides its tensors, and the check before a run resumes.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// A trait that a run shares with the one that it resumes. A file has `value` under `key` unless it is the usual one.
struct RunTrait {
  std::string key, option, value, usual;
};
std::vector<RunTrait> run_traits(const TrainOptions& options, const Model& model);

/// The metadata of the run's files: the model, differences of its recipe from the policy (loss_scale, fp8_history,
/// ...), the characters of a text, and the recipe (models/training/recipe.h).
nn::Metadata metadata_of(const TrainOptions& options, const Dataset& data, const Model& model);

/// Compares the checkpoint of options.resume with the run on a dry device; nothing is loaded. Returns the steps that it
/// has done: updates, and steps that the loss scaler skipped, whose batches are used up as well. Throws FileError, and
/// ValueError for a run of another model, number of heads, precision, scaler, FP8 recipe, seed, or with no step left;
/// what nn::load_checkpoint throws. `change`: differences of the recipe (recipe_change).
std::int64_t check_resume(const TrainOptions& options, const Dataset& data, Training& training,
                          std::string* change = nullptr);

}  // namespace thimble::models
