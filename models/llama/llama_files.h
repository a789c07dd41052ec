#pragma once
// Folders of the Llama family as Hugging Face's hub has them: `config.json` and weights in safetensors files, one or
// several with an index (nn/files/weights.h).

#include <cstdint>
#include <memory>
#include <string>

#include <thimble/models/llama/llama.h>

namespace thimble::models {

/// Reads a config.json of `model_type` llama, mistral or qwen2 (models/weights/config.h). sequence, build, head and
/// feed_forward come from `options`, where sequence 0 is max_position_embeddings. Throws as read_model_config does;
/// ValueError for options beside those and dropout 0, which an attention_dropout needs.
LlamaConfig read_llama_config(const std::string& path, const ModelOptions& options = {});
/// Writes one that transformers 4 and 5 read. `dtype`: of the weights beside it. Throws FileError.
void write_llama_config(const std::string& path, const LlamaConfig& config, DType dtype);

/// The model that a folder's config.json describes, with the folder's weights, which are converted to the placement's
/// dtypes; on a dry device they are only checked. Throws as read_llama_config, follow_weights and nn::load_weights do.
std::unique_ptr<Llama> load_llama(const std::string& folder, const nn::TensorOptions& on = {},
                                  const ModelOptions& options = {});
/// Writes such a folder, with shards of at most `most_bytes` bytes. Throws as nn::save_weight_folder does.
void save_llama(const Llama& model, const std::string& folder, std::uint64_t most_bytes = 5'000'000'000);

}  // namespace thimble::models
