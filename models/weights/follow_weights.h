#pragma once
// What a file of weights, a folder of the hub or a checkpoint tells of its model besides the numbers.

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <thimble/core/shape.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// Before the names of a model's tensors in a checkpoint.
inline constexpr const char* checkpoint_prefix = "model.";

struct WeightFacts {
  std::string path;
  nn::Metadata metadata;
  std::map<std::string, Shape> shapes;  ///< by the file's names, without `transformer.`
  std::string config = {};              ///< the config.json that is beside the weights; empty: none
  bool is_checkpoint = false;
  std::uint64_t bytes = 0;  ///< of all tensors

  /// The metadata's text under a key; empty: there is none.
  std::string text(const std::string& key) const;
};

/// Reads only headers. The weights' config.json is that of the folder, also where `path` is one of the hub's files in
/// it (nn/files/weights.h). Throws FileError, also for a file that is no checkpoint where it is to be one, and
/// ValueError for a checkpoint where it is to be none.
WeightFacts read_weight_facts(const std::string& path, bool is_checkpoint = false);

// ---- A model as the file says that its weights are read from: what stands beside weights is read, whoever reads them.

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
