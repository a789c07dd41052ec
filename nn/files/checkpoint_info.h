#pragma once
// The metadata of a checkpoint: plain data, no model needed.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <thimble/nn/files/safetensors.h>
#include <thimble/optim/grad_scaler.h>

namespace thimble::nn {

/// The file's metadata holds the numbers under names that begin with "thimble.": integers in decimal, rate and scale as
/// the 16 hexadecimal digits of their bits, so that every value comes back exact.
struct CheckpointInfo {
  /// Of one optimizer.
  struct Updates {
    std::string optimizer;        ///< Optimizer::name()
    std::int64_t step_count = 0;  ///< updates done, >= 0
    double rate = 0;              ///< learning rate, finite and >= 0
    friend bool operator==(const Updates&, const Updates&) = default;
  };
  std::string optimizer;                         ///< Optimizer::name() of the first optimizer
  std::int64_t step_count = 0;                   ///< its updates done, >= 0
  double rate = 0;                               ///< its learning rate, finite and >= 0
  std::uint64_t seed = 0;                        ///< the generator's
  std::uint64_t generator_step = 0;              ///< the generator's
  std::optional<optim::GradScalerState> scaler;  ///< nullopt if training had no scaler
  std::string fp8;  ///< fp8_recipe_text() of the model (nn/layers/fp8.h); empty in old files
  std::map<std::string, std::string> metadata;  ///< the caller's; keys do not begin with "thimble."
  std::vector<Updates> others = {};             ///< of further optimizers

  friend bool operator==(const CheckpointInfo&, const CheckpointInfo&) = default;
};

/// Whether a file with this metadata is a checkpoint.
bool is_checkpoint(const std::map<std::string, std::string>& metadata);

/// Reads the header's metadata and checks that every tensor is named `model.*` or `optimizer.*`. Throws FileError,
/// naming the missing or malformed entry, if this is no checkpoint. `path` is for messages only.
CheckpointInfo parse_checkpoint_info(const SafetensorsHeader& header, const std::string& path);

/// The metadata that parse_checkpoint_info reads back. Throws ValueError if a key of the caller begins with "thimble.".
std::map<std::string, std::string> format_checkpoint_info(const CheckpointInfo& info);

}  // namespace thimble::nn
