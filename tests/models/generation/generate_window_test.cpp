// Text past a model's window: every token is drawn from a plain forward over the stretch that the rule names.

#include <algorithm>
#include <string>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/models/generation/generate.h>
#include <thimble/nn/generate/sampling.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;

namespace {

// The rule: the newest `window` tokens of the prompt; then a token more each time, until the window is full; then the
// newest half of a window, and so on. Without a cache.
std::vector<std::int64_t> written_by_hand(models::Model& model, std::vector<std::int64_t> tokens, std::int64_t count,
                                          const nn::SamplingOptions& sampling, std::uint64_t seed) {
  const NoGrad off;
  const auto window = static_cast<std::size_t>(model.options().sequence);
  const auto vocabulary = static_cast<std::size_t>(model.options().vocabulary);
  std::size_t length = std::min(tokens.size(), window);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<std::int64_t> seen(tokens.end() - static_cast<std::ptrdiff_t>(length), tokens.end());
    const auto logits = to_host<float>(model.forward(from_host(seen, {1, static_cast<std::int64_t>(length)})));
    const auto last = std::span(logits).last(vocabulary);
    tokens.push_back(nn::draw_token(last, sampling, nn::token_uniform(seed, i, 0)));
    length = length < window ? length + 1 : std::max<std::size_t>(1, window / 2);
  }
  return tokens;
}

}  // namespace

TEST_CASE("generate: three windows and more, by plain forwards", "[models][generating]") {
  struct Row {
    const char* model;
    std::int64_t window, prompt;
    nn::SamplingOptions sampling;
  };
  for (const Row& row : {Row{"char-gpt", 8, 2, {1, 0, 1}},
                         {"char-gpt", 7, 1, {0, 0, 1}},
                         {"char-gpt", 7, 20, {1, 3, 1}},
                         {"char-gpt", 1, 1, {1, 0, 1}},
                         {"char-gpt", 8, 8, {0.5, 0, 1}},
                         {"tiny-llama", 9, 4, {1, 0, 1}}}) {
    INFO(row.model << ", a window of " << row.window << ", a prompt of " << row.prompt << ", temperature "
                   << row.sampling.temperature);
    models::ModelOptions sizes;
    sizes.layers = 2, sizes.heads = 2, sizes.width = 32, sizes.vocabulary = 11, sizes.sequence = row.window;
    if (row.model == std::string("char-gpt")) sizes.dropout = 0.3;  // which writing is without
    const auto model = testing::make_seeded<models::Model>(row.model, sizes, {});
    // Larger than they are drawn: logits then depend on every token that is seen.
    for (const auto& p : model->parameters()) {
      auto values = to_host<float>(p.tensor);
      for (float& value : values) value *= p.tensor.rank() >= 2 ? 12.0F : 1.0F;
      copy_into(p.tensor, from_host(values, p.tensor.shape()));
    }
    std::vector<std::int64_t> prompt;
    for (std::int64_t i = 0; i < row.prompt; ++i) prompt.push_back(i * i % 11);
    const std::int64_t count = 3 * row.window + 5;
    const auto told = models::generate(*model, prompt, count, row.sampling.temperature, row.sampling.top_k, 42);
    CHECK(model->is_training());
    model->eval();
    CHECK(told == written_by_hand(*model, prompt, count, row.sampling, 42));
  }
}
