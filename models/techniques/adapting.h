#pragma once
// A named model that is fine-tuned: weights that it begins with, a frozen base in fewer bits, adapters that are trained
// (nn/lora/lora.h, nn/quant/weight_only.h). Errors name options as Setup does.

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

/// Has the setup's adapters be those of PEFT's folder: rank, alpha, dropout and layers are what it says, and training
/// begins with its values. Throws what nn::read_adapter_folder throws, ValueError beside `lora_rank` and its fellows.
void set_adapters(Setup& setup, const std::string& folder);

/// The code of the base's linear weights; none: they are not coded.
std::optional<WeightCode> base_code(const Setup& setup);

/// Whether `setup.weights` and `setup.adapters` can be read into the setup's model: names, shapes and dtypes, on a dry
/// device. Throws as nn::load_weights and nn::load_adapters do; does nothing where neither is named.
void check_weights(const Setup& setup);

/// Throws ValueError where the numbers of tokens mean other texts to the data than to the weights: of other characters,
/// or of another tokenizer.
void check_tokens(const WeightFacts& facts, const Dataset& data);

/// Reads `setup.weights` into a model without adapters, then gives it those of the setup, with the values of
/// `setup.adapters`. On a dry device nothing is read, and memory goes the same ways. Throws as nn::load_weights,
/// nn::add_lora and nn::load_adapters do.
void begin_fine_tuning(const Setup& setup, Model& model, memory::Device device);

/// How the adapters of the setup's model are written: the names of transformers, and where its weights came from.
nn::AdapterFiles adapter_files(const Setup& setup, const Model& model);

/// "LoRA of rank 16, alpha 32, on q_proj, v_proj; base nf4"; empty: all parameters are trained.
std::string adapting_text(const Setup& setup);

}  // namespace thimble::models
