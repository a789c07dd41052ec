#pragma once
// Folders of the Llama family as Hugging Face's hub has them: `config.json` and weights in safetensors files, one or
// several with an index (nn/files/weight_files.h).

#include <cstdint>
#include <memory>
#include <string>

#include <thimble/models/llama/llama.h>

namespace thimble::models {

/// Reads a config.json of `model_type` llama or qwen2, as transformers 4 (`rope_theta`, `rope_scaling`) and 5
/// (`rope_parameters`) write it. What it leaves out is as transformers has it: key heads as heads, rms_norm_eps 1e-6,
/// rope_theta 10000, an untied head. sequence, build and head come from `options`, where sequence 0 is
/// max_position_embeddings. Throws FileError where the file cannot be read or is no JSON, ValueError naming the key,
/// its value and what is allowed: sizes that are missing or do not fit, another activation, biases elsewhere than in a
/// Qwen's queries, keys and values, heads of another size than width / heads, sliding windows, other kinds of rotary
/// positions; options beside those three.
LlamaConfig read_llama_config(const std::string& path, const ModelOptions& options = {});
/// Writes one that transformers 4 and 5 read. `dtype`: of the weights beside it. Throws FileError.
void write_llama_config(const std::string& path, const LlamaConfig& config, DType dtype);

/// The model that a folder's config.json describes, with the folder's weights, which are converted to the placement's
/// dtypes; on a dry device they are only checked. A tied model passes over a copy of its table as `lm_head.weight`.
/// Throws as read_llama_config and nn::load_weights do.
std::unique_ptr<Llama> load_llama(const std::string& folder, const nn::TensorOptions& on = {},
                                  const ModelOptions& options = {});
/// Writes such a folder, with shards of at most `most_bytes` bytes. Throws as nn::save_weight_folder does.
void save_llama(const Llama& model, const std::string& folder, std::uint64_t most_bytes = 5'000'000'000);

}  // namespace thimble::models
