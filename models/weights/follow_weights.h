#pragma once
// A model as the file says that its weights are read from: what stands beside weights is read, whoever reads them.

#include <memory>
#include <string>
#include <string_view>

#include <thimble/models/model.h>
#include <thimble/models/weights/weight_facts.h>

namespace thimble::models {

/// What the weights are for. Models that write have no dropout, and positions for all that theirs can have.
enum class WeightUse : std::uint8_t { training, writing };

/// Fills in the sizes and the function that `sizes`, of the model `name`, leaves open: by the config.json beside the
/// weights, else by the metadata of a file of ours and the tensors' shapes. `dropout` that is open becomes the
/// config.json's. Builds nothing. Throws ValueError, naming both values, where `sizes` has another one than the file,
/// where a config.json and the tensors beside it differ in size or in number of layers, and for a file of another
/// model's; as read_model_config does.
void follow_weights(std::string_view name, ModelOptions& sizes, const WeightFacts& facts, WeightUse use);

/// The same for a run that goes on from a checkpoint, for which only what is open is filled in: whether the rest agrees
/// is asked where the checkpoint is read.
void follow_checkpoint(std::string_view name, ModelOptions& sizes, const WeightFacts& facts);

/// What a file of a model with these options says of it beside its tensors: "heads", "window", and its function where
/// it is not that of `name` (function_texts).
nn::Metadata function_metadata(std::string_view name, const ModelOptions& complete);

/// The model `name` with the sizes and the function of a folder of the hub, a file, or an index, and its weights, which
/// are converted to the placement's dtypes; on a dry device they are only checked. Throws as follow_weights and
/// nn::load_weights do.
std::unique_ptr<Model> load_model(std::string_view name, const std::string& path, const nn::TensorOptions& on = {},
                                  ModelOptions options = {});

}  // namespace thimble::models
