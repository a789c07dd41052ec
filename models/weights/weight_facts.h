#pragma once
// What a file of weights, a folder of the hub or a checkpoint tells of its model besides the numbers.

#include <map>
#include <string>

#include <thimble/core/tensor/shape.h>
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
/// it (nn/files/weight_files.h). Throws FileError, also for a file that is no checkpoint where it is to be one.
WeightFacts read_weight_facts(const std::string& path, bool is_checkpoint = false);

}  // namespace thimble::models
