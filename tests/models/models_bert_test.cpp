// BERT: counts, names, attention, the two builds, training on hidden tokens, and its memory against theory and between
// dry and real runs, as integers.

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

TEST_CASE("models bert: parameter counts are the published ones", "[models][bert][quick]") {
  const struct {
    const char* name;
    std::int64_t parameters;
    std::size_t tensors;
  } rows[] = {{"bert-base", 109514298, 5 + 12 * 16 + 5}, {"bert-large", 335174458, 5 + 24 * 16 + 5}};
  for (const auto& row : rows) {
    INFO(row.name);
    const auto model = make_bert(row.name, {}, {dry(cpu), DType::f32});
    REQUIRE(model);
    CHECK(model->parameter_count() == row.parameters);
    CHECK(model->parameters().size() == row.tensors);
    CHECK(model->buffers().empty());
    CHECK(model->is_masked());
    CHECK(make_theory(row.name).state(2).parameter_elements == row.parameters);
    CHECK(make_theory(row.name).state(2).total() == row.parameters * (4 + 4 + 8));
  }
  CHECK(make_bert("bert", {}, {}) == nullptr);
  CHECK(bert_mask_token(30522) == 103);
  CHECK(bert_mask_token(66) == 65);
}

TEST_CASE("models bert: names and shapes are those of the public files", "[models][bert][quick]") {
  const auto model = make_bert("bert-base", {}, {dry(cpu), DType::f32});
  check_file_shapes(*model, {{"bert.embeddings.word_embeddings.weight", "(30522, 768)"},
                             {"bert.embeddings.position_embeddings.weight", "(512, 768)"},
                             {"bert.embeddings.token_type_embeddings.weight", "(2, 768)"},
                             {"bert.embeddings.LayerNorm.weight", "(768)"},
                             {"bert.encoder.layer.0.attention.self.query.weight", "(768, 768)"},
                             {"bert.encoder.layer.3.attention.self.key.bias", "(768)"},
                             {"bert.encoder.layer.11.attention.self.value.weight", "(768, 768)"},
                             {"bert.encoder.layer.0.attention.output.dense.weight", "(768, 768)"},
                             {"bert.encoder.layer.0.attention.output.LayerNorm.bias", "(768)"},
                             {"bert.encoder.layer.0.intermediate.dense.weight", "(3072, 768)"},
                             {"bert.encoder.layer.0.output.dense.weight", "(768, 3072)"},
                             {"bert.encoder.layer.0.output.LayerNorm.weight", "(768)"},
                             {"cls.predictions.transform.dense.weight", "(768, 768)"},
                             {"cls.predictions.transform.LayerNorm.weight", "(768)"},
                             {"cls.predictions.bias", "(30522)"}});
}

TEST_CASE("models bert: fused and textbook builds agree up to rounding", "[models][bert][quick]") {
  // A key's bias has no gradient, since softmax ignores equal shifts of all keys; only rounding remains.
  check_builds_agree<Bert>("bert-base", tiny_text_model, as_made, "key.bias");
}

