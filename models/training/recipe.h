#pragma once
// The recipe of a training run, as its checkpoints keep it: what may be another when a run goes on from one, but not
// in silence.

#include <string>
#include <vector>

#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// One number or name of a recipe: `recipe.<key>` in a checkpoint, and the option that sets it.
struct RecipePart {
  std::string key, option, value;
  std::string unwritten =
      {};  ///< the value that is meant where a checkpoint does not name the part; empty: there is none
};

/// Batch, dropout, learning rate and its schedule (its steps where they shape it), weight decay, beta2, techniques that
/// a resumed run may change (OnResume::told) and the data's digest, with defaults filled in.
std::vector<RecipePart> recipe_of(const TrainOptions& options, const Dataset& data, const Model& model);

/// Adds the recipe, and what of the model no tensor's shape tells: the number of heads, a window, and its function
/// where it is not the named model's (function_metadata).
void put_recipe(nn::Metadata& metadata, const TrainOptions& options, const Dataset& data, const Model& model);

/// What a run changes of a checkpoint's recipe: "`rate` 0.003 -> 0.01, other data: a.txt, ... -> b.txt, ..."; empty:
/// nothing. Parts that the checkpoint does not name (files of older versions) are passed over. Throws ValueError,
/// beginning with `start`, for another number of heads, window, or function of the same parameters.
std::string recipe_change(const nn::Metadata& before, const TrainOptions& options, const Dataset& data,
                          const Model& model, const std::string& start);

}  // namespace thimble::models
