#pragma once
// Fine-tuning a named model: initial weights, a frozen base in fewer bits, trained adapters (nn/lora/lora.h,
// nn/quant/weight_only.h). Errors spell options as Setup does.

#include <optional>
#include <string>

#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/lora/adapter_files.h>

namespace thimble::models {

/// Sets `base`, and `dtype` to f32 for f32, else to bf16. Throws ValueError unless `name` is f32, bf16, int8 or nf4.
void set_base(Setup& setup, const std::string& name);

/// Takes the adapters' rank, alpha, dropout, layers and initial values from a PEFT folder. Throws as
/// nn::read_adapter_folder does, and ValueError if `lora_rank` or a related option is set as well.
void set_adapters(Setup& setup, const std::string& folder);

/// The code of the base's linear weights; nullopt if they are not coded.
std::optional<WeightCode> base_code(const Setup& setup);

/// Checks on a dry device that `setup.weights` and `setup.lora.adapters`, if set, fit the setup's model in names,
/// shapes and dtypes. Throws as nn::load_weights and nn::load_adapters do.
void check_weights(const Setup& setup);

/// Throws ValueError if data and weights map token ids to different texts: by other characters, or by another
/// tokenizer.
void check_tokens(const WeightFacts& facts, const Dataset& data);

/// Reads `setup.weights` into a model without adapters, then adds the setup's adapters with the values of
/// `setup.lora.adapters`. On a dry device it uses the same memory and reads nothing. Throws as nn::load_weights,
/// nn::add_lora and nn::load_adapters do.
void begin_fine_tuning(const Setup& setup, Model& model, memory::Device device);

/// How the adapters of the setup's model are written: under the names of transformers, with the origin of its weights.
nn::AdapterFiles adapter_files(const Setup& setup, const Model& model);

/// "LoRA of rank 16, alpha 32, on q_proj, v_proj; base nf4"; empty if all parameters are trained.
std::string adapting_text(const Setup& setup);

}  // namespace thimble::models