TEST_CASE("models bert: a token sees all others of its own sample", "[models][bert][quick]") {
  const Threads alone;
  const auto model = make_seeded("bert-base", tiny_text_model(Build::fused, 0.1));
  model->eval();
  std::vector<std::int64_t> ids(2 * 16, 3);
  const auto logits = [&] { return to_host<double>(model->forward(from_host(ids, {2, 16}))); };  // (2, 16, 17)
  const auto before = logits();
  ids[9] = 8;
  const auto after = logits();
  for (std::int64_t t = 0; t < 16; ++t) {
    const auto row = [&](const std::vector<double>& from) {
      return std::vector<double>(from.begin() + t * 17, from.begin() + (t + 1) * 17);
    };
    CHECK(row(before) != row(after));
  }
  CHECK(std::equal(before.begin() + 16 * 17, before.end(), after.begin() + 16 * 17));
  CHECK_THROWS_AS(model->forward(zeros({1, 17}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(model->forward(zeros({17}, DType::i64)), ShapeError);
}

TEST_CASE("models bert: only hidden tokens are learned", "[models][bert][quick]") {
  const Threads alone;
  const auto model = make_seeded("bert-base", tiny_text_model(Build::fused));
  Batch batch = make_batch(*model, 2);
  const auto pass = run_pass(*model, batch);
  // The mean over the hidden tokens, by hand.
  const auto logits = to_host<double>(model->forward(batch.input));
  const auto targets = to_host<std::int64_t>(batch.target);
  double sum = 0;
  int count = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    double total = 0;
    for (std::size_t v = 0; v < 17; ++v) total += std::exp(logits[i * 17 + v]);
    sum += std::log(total) - logits[i * 17 + static_cast<std::size_t>(targets[i])];
    ++count;
  }
  CHECK(count == 11);
  CHECK(pass[0].values[0] == Approx(sum / count).epsilon(1e-5));
}

TEST_CASE("models bert: the loss starts at log V and falls", "[models][bert][quick]") {
  const Threads alone;
  for (const Build build : {Build::fused, Build::textbook}) {
    const auto model = make_seeded("bert-base", tiny_text_model(build, 0.1));
    optim::AdamOptions options;
    options.rate = 3e-3, options.weight_decay = 0.1, options.smallest_decayed_rank = 2;
    optim::Adam optimizer(model->trainable(), options);
    RandomGenerator generator(2);
    const GeneratorScope scope(generator);
    const auto losses = train_on(*model, optimizer, make_batch(*model, 4), 30);
    CAPTURE(losses);
    CHECK(losses.front() == Approx(std::log(17.0)).margin(0.15));
    CHECK(losses.back() < 0.7 * losses.front());
  }
}

TEST_CASE("models bert: theory is the ledger, to the byte", "[models][bert][theory][quick]") {
  check_theories<Bert>("bert-base", {{2, 16, 32, 4, 2, 17}, {1, 9, 12, 3, 3, 5}, {3, 512, 768, 12, 2, 30522}});
  // The literature's figure and a single named remainder.
  ModelOptions textbook;
  textbook.build = Build::textbook;
  std::int64_t sum = 0;
  const Theory large = make_theory("bert-large", textbook, DType::f16);
  for (const Term& term : large.layers[0].kept) {
    if (term.name != "norm statistics") sum += term.bytes(4);
  }
  CHECK(sum == transformer_layer_bytes(512, 4, 1024, 16, 2, true));
}

TEST_CASE("models bert: dry and real steps are the same events and the same peak", "[models][bert][quick]") {
  for (const Build build : {Build::fused, Build::textbook}) check_dry_run("bert-base", tiny_text_model(build, 0.1), 3);
}

TEST_CASE("models bert: bert-large is planned at full size within a second", "[models][bert][quick]") {
  check_planned_within_a_second("bert-large", 8, 2, make_theory("bert-large"));
}

TEST_CASE("models bert: weights are saved and loaded byte for byte", "[models][bert][quick]") {
  const Threads alone;
  check_weights_round_trip("bert-base", tiny_text_model(Build::fused));
}

TEST_CASE("models bert: what does not fit is refused by name", "[models][bert][quick]") {
  CHECK_THROWS_AS(bert_options("bert"), ValueError);
  CHECK_THROWS_AS(bert_options("bert-base", options_with(&ModelOptions::heads, 5)), ValueError);
  CHECK_THROWS_AS(bert_options("bert-base", options_with(&ModelOptions::dropout, 1.0)), ValueError);
  CHECK_THROWS_AS(bert_options("bert-base", options_with(&ModelOptions::image, 32)), ValueError);
  CHECK_THROWS_AS(make_theory("bert-base").state(-1), ValueError);
  CHECK_THROWS_AS(make_bert("bert-base", {}, {dry(cpu)})->empty_batch(0, dry(cpu)), ValueError);
}

// ---- Models over tokens with masks and windows: padding changes nothing, packed documents do not see each other, a
// window limits attention, batches are cut with their masks, and bytes are predicted.

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
  // Recomputed layers give equal bits.
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
  // Micro-batches split the mask with the samples.
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
