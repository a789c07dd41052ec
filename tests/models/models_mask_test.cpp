// Models over tokens with masks and windows: padding changes nothing, documents side by side are as alone, a window
// ends what a token sees, batches are cut with their masks, and bytes are predicted.

#include <cmath>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/bert/bert.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/llama/llama.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;

namespace {

constexpr std::int64_t vocabulary = 17;

ModelOptions tiny(std::int64_t layers = 2, std::int64_t sequence = 16) {
  ModelOptions options;
  options.layers = layers, options.width = 32, options.heads = 4, options.sequence = sequence;
  options.vocabulary = vocabulary, options.dropout = 0;
  return options;
}

Tensor ids_of(const std::vector<std::int64_t>& ids, std::int64_t samples = 1) {
  return from_host(ids, {samples, static_cast<std::int64_t>(ids.size()) / samples});
}

std::vector<std::int64_t> some_ids(std::int64_t count, std::int64_t first) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back((i * i + first) % vocabulary);
  return ids;
}

// Rows [begin, end) of the first sample's logits.
std::vector<double> rows(const Tensor& logits, std::int64_t begin, std::int64_t end) {
  return to_host<double>(contiguous(view::slice(view::slice(logits, 0, 0, 1), 1, begin, end)));
}

Tensor seen_before(std::int64_t samples, std::int64_t length, std::int64_t end) {
  const Tensor mask = full({samples, 1, 1, length}, 1, DType::boolean);
  fill(view::slice(mask, 3, end, length), 0);
  return mask;
}

}  // namespace

TEST_CASE("models mask: tokens of padding change nothing in bert", "[models][bert][quick]") {
  const Threads alone;
  const auto model = make_seeded<Bert>("bert-base", tiny());
  std::vector<std::int64_t> ids = some_ids(16, 1);
  const Tensor mask = seen_before(1, 16, 10);
  const std::vector<double> before = rows(model->forward(ids_of(ids), mask), 0, 10);
  ids[12] = 5;
  CHECK(rows(model->forward(ids_of(ids), mask), 0, 10) == before);
  CHECK(rows(model->forward(ids_of(ids)), 0, 10) != before);
  // The sample without its padding.
  ids.resize(10);
  CHECK(distance(before, rows(model->forward(ids_of(ids)), 0, 10)) < 1e-5);
}

TEST_CASE("models mask: a padded batch trains as its samples do alone", "[models][bert][quick]") {
  const Threads alone;
  const auto model = make_seeded<Bert>("bert-base", tiny());
  Batch batch = make_batch(*model, 2);
  batch.mask = seen_before(2, 16, 12);
  std::vector<std::int64_t> targets = to_host<std::int64_t>(batch.target);
  for (std::size_t i = 0; i < 32; ++i) {
    if (i % 16 >= 12) targets[i] = -100;
  }
  copy_into(batch.target, from_host(targets, {2, 16}));
  const std::vector<NamedValues> padded = run_pass(*model, batch);
  Batch shorter;
  shorter.input = contiguous(view::slice(batch.input, 1, 0, 12));
  shorter.target = contiguous(view::slice(batch.target, 1, 0, 12));
  const std::vector<NamedValues> whole = run_pass(*model, shorter);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    INFO(whole[i].name);
    if (whole[i].name.find("key.bias") != std::string::npos) continue;  // 0 but for rounding
    CHECK(distance(padded[i].values, whole[i].values) < 2e-5);
  }
  // The same bits where layers are computed again.
  model->recompute_blocks();
  CHECK(run_pass(*model, batch) == padded);
}

TEST_CASE("models mask: documents side by side are as each alone", "[models][llama][quick]") {
  const Threads alone;
  const auto model = make_seeded<Llama>("tiny-llama", tiny());
  const std::vector<std::int64_t> first = some_ids(6, 1), second = some_ids(10, 4);
  std::vector<std::int64_t> both = first;
  both.insert(both.end(), second.begin(), second.end());
  std::vector<std::int32_t> documents(16, 1);
  std::fill(documents.begin(), documents.begin() + 6, 0);
  const Tensor numbers = from_host(documents, {1, 16});
  const Tensor packed = model->forward(ids_of(both), numbers);
  CHECK(distance(rows(packed, 0, 6), rows(model->forward(ids_of(first)), 0, 6)) < 1e-5);
  CHECK(distance(rows(packed, 6, 16), rows(model->forward(ids_of(second)), 0, 10)) < 1e-5);
  CHECK(distance(rows(packed, 6, 16), rows(model->forward(ids_of(both)), 6, 16)) > 1e-3);
  // A mask goes with the samples into micro-batches.
  Batch batch = make_batch(*model, 2);
  batch.mask = from_host(
      [&] {
        std::vector<std::int32_t> list = documents;
        list.insert(list.end(), 16, 3);
        return list;
      }(),
      {2, 16});
  const double mean = run_pass(*model, batch)[0].values[0];
  double sum = 0;
  for (std::int64_t i = 0; i < 2; ++i) sum += run_pass(*model, micro_batch(batch, i, 2))[0].values[0];
  CHECK(sum / 2 == Approx(mean).epsilon(1e-6));
  batch.mask = seen_before(1, 16, 16);
  CHECK(micro_batch(batch, 1, 2).mask.shape() == Shape{1, 1, 1, 16});
}

TEST_CASE("models mask: a window ends what a token sees", "[models][gpt][llama][bert][quick]") {
  const Threads alone;
  for (const char* name : {"gpt2", "tiny-llama", "bert-base"}) {
    INFO(name);
    ModelOptions options = tiny(1);
    options.window = 4;
    const auto model = make_seeded(name, options);
    model->eval();
    std::vector<std::int64_t> ids = some_ids(16, 2);
    const Tensor before = model->forward(ids_of(ids));
    ids[7] = (ids[7] + 1) % vocabulary;
    const Tensor after = model->forward(ids_of(ids));
    for (std::int64_t t = 0; t < 16; ++t) {
      const bool is_near = model->is_masked() ? std::abs(t - 7) < 4 : t >= 7 && t < 11;
      INFO("token " << t);
      CHECK((rows(before, t, t + 1) != rows(after, t, t + 1)) == is_near);
    }
  }
}

TEST_CASE("models mask: a window is predicted and kept within, and refused where there is none", "[models][quick]") {
  ModelOptions options = tiny(2, 48);
  options.window = 9;
  for (const char* name : {"gpt2", "tiny-llama", "bert-base"}) check_dry_run(name, options, 2);
  const auto message = [](const char* name, const ModelOptions& sizes) {
    try {
      make_model(name, sizes, {dry(cpu)});
    } catch (const ValueError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  ModelOptions textbook = options, images, negative = options;
  textbook.build = Build::textbook, images.window = 9, negative.window = -2;
  CHECK(message("tiny-llama", textbook).find("window 9; the textbook build has none") != std::string::npos);
  CHECK(message("resnet18", images).find("`window` 9") != std::string::npos);
  CHECK(message("vit-b16", images).find("`window` 9") != std::string::npos);
  CHECK(message("gpt2", negative).find("window -2; expected at least 1") != std::string::npos);
}
