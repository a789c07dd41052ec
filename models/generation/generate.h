#pragma once
// Tokens that a model writes, one after the other, over a cache of keys and values.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <thimble/models/datasets/dataset_text.h>
#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/generate/sampling.h>

namespace thimble::models {

/// The model as a decoder. Throws ValueError, naming `operation`, where it does not give the tokens that come next.
Decoder& require_decoder(Model& model, const char* operation);

/// Sequences that go on, each by its own draws: read the prompt, draw a token for each, read those, and so on. Runs
/// without a tape; the model should be in evaluation mode, and must live as long. On a dry device there are no values:
/// every token drawn is 0.
class Generation {
 public:
  /// A cache of `sizes`, whose batch is the number of sequences, on the model's device. Throws as
  /// SamplingOptions::check and nn::KvCache do.
  Generation(Decoder& model, const nn::KvCacheSizes& sizes, const nn::SamplingOptions& sampling, std::uint64_t seed);

  /// Reads the next tokens of every sequence: those of sequence b from b tokens.size() / B on. Throws as
  /// Decoder::extend.
  void read(std::span<const std::int64_t> tokens);
  /// Reads the same for every sequence.
  void read_all(std::span<const std::int64_t> tokens);
  /// A token for each sequence from the logits of what was read last. The same seed, and the same tokens so far, give
  /// the same ones. Throws ValueError before anything was read, and as nn::draw_token.
  std::vector<std::int64_t> draw();
  /// Forgets what was read; draws are counted on.
  void clear() noexcept { cache_.clear(); }

  nn::KvCache& cache() noexcept { return cache_; }
  /// Of what was read last, (B, V) row by row; of a dry device empty.
  const std::vector<float>& logits() const noexcept { return logits_; }

 private:
  Decoder& model_;
  nn::SamplingOptions sampling_;
  std::uint64_t seed_;
  memory::Device device_;
  nn::KvCache cache_;
  std::vector<float> logits_;
  std::int64_t drawn_ = 0;  // tokens of each sequence
  bool has_read_ = false;
};

/// Continues `prompt` (at least one token) by `count` tokens, drawn from softmax(logits / temperature) over the `top_k`
/// most likely (0: all); temperature 0 takes the most likely. The same seed gives the same tokens. Runs without a tape,
/// in evaluation mode, on the model's device; a dry one has no values, so there every token drawn is 0. The cache has
/// room for the model's sequence: where that is full, the last half of it is read again as a new window. Throws
/// ValueError.
std::vector<std::int64_t> generate(Model& model, std::vector<std::int64_t> prompt, std::int64_t count,
                                   double temperature = 0.8, std::int64_t top_k = 0, std::uint64_t seed = 0);

// ---- The tokens that end a text: where a model writes one of them, it has said all.

/// The first of these that names some: `eos_token_id` of generation_config.json and of config.json in `folder`, where
/// that is a folder that has them, a number or a list; the special tokens <|endoftext|>, <|end_of_text|> and <|eot_id|>
/// of the text's tokenizer. Sorted; empty: none ends a text, as where tokens are characters. Throws FileError naming
/// the key where it is neither null nor tokens.
std::vector<std::int64_t> find_end_tokens(const std::string& folder, const TokenText& text);

}  // namespace thimble::models
