#pragma once
// The memory of training adapters over a frozen model (nn/lora/lora.h), in closed form, for the GPT and Llama families
// in their fused builds. In addition to models/theory.h:
//
// - Parameters are those of the frozen base, with e bytes a number, or as codes for the weights of linear layers in
//   blocks; and of each adapted layer r (in + out) numbers in f32: only these have gradients and state.
// - Backward ends at the first adapter. Nothing before it is kept; a norm before it keeps nothing.
// - A product whose weight is frozen keeps no input: a layer's input is kept for its adapter, if it has one, else only
//   if another operator reads it in backward (attention, a norm, gelu, swiglu).
// - An adapter keeps its r numbers for each position, and in 16 bits the casts of A, if its input has a gradient, and
//   of B. With dropout it keeps the dropped input in place of its layer's input.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/models/theory.h>
#include <thimble/nn/lora/lora.h>

namespace thimble::models {

/// A linear layer of a model: (in) -> (out).
struct LinearTheory {
  std::string name;  ///< in the model: "h.0.attn.c_attn"
  std::int64_t in = 0, out = 0;
  bool is_adapted = false;
};

/// The bytes of training adapters.
struct LoraTheory {
  std::int64_t base_elements = 0;
  std::int64_t base_bytes = 0;     ///< of the stored frozen parameters
  std::int64_t decoded_bytes = 0;  ///< the largest decoded weight: one exists at a time
  std::int64_t adapter_elements = 0;
  std::vector<LinearTheory> linears;  ///< inside of blocks, in the order of construction
  std::vector<LayerTheory> layers;
  std::vector<Term> outside;

  std::int64_t adapter_bytes() const noexcept { return 4 * adapter_elements; }
  std::int64_t gradient_bytes() const noexcept { return adapter_bytes(); }
  /// With so many moments in f32: 2 for Adam.
  std::int64_t optimizer_bytes(std::int64_t moments) const noexcept { return moments * adapter_bytes(); }
  /// Of a category, that backward needs with a batch of so many samples.
  std::int64_t kept_bytes(Category category, std::int64_t batch) const;
};

/// Of a named model, all of whose numbers are of `dtype` (f32, f16, bf16). Throws ValueError for another family, the
/// textbook build, a chunked head, feed-forward layers in tiles, other dtypes, and a target that matches no linear
/// layer in a block.
LoraTheory lora_theory(std::string_view name, const ModelOptions& options, DType dtype, const nn::LoraOptions& lora,
                       std::optional<WeightCode> code = {});

}  // namespace thimble::models
