#pragma once
// What a transformer computes beyond what the sizes of its parameters tell.

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
  std::optional<bool> is_tied = {};            ///< the head is the token table
  std::optional<bool> has_bias = {};           ///< of queries, keys and values
  std::optional<std::int64_t> positions = {};  ///< that the public model was trained for
  friend bool operator==(const ModelFunction&, const ModelFunction&) = default;
};

/// `own` with what `other` has in its place.
ModelFunction with_function(ModelFunction own, const ModelFunction& other);
/// Throws ValueError, naming the model `name`, for a value that is set in `function` and not in `own`: the family has
/// no such thing.
void require_function(std::string_view name, const ModelFunction& function, const ModelFunction& own);

/// What of `function` is not as `own` has it, as files name it: "epsilon", "activation", "rope_theta", "rope_scaling",
/// "tied", "bias", "positions".
nn::Metadata function_texts(const ModelFunction& function, const ModelFunction& own);
/// The values that a file's metadata name, over those of `own`. Throws ValueError, naming `path` and the key, for a
/// text that function_texts does not write.
ModelFunction read_function(const nn::Metadata& metadata, const ModelFunction& own, const std::string& path);

}  // namespace thimble::models
