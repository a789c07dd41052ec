// GPT: counts, names, training, the two builds, and its memory against theory and between dry and real runs, as
// integers.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/models/transformer/theory.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/lora/lora.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;

namespace {

std::unique_ptr<Gpt> made(const ModelOptions& options, std::uint64_t seed = 1) {
  return make_seeded<Gpt>("char-gpt", options, {}, seed);
}

optim::AdamOptions adam_options() {
  optim::AdamOptions options;
  options.rate = 3e-3, options.weight_decay = 0.1, options.smallest_decayed_rank = 2;
  return options;
}

// One step on this step's batch.
double train_step(Gpt& model, optim::Optimizer& optimizer, RandomGenerator& generator, std::uint64_t step) {
  const GeneratorScope scope(generator);
  return train_on(model, optimizer, make_batch(model, 4, step), 1).front();
}

}  // namespace

TEST_CASE("models gpt: parameter counts are the published ones", "[models][gpt]") {
  const struct {
    const char* name;
    std::int64_t parameters;
    std::size_t tensors;
  } rows[] = {{"gpt2", 124439808, 148},         {"gpt2-medium", 354823168, 292},  {"gpt2-large", 774030080, 436},
              {"gpt2-xl", 1557611200, 580},     {"char-gpt", 10770816, 76},       {"gpt-22b", 22074273792, 580},
              {"gpt-175b", 174615846912, 1156}, {"gpt-530b", 529600819200, 1264}, {"gpt-1t", 1008038758400, 1540}};
  for (const auto& row : rows) {
    INFO(row.name);
    const auto model = make_gpt(row.name, {}, {dry(cpu), DType::f32});
    REQUIRE(model);
    CHECK(model->parameter_count() == row.parameters);
    CHECK(model->parameters().size() == row.tensors);
    CHECK(model->buffers().empty());
    CHECK(make_theory(row.name).state(2).parameter_elements == row.parameters);
    CHECK(make_theory(row.name).state(2).total() == row.parameters * (4 + 4 + 8));
  }
  CHECK(make_gpt("gpt3", {}, {}) == nullptr);
  CHECK_THROWS_AS(gpt_options("gpt3"), ValueError);
  CHECK_THROWS_AS(make_gpt("gpt2", options_with(&ModelOptions::heads, 5), {dry(cpu), DType::f32}), ValueError);
  CHECK_THROWS_AS(gpt_options("gpt2", options_with(&ModelOptions::dropout, 1.0)), ValueError);
}

TEST_CASE("models gpt: names and shapes are those of the public files", "[models][gpt]") {
  const auto model = make_gpt("gpt2", {}, {dry(cpu), DType::f32});
  std::vector<std::pair<std::string, Shape>> expected{{"wte.weight", {50257, 768}}, {"wpe.weight", {1024, 768}}};
  for (int i = 0; i < 12; ++i) {
    const std::string h = "h." + std::to_string(i) + ".";
    const std::vector<std::pair<std::string, Shape>> layer{{"ln_1.weight", {768}},
                                                           {"ln_1.bias", {768}},
                                                           {"attn.c_attn.weight", {768, 2304}},
                                                           {"attn.c_attn.bias", {2304}},
                                                           {"attn.c_proj.weight", {768, 768}},
                                                           {"attn.c_proj.bias", {768}},
                                                           {"ln_2.weight", {768}},
                                                           {"ln_2.bias", {768}},
                                                           {"mlp.c_fc.weight", {768, 3072}},
                                                           {"mlp.c_fc.bias", {3072}},
                                                           {"mlp.c_proj.weight", {3072, 768}},
                                                           {"mlp.c_proj.bias", {768}}};
    for (const auto& [name, shape] : layer) expected.emplace_back(h + name, shape);
  }
  expected.emplace_back("ln_f.weight", Shape{768});
  expected.emplace_back("ln_f.bias", Shape{768});
  const auto parameters = model->parameters();
  REQUIRE(parameters.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].first);
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const nn::NamedTensor& p) { return p.name == expected[i].first; });
    REQUIRE(found != parameters.end());
    CHECK(found->tensor.shape() == expected[i].second);
    CHECK(found->layout == nn::FileLayout::same);
  }
}

