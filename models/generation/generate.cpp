#include <thimble/models/generation/generate.h>

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>

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
  const Tensor ids = from_host(tokens, {batch, count / batch}, device_, Category::input);
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

}  // namespace thimble::models
