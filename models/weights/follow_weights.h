#pragma once
// The facts about its model in a file of weights, a Hugging Face folder or a checkpoint.

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <thimble/core/shape.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// Prefix of the names of a model's tensors in a checkpoint.
inline constexpr const char* checkpoint_prefix = "model.";

struct WeightFacts {
  std::string path;
  nn::Metadata metadata;
  std::map<std::string, Shape> shapes;  ///< by the names in the file, without `transformer.` and `_q8`
  std::string config = {};              ///< path of the config.json next to the weights, if there is one
  bool is_checkpoint = false;
  std::uint64_t bytes = 0;  ///< of all tensors

  /// The metadata's text under a key, or empty.
  std::string text(const std::string& key) const;
};

/// Reads only headers. `path` may be a folder or one of the hub's files in it (nn/files/weights.h); both find the
/// folder's config.json. Throws FileError, also if `is_checkpoint` and the file is none, and ValueError for a
/// checkpoint without `is_checkpoint`.
WeightFacts read_weight_facts(const std::string& path, bool is_checkpoint = false);

// ---- Sizes and function from the file that the weights are read from.

/// Models that write have no dropout, and all positions that the file allows.
enum class WeightUse : std::uint8_t { training, writing };

/// Fills in the sizes and the function that `sizes`, of the model `name`, leaves open: from the config.json next to the
/// weights, else from Thimble's metadata and the tensors' shapes. Takes `dropout`, if open, from the config.json.
/// Builds nothing. Throws ValueError, naming both values, if `sizes` contradicts config.json or metadata, if
/// config.json and tensors differ in sizes or number of layers, and for a file of another family; and as
/// read_model_config does.
void follow_weights(std::string_view name, ModelOptions& sizes, const WeightFacts& facts, WeightUse use);

/// Fills in the sizes and the function that `sizes` leaves open from a checkpoint of the same model. Throws ValueError
/// for sizes that contradict the tensors' shapes, except for sizes of the data; check_resume compares the rest.
void follow_checkpoint(std::string_view name, ModelOptions& sizes, const WeightFacts& facts);

/// The metadata of a model with these options: "heads", "window", and its function if it differs from `name`'s
/// (function_texts). Empty unless it is a transformer.
nn::Metadata function_metadata(std::string_view name, const ModelOptions& complete);

/// The model `name` with the sizes, the function and the weights of a Hugging Face folder, a file, or an index.
/// Converts the weights to the dtypes of `on`; on a dry device only checks them. Throws as follow_weights and
/// nn::load_weights do.
std::unique_ptr<Model> load_model(std::string_view name, const std::string& path, const nn::TensorOptions& on = {},
                                  ModelOptions options = {});

}  // namespace thimble::models