TEST_CASE("models gpt: the loss starts at log V and falls", "[models][gpt]") {
  const Threads alone;
  for (const Build build : {Build::fused, Build::textbook}) {
    for (const double dropout : {0.0, 0.1}) {
      const auto model = made(tiny_text_model(build, dropout));
      optim::Adam optimizer(model->trainable(), adam_options());
      RandomGenerator generator(2);
      const GeneratorScope scope(generator);
      const auto losses = train_on(*model, optimizer, make_batch(*model, 4, 0), 20);
      CAPTURE(losses);
      CHECK(losses.front() == Approx(std::log(17.0)).margin(0.1));
      CHECK(losses.back() < 0.8 * losses.front());
    }
  }
}

TEST_CASE("models gpt: a token sees what is before it alone", "[models][gpt]") {
  const Threads alone;
  for (const Build build : {Build::fused, Build::textbook}) {
    const auto model = made(tiny_text_model(build));
    model->eval();
    std::vector<std::int64_t> ids(16, 3);
    const auto logits = [&] { return to_host<double>(model->forward(from_host(ids, {1, 16}))); };  // (1, 16, 17)
    const auto before = logits();
    ids[9] = 8;
    const auto after = logits();
    CHECK(std::equal(before.begin(), before.begin() + 9 * 17, after.begin()));
    CHECK(!std::equal(before.begin() + 9 * 17, before.begin() + 10 * 17, after.begin() + 9 * 17));
    CHECK(!std::equal(before.begin() + 15 * 17, before.end(), after.begin() + 15 * 17));
  }
}

TEST_CASE("models gpt: fused and textbook builds agree up to rounding", "[models][gpt]") {
  check_builds_agree<Gpt>("char-gpt", tiny_text_model);
}

TEST_CASE("models gpt: theory is the ledger, to the byte", "[models][gpt][theory]") {
  check_theories<Gpt>("gpt2", {{2, 16, 32, 4, 2, 17},
                               {1, 8, 12, 3, 3, 5},
                               {3, 33, 40, 5, 2, 101},
                               {5, 1, 16, 2, 2, 3},
                               {4, 1024, 768, 12, 2, 50257},
                               {2, 128, 64, 1, 4, 64}});
}

TEST_CASE("models gpt: the textbook's terms are the literature's and one named remainder", "[models][gpt][theory]") {
  for (const double dropout : {0.0, 0.1}) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      ModelOptions options;
      options.dropout = dropout, options.build = Build::textbook;
      std::int64_t sum = 0, remainder = 0;
      const Theory theory = make_theory("gpt2", options, dtype);
      for (const Term& term : theory.layers[0].kept) {
        (term.name == "norm statistics" ? remainder : sum) += term.bytes(4);
      }
      const auto e = static_cast<std::int64_t>(size_of(dtype));
      CHECK(sum == transformer_layer_bytes(1024, 4, 768, 12, e, dropout > 0));
      CHECK(remainder == 4 * 1024 * 4 * 4);
    }
  }
  // Korthikanti et al. 2022, equation 1, at 16 bit: sbh (34 + 5 a s / h).
  CHECK(transformer_layer_bytes(2048, 4, 12288, 96, 2, true) == 2048LL * 4 * (34 * 12288 + 5 * 96 * 2048LL));
  // The fused build keeps less.
  ModelOptions fused, textbook;
  textbook.build = Build::textbook;
  const auto bytes = [](const ModelOptions& options) {
    return make_theory("gpt2", options).kept_bytes(memory::Category::activation, 4);
  };
  CHECK(bytes(fused) * 2 < bytes(textbook));
}

