#pragma once
// Settings of a transformer that the shapes of its parameters do not show.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/core/ops/elementwise/rotary.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::models {

/// Base and scaling of rotary positions.
struct RotaryPositions {
  double theta = 10000;
  std::optional<RotaryScaling> scaling = {};
  friend bool operator==(const RotaryPositions&, const RotaryPositions&) = default;
};

/// Changes to the named model; unset values stay the model's. options() of a model have all values of its family: GPT,
/// BERT and ViT have `epsilon` and `gelu`, Llama all but `gelu`.
struct ModelFunction {
  std::optional<double> epsilon = {};  ///< of norms
  std::optional<GeluForm> gelu = {};   ///< of feed-forward layers
  std::optional<RotaryPositions> rotary = {};
  std::optional<bool> is_tied = {};            ///< the head is the token embedding
  std::optional<bool> has_bias = {};           ///< of queries, keys and values
  std::optional<std::int64_t> positions = {};  ///< that the public model was trained on
  friend bool operator==(const ModelFunction&, const ModelFunction&) = default;
};

/// `own`, with the values that `other` sets.
ModelFunction with_function(ModelFunction own, const ModelFunction& other);
/// Throws ValueError, naming the model `name`, if `function` sets a value that `own` and so the family lack.
void require_function(std::string_view name, const ModelFunction& function, const ModelFunction& own);

/// The values of `function` that differ from `own`, under the keys of files: "epsilon", "activation", "rope_theta",
/// "rope_scaling", "tied", "bias", "positions".
nn::Metadata function_texts(const ModelFunction& function, const ModelFunction& own);
/// `own`, with the values in a file's metadata. Throws ValueError, naming `path` and the key, for a text that
/// function_texts does not write.
ModelFunction read_function(const nn::Metadata& metadata, const ModelFunction& own, const std::string& path);

}  // namespace thimble::models
