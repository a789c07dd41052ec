// The papers' values for weights before the first step, and for a model's inputs and outputs.

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/bert/bert.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/shared_conv.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;

namespace {

struct Moments {
  double mean = 0, deviation = 0, count = 0;
};

Moments moments_of(const Tensor& t) {
  const std::vector<double> values = to_host<double>(t);
  Moments m;
  m.count = static_cast<double>(values.size());
  for (const double v : values) m.mean += v / m.count;
  for (const double v : values) m.deviation += (v - m.mean) * (v - m.mean) / m.count;
  m.deviation = std::sqrt(m.deviation);
  return m;
}

// Checks that values come from a normal of mean 0 and this deviation, within five standard errors.
void check_normal(const Tensor& t, double deviation) {
  const Moments m = moments_of(t);
  INFO("mean " << m.mean << ", deviation " << m.deviation << " of " << m.count << ", expected " << deviation);
  CHECK(std::abs(m.mean) < 5 * deviation / std::sqrt(m.count));
  CHECK(std::abs(m.deviation - deviation) < 5 * deviation / std::sqrt(2 * m.count));
}

void check_constant(const Tensor& t, double value) {
  for (const double v : to_host<double>(t)) CHECK(v == value);
}

ModelOptions sizes_of(std::int64_t layers) {
  ModelOptions options;
  options.layers = layers, options.width = 64, options.heads = 4, options.sequence = 16, options.vocabulary = 101;
  options.dropout = 0;
  return options;
}

Tensor parameter(Model& model, const std::string& name) {
  for (const auto& p : model.parameters()) {
    if (p.name == name) return p.tensor;
  }
  FAIL("no parameter " << name);
  return {};
}

std::vector<double> output_for(Model& model, std::int64_t id) {
  const NoGrad off;
  model.eval();
  return to_host<double>(model.forward(full({1, 3}, static_cast<double>(id), DType::i64)));
}

}  // namespace

TEST_CASE("initial values: GPT-2's deviation is 0.02, of projections onto the residual stream 0.02 / sqrt(2 L)",
          "[models][gpt]") {
  for (const std::int64_t layers : {2, 8}) {  // Radford et al. 2019, section 2.3
    const auto model = make_seeded("gpt2", sizes_of(layers));
    for (const auto& p : model->parameters()) {
      const auto& [name, tensor] = std::tie(p.name, p.tensor);
      INFO(layers << " layers, " << name);
      if (name.ends_with("c_proj.weight")) {
        check_normal(tensor, 0.02 / std::sqrt(2.0 * static_cast<double>(layers)));
      } else if (name.ends_with(".bias")) {
        check_constant(tensor, 0);
      } else if (name.find("ln_") != std::string::npos) {
        check_constant(tensor, 1);
      } else {
        check_normal(tensor, 0.02);
      }
    }
  }
}

TEST_CASE("initial values: BERT's deviation is 0.02", "[models][bert]") {
  const auto model = make_seeded("bert-base", sizes_of(2));
  for (const auto& p : model->parameters()) {
    const auto& [name, tensor] = std::tie(p.name, p.tensor);
    INFO(name);
    if (name.ends_with("bias")) {
      check_constant(tensor, 0);
    } else if (name.find("LayerNorm") != std::string::npos) {
      check_constant(tensor, 1);
    } else {
      check_normal(tensor, 0.02);
    }
  }
}

TEST_CASE("initial values: a linear layer's are uniform within 1 / sqrt(inputs)", "[models]") {
  for (const bool weight_is_in_out : {false, true}) {
    nn::LinearOptions options;
    options.weight_is_in_out = weight_is_in_out;
    const nn::Linear layer(64, 400, {}, options);
    for (const Tensor& t : std::vector<Tensor>{layer.weight, layer.bias}) {
      const Moments m = moments_of(t);
      const std::vector<double> values = to_host<double>(t);
      INFO(m.count << " values, mean " << m.mean << ", deviation " << m.deviation);
      const auto [least, most] = std::minmax_element(values.begin(), values.end());
      CHECK(*least >= -0.125);
      CHECK(*most <= 0.125);
      CHECK(std::abs(m.mean) < 5 * 0.125 / std::sqrt(3 * m.count));
      CHECK(m.deviation == Approx(0.125 / std::sqrt(3.0)).epsilon(0.1));
    }
  }
}