TEST_CASE("models gpt: dry and real steps are the same events and the same peak", "[models][gpt]") {
  for (const Build build : {Build::fused, Build::textbook}) {
    for (const bool is_recomputed : {false, true}) {
      check_dry_run<Gpt>("char-gpt", tiny_text_model(build, 0.1), 3,
                         [&](Gpt& model) { model.recompute_blocks(is_recomputed); });
    }
  }
}

TEST_CASE("models gpt: weights and checkpoints", "[models][gpt]") {
  const Threads alone;
  const files_test::TemporaryFolder folder;
  const auto a = made(tiny_text_model(Build::fused, 0.1));
  const auto b = made(tiny_text_model(Build::textbook, 0.1), 2);
  nn::save_weights(*a, folder / "w");
  nn::load_weights(*b, folder / "w");
  nn::save_weights(*b, folder / "v");
  CHECK(files_test::read_text_file(folder / "w") == files_test::read_text_file(folder / "v"));
  CHECK(SafetensorsReader(folder / "w").entry("h.1.attn.c_attn.weight").shape == std::vector<std::int64_t>{32, 96});

  std::vector<double> straight, resumed;
  RandomGenerator generator(4), half(4), other(5);
  optim::Adam optimizer(a->trainable(), adam_options());
  const auto c = made(tiny_text_model(Build::fused, 0.1)), d = made(tiny_text_model(Build::fused, 0.1), 9);
  optim::Adam first(c->trainable(), adam_options()), second(d->trainable(), adam_options());
  for (std::uint64_t i = 0; i < 6; ++i) straight.push_back(train_step(*a, optimizer, generator, i));
  for (std::uint64_t i = 0; i < 3; ++i) resumed.push_back(train_step(*c, first, half, i));
  nn::save_checkpoint(folder / "c", *c, first, half, {{"characters", "abc"}});
  CHECK(nn::load_checkpoint(folder / "c", *d, second, other).at("characters") == "abc");
  for (std::uint64_t i = 3; i < 6; ++i) resumed.push_back(train_step(*d, second, other, i));
  CHECK(straight == resumed);
}

