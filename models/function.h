#pragma once
// Settings of a transformer's function that the sizes of its parameters do not show.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/core/ops/elementwise/rotary.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// Base of rotary positions, and their stretching.
struct RotaryPositions {
  double theta = 10000;
  std::optional<RotaryScaling> scaling = {};
  friend bool operator==(const RotaryPositions&, const RotaryPositions&) = default;
};

/// Values that differ from the named model's own; unset: as it has them. A model's options() have all that its family
/// has: GPT, BERT and ViT `epsilon` and `gelu`, Llama all others and `epsilon`.
struct ModelFunction {
  std::optional<double> epsilon = {};  ///< of norms
  std::optional<GeluForm> gelu = {};   ///< of feed-forward layers
  std::optional<RotaryPositions> rotary = {};
  std::optional<bool> is_tied = {};            ///< the head is the token embedding
  std::optional<bool> has_bias = {};           ///< of queries, keys and values
  std::optional<std::int64_t> positions = {};  ///< of the public model's training
  friend bool operator==(const ModelFunction&, const ModelFunction&) = default;
};

/// `own`, overridden by the values that are set in `other`.
ModelFunction with_function(ModelFunction own, const ModelFunction& other);
/// Throws ValueError, naming the model `name`, for a value that is set in `function` and not in `own`: the family lacks
/// it.
void require_function(std::string_view name, const ModelFunction& function, const ModelFunction& own);

/// The values of `function` that differ from `own`, as files name them: "epsilon", "activation", "rope_theta",
/// "rope_scaling", "tied", "bias", "positions".
nn::Metadata function_texts(const ModelFunction& function, const ModelFunction& own);
/// The values in a file's metadata, else those of `own`. Throws ValueError, naming `path` and the key, for a text that
/// function_texts does not write.
ModelFunction read_function(const nn::Metadata& metadata, const ModelFunction& own, const std::string& path);

}  // namespace thimble::models
