#pragma once
// Fine-tuning a named model: initial weights, a frozen base in fewer bits, trained adapters (nn/lora/lora.h,
// nn/quant/weight_only.h). Errors name options as Setup does.

#include <optional>
#include <string>

#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/lora/adapter_files.h>

namespace thimble::models {

/// Sets `base`, and the dtype that goes with it: f32 for f32, else bf16. Throws ValueError for another name than f32,
/// bf16, int8, nf4.
void set_base(Setup& setup, const std::string& name);

/// Takes the setup's adapters from PEFT's folder: rank, alpha, dropout, layers and initial values. Throws what
/// nn::read_adapter_folder throws, ValueError if `lora_rank` or a related option is set as well.
void set_adapters(Setup& setup, const std::string& folder);

/// The code of the base's linear weights; none: they are not coded.
std::optional<WeightCode> base_code(const Setup& setup);

/// Whether `setup.weights` and `setup.adapters` can be read into the setup's model: names, shapes and dtypes, on a dry
/// device. Throws as nn::load_weights and nn::load_adapters do; does nothing if neither is named.
void check_weights(const Setup& setup);

/// Throws ValueError if token ids mean other texts in the data than in the weights: other characters, or another
/// tokenizer.
void check_tokens(const WeightFacts& facts, const Dataset& data);

/// Reads `setup.weights` into a model without adapters, then gives it those of the setup, with the values of
/// `setup.adapters`. On a dry device nothing is read, with the same use of memory. Throws as nn::load_weights,
/// nn::add_lora and nn::load_adapters do.
void begin_fine_tuning(const Setup& setup, Model& model, memory::Device device);

/// How the adapters of the setup's model are written: the names of transformers, and the origin of its weights.
nn::AdapterFiles adapter_files(const Setup& setup, const Model& model);

/// "LoRA of rank 16, alpha 32, on q_proj, v_proj; base nf4"; empty: all parameters are trained.
std::string adapting_text(const Setup& setup);

}  // namespace thimble::models