TEST_CASE("models gpt: generation continues a prompt, the same for the same seed", "[models][gpt]") {
  const Threads alone;
  const auto model = made(tiny_text_model(Build::fused, 0.1));
  const auto tokens = generate(*model, {1, 2}, 20, 0.8, 0, 7);  // beyond the sequence of 16
  REQUIRE(tokens.size() == 22);
  CHECK((tokens[0] == 1 && tokens[1] == 2));
  for (const std::int64_t t : tokens) CHECK((t >= 0 && t < 17));
  CHECK(generate(*model, {1, 2}, 20, 0.8, 0, 7) == tokens);
  CHECK(generate(*model, {1, 2}, 20, 0.8, 0, 8) != tokens);
  CHECK(generate(*model, {1, 2}, 20, 0.8, 1, 7) == generate(*model, {1, 2}, 20, 0, 0, 8));
  CHECK(model->is_training());
  CHECK_THROWS_AS(generate(*model, {}, 1), ValueError);
  CHECK_THROWS_AS(generate(*model, {1}, 1, -1), ValueError);
  CHECK_THROWS_AS(model->forward(zeros({1, 17}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(model->forward(zeros({17}, DType::i64)), ShapeError);
}

// ---- Transformers with tiled feed-forward layers: bits compared with full layers, memory against theory and between
// dry and real runs, and refusals.

using namespace thimble::models;
using namespace thimble::testing;

namespace {

constexpr const char* names[] = {"char-gpt", "bert-base", "vit-b16", "tiny-llama", "qwen2.5-0.5b"};

ModelOptions small(const std::string& name, FeedForward feed_forward = FeedForward::tiled, double dropout = 0) {
  ModelOptions options;
  options.layers = 2, options.width = 32, options.heads = 4;
  if (name == "vit-b16") {
    options.image = 48;
  } else {
    options.sequence = 16, options.vocabulary = 17;
  }
  if (name == "tiny-llama" || name.starts_with("qwen")) options.key_heads = 2, options.hidden = 48;
  options.feed_forward = feed_forward, options.dropout = dropout;
  return options;
}

}  // namespace

TEST_CASE("models: feed-forward layers in tiles have the bits of full ones where one tile holds all rows",
          "[models][feed_forward]") {
  const Threads alone;
  for (const char* name : names) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(name << " " << to_string(dtype));
      const double dropout = name == std::string("char-gpt") || name == std::string("bert-base") ? 0.2 : 0.0;
      const auto full = make_seeded(name, small(name, FeedForward::full, dropout), {cpu, dtype});
      const auto tiled = make_seeded(name, small(name, FeedForward::tiled, dropout), {cpu, dtype});
      const Batch batch = make_batch(*full, 3);
      CHECK(run_pass(*tiled, batch) == run_pass(*full, batch));
    }
  }
}

TEST_CASE("models: what feed-forward layers in tiles keep is the theory's", "[models][feed_forward][theory]") {
  for (const char* name : names) {
    for (const char* policy : {"", "O1", "O2", "bf16-kahan"}) {
      INFO(name << " " << policy);
      const nn::Precision precision = *policy != 0 ? nn::precision(policy) : nn::Precision{};
      const Theory tiled = make_theory(name, small(name), precision);
      const Theory full = make_theory(name, small(name, FeedForward::full), precision);
      CHECK(tiled.kept_bytes(memory::Category::activation, 3) < full.kept_bytes(memory::Category::activation, 3));
      CHECK(tiled.state(2).total() == full.state(2).total());
      check_theory<Model>(tiled, name, small(name), 3);
    }
  }
}

TEST_CASE("models: dry runs of feed-forward layers in tiles are the real ones", "[models][feed_forward]") {
  for (const char* name : names) {
    INFO(name);
    check_dry_run(name, small(name), 3);
  }
}

TEST_CASE("models: what feed-forward layers in tiles refuse", "[models][feed_forward]") {
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
      return "nothing was thrown";
    } catch (const ValueError& error) {
      return error.what();
    }
  };
  ModelOptions textbook = small("tiny-llama");
  textbook.build = Build::textbook;
  CHECK(message([&] { make_model("tiny-llama", textbook); }).find("the textbook build has only full feed-forward") !=
        std::string::npos);
  CHECK(message([&] {
          make_model("vit-b16", small("vit-b16", FeedForward::tiled, 0.1));
        }).find("feed-forward layers in tiles have no dropout inside") != std::string::npos);
  ModelOptions of_images;
  of_images.feed_forward = FeedForward::tiled;
  for (const char* name : {"resnet18", "mlp", "googlenet", "sharedconv"}) {
    INFO(name);
    CHECK(message([&] { make_model(name, of_images); }).find("`feed_forward` tiled") != std::string::npos);
  }
  const auto adapted = make_seeded("tiny-llama", small("tiny-llama"));
  nn::add_lora(*adapted, {{.rank = 2}, {}});
  CHECK(message([&] { adapted->loss(make_batch(*adapted, 1)); }) ==
        "feed-forward layer in tiles: expected plain linear layers, got llama.model.layers.0.mlp.up_proj, which has an "
        "adapter; `feed_forward` full, or `lora_targets` outside of feed-forward layers, runs it");
  const auto outside = make_seeded("tiny-llama", small("tiny-llama"));
  nn::add_lora(*outside, {{.rank = 2}, {"q_proj", "v_proj"}});
  CHECK(message([&] { outside->loss(make_batch(*outside, 1)); }) == "nothing was thrown");
  Setup fp8;
  fp8.model = "tiny-llama", fp8.sizes = small("tiny-llama"), fp8.batch = 2;
  set_precision(fp8, "fp8");
  CHECK(message([&] { nn::profile_training(dry(cpu), zero_batch_run(fp8)); }).find("runs in FP8") != std::string::npos);
}
