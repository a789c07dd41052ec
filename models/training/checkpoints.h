#pragma once
// Checkpoints of a named model's run: the settings that they hold, and the check before a run resumes.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// A trait that a run must share with the run that it resumes. A file has `value` under `key` unless it is `usual`.
struct RunTrait {
  std::string key, option, value, usual;
};
std::vector<RunTrait> run_traits(const RunOptions& options, const Model& model);

/// The metadata of the run's files: the model, its traits where they are not the usual ones (precision, loss_scale,
/// fp8_history, ...), the characters or tokenizer of a text, and the recipe (models/training/recipe.h).
nn::Metadata metadata_of(const RunOptions& options, const Dataset& data, const Model& model);

/// Compares the checkpoint of options.resume with the run, on a dry device: loads no values. Returns the steps that it
/// has done: updates, and steps that the loss scaler skipped, which used up batches, too. Throws FileError; ValueError
/// for another model, number of heads, precision, scaler, FP8 recipe or seed, or no step left; else as
/// nn::load_checkpoint does. Sets `change` to the changes of the recipe (recipe_change).
std::int64_t check_resume(const RunOptions& options, const Dataset& data, Training& training,
                          std::string* change = nullptr);

}  // namespace thimble::models