TEST_CASE("initial values: a deviation or a bound that is no number is refused by name", "[models]") {
  const double nan = std::nan("");
  CHECK_THROWS_WITH(nn::Linear(4, 4, {}, {.deviation = nan}), "linear: options.deviation: expected a number, got nan");
  CHECK_THROWS_WITH(nn::Linear(4, 4, {}, {.bound = nan}), "linear: options.bound: expected a number, got nan");
  CHECK_THROWS_WITH(nn::Linear(0, 4), "linear: 0 inputs, expected at least 1");
  CHECK_THROWS_WITH(nn::Conv2d(2, 3, 0),
                    Catch::StartsWith("conv2d: 2 input channels, 3 output channels, a kernel of 0;"));
  CHECK_THROWS_WITH(nn::Conv1d(0, 3, 1), Catch::StartsWith("conv1d: 0 input channels"));
  CHECK_THROWS_WITH(nn::ConvTranspose2d(2, 0, 1), Catch::StartsWith("conv_transpose2d: 2 input channels, 0 output"));
  for (const double number : {nan, -1.0, HUGE_VAL}) {
    CHECK_THROWS_WITH(nn::LayerNorm(4, {}, number), Catch::StartsWith("layer_norm: epsilon "));
    CHECK_THROWS_WITH(nn::RmsNorm(4, {}, number), Catch::StartsWith("rms_norm: epsilon "));
    CHECK_THROWS_WITH(nn::GroupNorm(2, 4, {}, number), Catch::StartsWith("group_norm: epsilon "));
    CHECK_THROWS_WITH(nn::InstanceNorm2d(4, false, {}, number), Catch::StartsWith("instance_norm: epsilon "));
    CHECK_THROWS_WITH(nn::BatchNorm2d(4, {}, 0.1, number), Catch::StartsWith("batch_norm: epsilon "));
    CHECK_THROWS_WITH(nn::BatchNorm2d(4, {}, number), Catch::StartsWith("batch_norm: momentum "));
  }
  for (const double deviation : {nan, -1.0}) CHECK_THROWS_AS(nn::Embedding(4, 4, {}, deviation), ValueError);
  CHECK_THROWS_WITH(nn::GroupNorm(3, 4), Catch::StartsWith("group_norm: 3 groups do not divide"));
  CHECK_THROWS_WITH(nn::ConvTranspose2d(2, 2, 1, {}, 1), Catch::Contains("output padding 1"));
  for (const Conv2dOptions& o : {Conv2dOptions{.stride = 0}, Conv2dOptions{.padding = -1}, Conv2dOptions{.dilation = 0},
                                 Conv2dOptions{.groups = 0}, Conv2dOptions{.padding = std::int64_t{1} << 62}}) {
    CHECK_THROWS_WITH(nn::Conv2d(2, 2, 1, o), Catch::StartsWith("conv2d: stride "));
    CHECK_THROWS_WITH(nn::Conv1d(2, 2, 1, o), Catch::StartsWith("conv1d: stride "));
    CHECK_THROWS_WITH(nn::ConvTranspose2d(2, 2, 1, o), Catch::StartsWith("conv_transpose2d: stride "));
    CHECK_THROWS_WITH(nn::SharedConv2d(2, 2, 1, 1, o), Catch::StartsWith("shared_conv2d: stride "));
  }
}

TEST_CASE("initial values: BERT's single segment is the first", "[models][bert]") {
  const auto model = make_seeded("bert-base", sizes_of(1));
  const Tensor types = parameter(*model, "bert.embeddings.token_type_embeddings.weight");  // (2, C)
  const std::vector<double> before = output_for(*model, 5);
  fill_normal(view::slice(types, 0, 1, 2), 0, 3);
  CHECK(output_for(*model, 5) == before);
  fill_normal(view::slice(types, 0, 0, 1), 0, 3);
  CHECK(output_for(*model, 5) != before);
}

TEST_CASE("initial values: a token's place counts, not the token alone", "[models]") {
  for (const char* const name : {"gpt2", "bert-base"}) {
    INFO(name);
    const auto model = make_seeded(name, sizes_of(1));
    const std::vector<double> scores = output_for(*model, 5);  // (1, 3, V)
    const auto row = [&](std::ptrdiff_t t) {
      return std::vector<double>(scores.begin() + 101 * t, scores.begin() + 101 * (t + 1));
    };
    CHECK(row(0) != row(1));
    CHECK(row(1) != row(2));
  }
}

TEST_CASE("generate: tokens are drawn from the softmax of scores over the temperature", "[models][gpt]") {
  const auto model = make_seeded<Gpt>("gpt2", [] {
    ModelOptions options = sizes_of(1);
    options.vocabulary = 7;
    return options;
  }());
  RandomGenerator generator(2);
  const GeneratorScope scope(generator);
  fill_normal(parameter(*model, "wte.weight"), 0, 0.2);  // scores that differ
  std::vector<double> scores = output_for(*model, 3);    // (1, 3, 7)
  scores.erase(scores.begin(), scores.end() - 7);        // the last position's
  const auto most = *std::max_element(scores.begin(), scores.end());
  CHECK(most - *std::min_element(scores.begin(), scores.end()) > 1);
  constexpr int draws = 2000;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    for (const std::int64_t top : {0, 3}) {
      INFO("temperature " << temperature << ", top " << top);
      std::vector<double> sorted = scores;
      std::sort(sorted.rbegin(), sorted.rend());
      const double least = top == 0 ? sorted.back() : sorted[static_cast<std::size_t>(top - 1)];
      double sum = 0;
      for (const double s : scores) sum += s >= least ? std::exp((s - most) / temperature) : 0;
      std::vector<double> counts(scores.size());
      for (std::uint64_t seed = 0; seed < draws; ++seed) {
        counts[static_cast<std::size_t>(generate(*model, {3, 3, 3}, 1, temperature, top, seed).back())] += 1;
      }
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const double p = scores[i] >= least ? std::exp((scores[i] - most) / temperature) / sum : 0;
        INFO("token " << i << ": " << counts[i] << " of " << draws << ", probability " << p);
        CHECK(std::abs(counts[i] - draws * p) <= 5 * std::sqrt(draws * p * (1 - p)) + (p > 0 ? 1 : 0));
      }
    }
  }
}
