#pragma once
// What a file of weights or a checkpoint says of its model besides the numbers.

#include <map>
#include <string>

#include <thimble/core/tensor/shape.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

struct GenerationShape;

/// Before the names of a model's tensors in a checkpoint.
inline constexpr const char* checkpoint_prefix = "model.";

struct WeightFacts {
  std::string path;
  nn::Metadata metadata;
  std::map<std::string, Shape> shapes;  ///< by the model's names
  bool is_checkpoint = false;

  /// The metadata's text under a key; empty: there is none.
  std::string text(const std::string& key) const;
};

/// Reads headers alone. Throws FileError, also for a file that is no checkpoint where it is to be one.
WeightFacts read_weight_facts(const std::string& path, bool is_checkpoint);

/// Fills in the sizes that the shape leaves open and the file tells: by its config.json where it is a folder with one,
/// else by its tensors' shapes, the number of heads by its metadata. Throws ValueError where the file is of another
/// model than the shape, and as read_llama_config does.
void fill_in(GenerationShape& shape, const WeightFacts& facts);

}  // namespace thimble::models
