#pragma once
// Generates tokens one after the other, with a cache of keys and values.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <thimble/models/datasets/dataset_text.h>
#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/generate/sampling.h>

namespace thimble::models {

/// The model as a decoder. Throws ValueError, naming `operation`, if it does not predict next tokens.
Decoder& require_decoder(Model& model, const char* operation);

/// Continues a batch of sequences: read() the prompt, draw() a token for each, read() these, and so on. Runs without a
/// tape. The model should be in evaluation mode, and must outlive it. On a dry device, without values, every token
/// drawn is 0.
class Generation {
 public:
  /// Makes a cache of `sizes` on the model's device; its batch is the number of sequences. Throws as
  /// SamplingOptions::check and nn::KvCache do.
  Generation(Decoder& model, const nn::KvCacheSizes& sizes, const nn::SamplingOptions& sampling, std::uint64_t seed);

  /// Reads the next tokens of all B sequences, (B, n) row by row. Throws ValueError unless B divides the tokens, and as
  /// Decoder::extend does.
  void read(std::span<const std::int64_t> tokens);
  /// Reads equal tokens for all sequences.
  void read_all(std::span<const std::int64_t> tokens);
  /// Draws a token for each sequence from the latest logits. Determined by the seed, the number of draws, and the
  /// tokens so far. Throws ValueError before the first read(), and as nn::draw_token does.
  std::vector<std::int64_t> draw();
  /// Forgets all tokens; the number of draws goes on.
  void clear() noexcept { cache_.clear(); }

  nn::KvCache& cache() noexcept { return cache_; }
  /// The latest logits, (B, V) row by row; empty on a dry device.
  const std::vector<float>& logits() const noexcept { return logits_; }

 private:
  Decoder& model_;
  nn::SamplingOptions sampling_;
  std::uint64_t seed_;
  memory::Device device_;
  nn::KvCache cache_;
  std::vector<float> logits_;
  std::int64_t drawn_ = 0;  // tokens per sequence
  bool has_read_ = false;
};

/// Continues `prompt` (at least one token) by `count` tokens, drawn from softmax(logits / temperature) over the `top_k`
/// most likely (all if 0); temperature 0 takes the most likely. Deterministic in the seed. Runs without a tape, in
/// evaluation mode, on the model's device; on a dry one every token drawn is 0. The cache has room for the model's
/// sequence: once it is full, the last half is read again into an empty cache. Throws ValueError.
std::vector<std::int64_t> generate(Model& model, std::vector<std::int64_t> prompt, std::int64_t count,
                                   double temperature = 0.8, std::int64_t top_k = 0, std::uint64_t seed = 0);

// ---- The tokens that end a text.

/// From the first source that has any: `eos_token_id`, a number or a list, in generation_config.json or config.json of
/// `folder`, if they exist; else the special tokens <|endoftext|>, <|end_of_text|> and <|eot_id|> of the text's
/// tokenizer. Sorted; empty if no token ends a text, for example over characters. Throws FileError naming the key if it
/// is neither null nor tokens.
std::vector<std::int64_t> find_end_tokens(const std::string& folder, const TokenText& text);

}  // namespace thimble::models
