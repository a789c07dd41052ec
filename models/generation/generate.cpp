#include <thimble/models/generation/generate.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/nn/files/json_file.h>
#include <thimble/nn/tokens/tokenizer.h>

namespace thimble::models {

Decoder& require_decoder(Model& model, const char* operation) {
  auto* const decoder = dynamic_cast<Decoder*>(&model);
  if (decoder == nullptr) {
    throw ValueError(std::string(operation) +
                     ": the model does not give the tokens that come next; the GPT and Llama families do");
  }
  return *decoder;
}

Generation::Generation(Decoder& model, const nn::KvCacheSizes& sizes, const nn::SamplingOptions& sampling,
                       std::uint64_t seed)
    : model_(model),
      sampling_((sampling.check(), sampling)),
      seed_(seed),
      device_(model.parameters().front().tensor.device()),
      cache_(sizes, device_) {}

void Generation::read(std::span<const std::int64_t> tokens) {
  const std::int64_t batch = cache_.sizes().batch;
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count == 0 || count % batch != 0) {
    throw ValueError("generate: " + std::to_string(count) + " tokens for " + std::to_string(batch) +
                     " sequences; expected as many for each, at least one");
  }
  const NoGrad off;
  const Tensor ids = from_host(tokens, {batch, count / batch}, device_, memory::Category::input);
  const Tensor logits = to_dtype(model_.extend(ids, cache_), DType::f32);  // (B, 1, V)
  if (!device_.is_dry) logits_ = to_host<float>(logits);
  has_read_ = true;
}

void Generation::read_all(std::span<const std::int64_t> tokens) {
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < cache_.sizes().batch; ++b) all.insert(all.end(), tokens.begin(), tokens.end());
  read(all);
}

std::vector<std::int64_t> Generation::draw() {
  if (!has_read_) throw ValueError("generate: nothing has been read; a prompt of at least one token is needed");
  const std::int64_t index = drawn_++;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(cache_.sizes().batch));
  if (device_.is_dry) return tokens;
  const std::size_t vocabulary = logits_.size() / tokens.size();
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    tokens[b] = nn::draw_token(std::span(logits_).subspan(b * vocabulary, vocabulary), sampling_,
                               nn::token_uniform(seed_, index, static_cast<std::int64_t>(b)));
  }
  return tokens;
}

std::vector<std::int64_t> generate(Model& model, std::vector<std::int64_t> prompt, std::int64_t count,
                                   double temperature, std::int64_t top_k, std::uint64_t seed) {
  Decoder& decoder = require_decoder(model, "generate");
  if (prompt.empty()) throw ValueError("generate: the prompt has no tokens; at least one is needed");
  if (count < 0) throw ValueError("generate: count " + std::to_string(count) + "; expected at least 0");
  const bool was_training = model.is_training();
  model.eval();
  nn::KvCacheSizes sizes = decoder.cache_sizes();
  sizes.batch = 1, sizes.context = model.options().sequence;
  Generation generation(decoder, sizes, {temperature, top_k, 1}, seed);
  std::vector<std::int64_t> tokens = std::move(prompt);
  const auto last = [&](std::int64_t most) {
    return std::span(tokens).last(std::min(tokens.size(), static_cast<std::size_t>(most)));
  };
  for (std::int64_t i = 0; i < count; ++i) {
    if (i == 0) {
      generation.read(last(sizes.context));
    } else if (generation.cache().length() < sizes.context) {
      generation.read(last(1));
    } else {
      generation.clear();
      generation.read(last(std::max<std::int64_t>(1, sizes.context / 2)));
    }
    tokens.push_back(generation.draw().front());
  }
  model.train(was_training);
  return tokens;
}

namespace {

constexpr std::array<std::string_view, 3> special_tokens = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>"};

// `eos_token_id` of a file: null, a token or a list of tokens.
std::vector<std::int64_t> read(const std::string& path) {
  const nn::JsonKeys keys(path);
  return keys.has("eos_token_id") ? keys.sizes("eos_token_id", 0) : std::vector<std::int64_t>();
}

}  // namespace

std::vector<std::int64_t> find_end_tokens(const std::string& folder, const TokenText& text) {
  std::vector<std::int64_t> tokens;
  for (const char* const name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code error;
    if (tokens.empty() && !folder.empty() && std::filesystem::is_regular_file(path, error)) {
      tokens = read(path.string());
    }
  }
  if (tokens.empty() && text.tokenizer()) {
    for (const data::AddedToken& added : text.tokenizer()->parts().added) {
      const auto& ends = special_tokens;
      if (added.is_special && std::find(ends.begin(), ends.end(), added.content) != ends.end()) {
        tokens.push_back(added.id);
      }
    }
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace thimble::models
