#pragma once
// Hugging Face folders of the Llama family: `config.json` and weights in one safetensors file, or several with an index
// (nn/files/weights.h).

#include <cstdint>
#include <memory>
#include <string>

#include <thimble/models/llama/llama.h>

namespace thimble::models {

/// Reads a config.json of `model_type` llama, mistral or qwen2 (models/weights/config.h). Takes sequence, build, head
/// and feed_forward from `options`; sequence 0 means max_position_embeddings. Throws as read_model_config does;
/// ValueError for other options, except dropout 0, which files with an attention_dropout need.
LlamaConfig read_llama_config(const std::string& path, const ModelOptions& options = {});
/// Writes a config.json that transformers 4 and 5 read. `dtype` is the weights'. Throws FileError.
void write_llama_config(const std::string& path, const LlamaConfig& config, DType dtype);

/// The model of a folder's config.json, with the folder's weights converted to the dtypes of `on`; on a dry device only
/// checks them. Throws as read_llama_config, follow_weights and nn::load_weights do.
std::unique_ptr<Llama> load_llama(const std::string& folder, const nn::TensorOptions& on = {},
                                  const ModelOptions& options = {});
/// Writes such a folder, with files of at most `most_bytes` bytes. Throws as nn::save_weight_folder does.
void save_llama(const Llama& model, const std::string& folder, std::uint64_t most_bytes = 5'000'000'000);

}  // namespace thimble::models
