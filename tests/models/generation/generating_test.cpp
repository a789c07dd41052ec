// Bytes and texts of generation: the dry run against the real run as integers, files of training runs, budgets.

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/units.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/generate/sampling.h>
#include <thimble/nn/quant/weight_only.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/refusal.h"
#include "support/tokenizers.h"

using namespace thimble;
using namespace thimble::testing;
using models::GenerateOptions;
using refusal_test::refusal;

namespace generating_test {

constexpr const char* characters = "abcdefghijklmnopqrstuvwxyz .,";

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Saves weights of a small model with its characters.
std::string weights_of(const files_test::TemporaryFolder& folder, const std::string& name, models::ModelOptions sizes) {
  sizes.vocabulary = static_cast<std::int64_t>(std::string(characters).size());
  const auto model = make_seeded<models::Model>(name, sizes);
  const std::string path = folder / name;
  nn::save_weights(*model, path,
                   {{"characters", models::to_hexadecimal(data::CharVocabulary(characters).symbols())},
                    {"heads", std::to_string(sizes.heads)}});
  return path;
}

GenerateOptions options_for(const std::string& name, const std::string& weights) {
  GenerateOptions o;
  o.shape.setup.model = name, o.shape.setup.batch = 1, o.shape.tokens = 20, o.weights = weights;
  o.prompt = "a prompt, ";
  return o;
}

models::ModelOptions small_gpt() {
  models::ModelOptions o;
  o.layers = 2, o.heads = 2, o.width = 64, o.sequence = 64;
  return o;
}
models::ModelOptions small_llama() {
  models::ModelOptions o = small_gpt();
  o.heads = 4, o.key_heads = 2, o.hidden = 160;
  return o;
}

}  // namespace generating_test

using namespace generating_test;

TEST_CASE("generating: the dry run's bytes are the real ones", "[models][generating]") {
  const Threads alone;
  const files_test::TemporaryFolder folder;
  for (const bool is_llama : {false, true}) {
    const std::string name = is_llama ? "tiny-llama" : "char-gpt";
    const std::string weights = weights_of(folder, name, is_llama ? small_llama() : small_gpt());
    for (const DType cache : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::f8e4m3, DType::f8e5m2}) {
      for (const std::int64_t batch : {1, 4}) {
        INFO(name << ", cache " << to_string(cache) << ", batch " << batch);
        GenerateOptions o = options_for(name, weights);
        o.shape.cache = cache, o.shape.setup.batch = batch, o.shape.context = 50;
        const models::PreparedGeneration prepared = models::prepare_generation(o);
        const models::GenerateReport report = models::generate(prepared);
        const std::size_t heads = 2, width = is_llama ? 16 : 32, scale = size_of(cache) == 1 ? 4 : 0;
        CHECK(prepared.plan.cache.bytes_per_token() == 2 * 2 * heads * (width * size_of(cache) + scale));
        CHECK(report.cache_bytes == static_cast<std::size_t>(batch) * 50 * prepared.plan.cache.bytes_per_token());
        CHECK(report.measured_peak_bytes == prepared.plan.peak_bytes);
        CHECK(report.measured.live_bytes == prepared.plan.committed.live_bytes);
        CHECK(report.measured.hole_bytes == prepared.plan.committed.hole_bytes);
        CHECK(report.measured.rounding_bytes == prepared.plan.committed.rounding_bytes);
        REQUIRE(report.texts.size() == static_cast<std::size_t>(batch));
        for (const std::string& text : report.texts) CHECK(text.size() == 20);
        if (batch > 1) CHECK(report.texts[0] != report.texts[1]);
      }
    }
  }
}

TEST_CASE("generating: bytes where attention takes more threads as it goes on", "[models][generating]") {
  const Threads some(8);
  const files_test::TemporaryFolder folder;
  models::ModelOptions sizes;  // all but attention is small, so that its workspace sets the peak
  sizes.layers = 1, sizes.heads = 1, sizes.key_heads = 1, sizes.width = 128, sizes.hidden = 16, sizes.sequence = 600;
  GenerateOptions o = options_for("tiny-llama", weights_of(folder, "tiny-llama", sizes));
  o.shape.setup.batch = 32, o.shape.tokens = 560, o.prompt = "a";
  for (const DType cache : {DType::f32, DType::i8}) {
    o.shape.cache = cache;
    const models::PreparedGeneration prepared = models::prepare_generation(o);
    nn::KvCache dry_cache(prepared.plan.cache, dry(cpu));
    const std::size_t first = dry_cache.step_workspace_bytes(1, DType::f32);
    dry_cache.advance(prepared.plan.cache.context - 2);
    const std::size_t last = dry_cache.step_workspace_bytes(1, DType::f32);
    CHECK(last >= 2 * first);
    CHECK(prepared.plan.peak_by_category[static_cast<std::size_t>(memory::Category::workspace)] == last);
    const models::GenerateReport report = models::generate(prepared);
    CHECK(report.measured.live_bytes == prepared.plan.committed.live_bytes);
    CHECK(report.measured.total() == prepared.plan.peak_bytes);
  }
}

TEST_CASE("generating: large models are told on dry devices", "[models][generating]") {
  const Threads alone;
  models::GenerationShape shape;
  shape.setup.batch = 1;
  const auto plan_of = [&](const char* name, std::int64_t context) {
    shape.setup.model = name, shape.setup.precision.dtype = DType::bf16, shape.context = context;
    return models::plan_generation(shape, cpu);
  };
  const models::GenerationPlan gpt2 = plan_of("gpt2", 1024);
  CHECK(gpt2.cache.bytes_per_token() == 36'864);
  CHECK(gpt2.peak_by_category[static_cast<std::size_t>(memory::Category::parameter)] == 2 * 124'439'808);
  const models::GenerationPlan llama = plan_of("llama-3-8b", 8192);
  CHECK(llama.cache.bytes_per_token() == 131'072);
  CHECK(llama.cache.bytes() == std::size_t{1} << 30);
  CHECK(llama.peak_by_category[static_cast<std::size_t>(memory::Category::activation)] >= llama.cache.bytes());
  for (const memory::Device device : {cpu, cuda()}) {
    shape.setup.model = "tiny-llama", shape.context = 64;
    CHECK(models::plan_generation(shape, device).peak_bytes > 0);
  }
}

TEST_CASE("generating: what training leaves behind writes", "[models][generating]") {
  const Threads alone;
  const files_test::TemporaryFolder folder;
  for (const bool has_tokenizer : {false, true}) {
    for (const char* name : {"char-gpt", "tiny-llama"}) {
      INFO(name << (has_tokenizer ? " with a tokenizer" : ""));
      models::RunOptions t;
      t.setup.model = name;
      t.setup.sizes.layers = 1, t.setup.sizes.heads = 2, t.setup.sizes.width = 32, t.setup.sizes.sequence = 48;
      t.setup.batch = 2, t.data = "synthetic", t.steps = 2, t.save = folder / "run.ckpt";
      t.save_weights = folder / "run.safetensors";
      const std::string tokenizer = folder / "tokenizer.json";
      if (has_tokenizer) {
        data::write_tokenizer(tokenizer, tokenizer_test::letter_pairs(270));
        t.setup.tokenizer = tokenizer;
      }
      models::Engine(t).run();
      std::vector<std::string> texts;
      for (const bool by_checkpoint : {false, true}) {
        GenerateOptions o = options_for(name, by_checkpoint ? "" : t.save_weights);
        if (by_checkpoint) o.checkpoint = t.save;
        o.prompt = "the ";
        o.shape.setup.seed = 5;
        if (has_tokenizer) {
          CHECK(has(refusal<Error>([&] { models::prepare_generation(o); }), "tokenizer.json, which is to be given"));
          o.tokenizer = tokenizer;
        } else {
          GenerateOptions other = o;
          other.prompt = "\x01";
          CHECK(has(refusal<Error>([&] { models::prepare_generation(other); }), "character vocabulary: byte"));
        }
        const models::PreparedGeneration prepared = models::prepare_generation(o);
        texts.push_back(models::generate(prepared).texts[0]);
        GenerateOptions wrong = o;
        wrong.shape.setup.model = std::string(name) == "char-gpt" ? "tiny-llama" : "char-gpt";
        CHECK(has(refusal<Error>([&] { models::prepare_generation(wrong); }), "it is of the model"));
      }
      CHECK(texts[0] == texts[1]);
      CHECK(!texts[0].empty());
      // The generation matches a model that is loaded by hand.
      GenerateOptions o = options_for(name, t.save_weights);
      o.prompt = "the ", o.tokenizer = has_tokenizer ? tokenizer : "", o.shape.setup.seed = 5;
      const models::PreparedGeneration prepared = models::prepare_generation(o);
      const auto model = models::make_decoder(prepared.plan.shape, cpu);
      nn::load_weights(*model, t.save_weights);
      model->eval();
      const auto tokens = models::generate(*model, prepared.prompt, 20, 0.8, 0, 5);
      CHECK_FALSE(model->is_training());  // as before
      CHECK(prepared.text.decode({tokens.begin() + static_cast<std::int64_t>(prepared.prompt.size()), tokens.end()}) ==
            texts[0]);
    }
  }
  CHECK(has(refusal<Error>([&] {
              GenerateOptions o = options_for("char-gpt", "");
              o.checkpoint = folder / "run.safetensors";
              models::prepare_generation(o);
            }),
            "run.safetensors"));
}

TEST_CASE("generating: a folder with a config.json", "[models][generating]") {
  const Threads alone;
  const files_test::TemporaryFolder folder;
  const std::string tokenizer = folder / "tokenizer.json", path = folder / "llama";
  data::write_tokenizer(tokenizer, tokenizer_test::letter_pairs(262, data::WordPattern::llama3));
  models::ModelOptions sizes = small_llama();
  sizes.vocabulary = 262;
  models::LlamaConfig config = models::llama_config("tiny-llama", sizes);
  config.theta = 5000, config.is_tied = false, config.positions = 64;
  models::Llama model(config, {});
  models::save_llama(model, path);
  GenerateOptions o = options_for("tiny-llama", path);
  o.tokenizer = tokenizer, o.prompt = "the quick ", o.sampling.temperature = 0;
  const models::PreparedGeneration prepared = models::prepare_generation(o);
  CHECK(prepared.plan.shape.setup.sizes.function.rotary == models::RotaryPositions{5000});
  const models::GenerateReport report = models::generate(prepared);
  CHECK(report.measured_peak_bytes == prepared.plan.peak_bytes);
  // The most likely token after the prompt is the saved model's.
  const NoGrad off;
  const auto count = static_cast<std::int64_t>(prepared.prompt.size());
  const auto logits =
      to_host<float>(view::slice(model.forward(from_host(prepared.prompt, {1, count})).detach(), 1, count - 1, count));
  CHECK(report.tokens[0][0] == std::max_element(logits.begin(), logits.end()) - logits.begin());

  // End tokens come from the first of generation_config.json, config.json and the tokenizer that names any.
  const std::vector<std::int64_t>& all = report.tokens[0];
  REQUIRE(all.size() == 20);
  CHECK(!report.ended_by[0]);
  const std::int64_t end = all[7];
  const std::vector<std::int64_t> before(all.begin(), std::find(all.begin(), all.end(), end));
  const std::string config_text = files_test::read_text_file(path + "/config.json");
  nlohmann::json config_json = nlohmann::json::parse(config_text);
  struct Row {
    const char* generation;  // eos_token_id in the file; null means no file
    nlohmann::json in_config;
    std::vector<std::int64_t> end_tokens;
  };
  const std::string number = std::to_string(end), list = "[50256, " + number + "]";
  const Row rows[] = {{list.c_str(), 3, {end, 50256}}, {number.c_str(), {}, {end}}, {"null", {end}, {end}},
                      {nullptr, end, {end}},           {nullptr, {}, {}},           {"[]", {}, {}}};
  for (const Row& row : rows) {
    const std::string generation = path + "/generation_config.json";
    std::filesystem::remove(generation);
    if (row.generation) {
      files_test::write_text_file(generation, "{\"eos_token_id\": " + std::string(row.generation) + "}");
    }
    config_json["eos_token_id"] = row.in_config;
    files_test::write_text_file(path + "/config.json", config_json.dump());
    for (const bool ignores_end : {false, true}) {
      o.ignores_end = ignores_end;
      const models::PreparedGeneration ending = models::prepare_generation(o);
      CHECK(ending.end_tokens == (ignores_end ? std::vector<std::int64_t>() : row.end_tokens));
      std::string pieces;
      const models::GenerateReport ended =
          models::generate(ending, [&](const std::vector<std::string>& p) { pieces += p[0]; });
      const bool ends = !ending.end_tokens.empty();
      CHECK(ended.tokens[0] == (ends ? before : all));
      CHECK(ended.ended_by[0] == (ends ? std::optional(end) : std::nullopt));
      CHECK(ended.is_shorter == ends);
      // Of the sequence all tokens but the first, which the prompt's seconds count.
      const auto later = static_cast<double>(std::max<std::size_t>(1, ended.tokens[0].size()) - 1);
      CHECK(ended.tokens_per_second * ended.seconds == Approx(later));
      CHECK(ended.texts[0] == ending.text.decode(ended.tokens[0]));
      CHECK(pieces == ended.texts[0]);
      CHECK(ended.measured_peak_bytes <= ending.plan.peak_bytes);
    }
  }
  o.ignores_end = false;
  for (const char* const bad : {"\"two\"", "-1", "[1, 2.5]", "[3, -1]", "1e999"}) {
    files_test::write_text_file(path + "/generation_config.json", "{\"eos_token_id\": " + std::string(bad) + "}");
    const std::string why = refusal<Error>([&] { models::prepare_generation(o); });
    INFO(bad << ": " << why);
    CHECK(has(why, "generation_config.json"));
    CHECK(!has(why, "json.exception"));
  }
  std::filesystem::remove(path + "/generation_config.json");
  files_test::write_text_file(path + "/config.json", config_text);

  // Several sequences end at different times, without an effect on the others.
  data::TokenizerParts parts =
      tokenizer_test::letter_pairs(262, data::WordPattern::llama3, {"<|endoftext|>", "<|eot_id|>"}).parts();
  parts.added[1].is_special = false;  // spelled like an end token, but not special
  data::write_tokenizer(tokenizer, data::Tokenizer(parts));
  o.shape.setup.batch = 4, o.sampling.temperature = 5;
  const models::PreparedGeneration several = models::prepare_generation(o);
  CHECK(several.end_tokens == std::vector<std::int64_t>{data::read_tokenizer(tokenizer).id_of("<|endoftext|>")});
  models::PreparedGeneration plain = several;
  plain.end_tokens.clear();
  const models::GenerateReport free = models::generate(plain);
  models::PreparedGeneration cut = plain;
  cut.end_tokens = {free.tokens[1][4], free.tokens[3][9]};
  std::sort(cut.end_tokens.begin(), cut.end_tokens.end());
  const models::GenerateReport some = models::generate(cut);
  for (std::size_t b = 0; b < 4; ++b) {
    const auto stop =
        std::find_first_of(free.tokens[b].begin(), free.tokens[b].end(), cut.end_tokens.begin(), cut.end_tokens.end());
    CHECK(some.tokens[b] == std::vector<std::int64_t>(free.tokens[b].begin(), stop));
    CHECK(some.ended_by[b].has_value() == (stop != free.tokens[b].end()));
  }
}

TEST_CASE("generating: weights in Q8_0 blocks", "[models][generating]") {
  const Threads alone;
  const files_test::TemporaryFolder folder;
  for (const std::string name : {"char-gpt", "tiny-llama"}) {
    INFO(name);
    const std::string path = weights_of(folder, name, name == "char-gpt" ? small_gpt() : small_llama());
    GenerateOptions o = options_for(name, path);
    const models::PreparedGeneration whole = models::prepare_generation(o);
    const auto model = models::make_decoder(whole.plan.shape, cpu);
    const nn::LoadedWeights loaded = nn::load_weights(*model, path);
    nn::quant::quantize_linear_weights(*model);
    nn::Metadata metadata = loaded.metadata;
    metadata["format"] = "thimble-q8_0-1";
    o.weights = folder / "q8";
    nn::save_weights(*model, o.weights, metadata);
    const models::PreparedGeneration prepared = models::prepare_generation(o);
    CHECK(prepared.plan.shape.has_q8_weights);
    const models::GenerateReport report = models::generate(prepared);
    CHECK(report.measured_peak_bytes == prepared.plan.peak_bytes);
    CHECK(report.measured.live_bytes == prepared.plan.committed.live_bytes);
    CHECK(report.texts[0].size() == 20);
  }
}

TEST_CASE("generating: positions and tokens that are not given follow from the others", "[models][generating]") {
  struct Row {
    std::int64_t context, prompt_tokens, tokens;                          // given
    std::int64_t all_context = 0, all_prompt_tokens = 0, all_tokens = 0;  // 0 if they are refused
  };
  for (const Row& row : {Row{0, 0, 0, 64, 63, 1},
                         {20, 0, 0, 20, 19, 1},
                         {20, 0, 5, 20, 15, 5},
                         {20, 7, 0, 20, 7, 13},
                         {20, 19, 1, 20, 19, 1},
                         {20, 20, 0},
                         {20, 0, 20},
                         {20, 7, 14}}) {
    models::GenerationShape shape;
    shape.setup.model = "char-gpt", shape.setup.sizes = small_gpt();
    shape.context = row.context, shape.prompt_tokens = row.prompt_tokens, shape.tokens = row.tokens;
    INFO(row.context << " " << row.prompt_tokens << " " << row.tokens);
    const std::string error = refusal<Error>([&] { shape = models::complete_shape(shape); });
    CHECK(error.empty() == (row.all_context > 0));
    if (error.empty())
      CHECK((shape.context == row.all_context && shape.prompt_tokens == row.all_prompt_tokens &&
             shape.tokens == row.all_tokens));
  }
}

TEST_CASE("generating: a budget is kept, or refused with what fits", "[models][generating]") {
  const Threads alone;
  models::GenerationShape shape;
  shape.setup.model = "char-gpt", shape.setup.batch = 8, shape.context = 256;
  shape.prompt_tokens = 10, shape.tokens = 50;
  const models::GenerationPlan plan = models::plan_generation(shape, cpu);
  const nn::BudgetError error = models::refuse_generation(plan, cpu, plan.peak_bytes - 1);
  const std::string text = error.what();
  CHECK(has(text, "`context` "));
  CHECK(has(text, "`cache` i8"));
  CHECK(has(text, "`batch` 7"));
  models::GenerationShape narrow = shape, small = shape, least = shape;
  narrow.cache = DType::i8, small.setup.batch = 7;
  least.setup.batch = 1, least.context = shape.prompt_tokens + shape.tokens;
  const auto peak = [](const models::GenerationShape& s) { return models::plan_generation(s, cpu).peak_bytes; };
  CHECK(error.minimum_bytes() == std::min(peak(narrow), peak(least)));
  const models::GenerationPlan of_least = models::plan_generation(least, cpu);
  least.cache = DType::i8;  // the only offer left for one sequence in the shortest context
  CHECK(models::refuse_generation(of_least, cpu, of_least.peak_bytes - 1).minimum_bytes() == peak(least));
  CHECK(peak(least) < of_least.peak_bytes);
  CHECK(has(models::refuse_generation(plan, cpu, peak(narrow)).what(), "`cache` i8"));
  CHECK(has(models::refuse_generation(plan, cpu, peak(small)).what(), "`batch` 7"));
  const std::string offers = text.substr(text.find("what fits"));
  models::GenerationShape shorter = shape;
  shorter.context = std::stoll(offers.substr(offers.find("`context` ") + 10));
  CHECK(models::plan_generation(shorter, cpu).peak_bytes < plan.peak_bytes);
  shorter.context += 1;
  CHECK((shorter.context == shape.context || models::plan_generation(shorter, cpu).peak_bytes >= plan.peak_bytes));
  CHECK(has(text, "needs " + memory::exact_bytes(plan.peak_bytes) + ", of which"));
  CHECK(has(models::refuse_generation(plan, cpu, 1).what(), "no shorter context"));
  // A GPU's kernels read no narrower cache, so none is offered there.
  const models::GenerationPlan on_gpu = models::plan_generation(shape, cuda());
  const std::string offered = models::refuse_generation(on_gpu, cuda(), on_gpu.peak_bytes - 1).what();
  CHECK(has(offered, "`batch` 7"));
  CHECK_FALSE(has(offered, "`cache` i8"));

  const files_test::TemporaryFolder folder;
  GenerateOptions o = options_for("char-gpt", weights_of(folder, "char-gpt", small_gpt()));
  o.budget_bytes = models::prepare_generation(o).plan.peak_bytes;
  CHECK(models::generate(models::prepare_generation(o)).measured_peak_bytes == o.budget_bytes);
  o.budget_bytes -= 1;
  CHECK_THROWS_AS(models::prepare_generation(o), nn::BudgetError);
}

TEST_CASE("generating: bad options are refused", "[models][generating]") {
  const Threads alone;
  const files_test::TemporaryFolder folder;
  const GenerateOptions good = options_for("char-gpt", weights_of(folder, "char-gpt", small_gpt()));
  const auto with = [&](auto change) {
    GenerateOptions o = good;
    change(o);
    return refusal<Error>([&] { models::prepare_generation(o); });
  };
  CHECK(with([](GenerateOptions&) {}).empty());
  CHECK(has(with([](GenerateOptions& o) { o.shape.setup.model = "bert-base"; }), "tokens that come next"));
  CHECK(has(with([](GenerateOptions& o) { o.shape.setup.model = "no-such"; }), "no-such"));
  CHECK(!with([](GenerateOptions& o) { o.weights += ".none"; }).empty());
}

// ---- The code of docs/generation.md.

using namespace thimble::testing;

TEST_CASE("generation document: tokens by hand", "[models][generating]") {
  const Threads alone;
  models::ModelOptions small;
  small.layers = 1, small.heads = 2, small.width = 32, small.vocabulary = 50, small.sequence = 32;
  const auto model = make_seeded<models::Decoder>("tiny-llama", small);
  model->eval();
  const std::vector<std::int64_t> prompt{3, 1, 4};
  std::vector<std::int64_t> written;

  nn::KvCacheSizes sizes = model->cache_sizes();  // layers, heads, and the dtype that changes no bit
  sizes.batch = 2, sizes.context = 32;
  models::Generation generation(*model, sizes, {.temperature = 0.7, .top_k = 20, .top_p = 0.9}, 5);
  generation.read_all(prompt);  // the same for both sequences
  for (int i = 0; i < 10; ++i) {
    const std::vector<std::int64_t> next = generation.draw();  // one for each
    generation.read(next);
    written.push_back(next[0]);
  }

  CHECK(written.size() == 10);
  CHECK(generation.cache().length() == 13);
  for (const std::int64_t token : written) CHECK((token >= 0 && token < 50));
}

// ---- Text past a model's window: every token is drawn from a plain forward over the documented span.

namespace {

// The rule, without a cache: start with the newest `window` tokens of the prompt; add a token each time until the
// window is full; then go on from the newest half of a window, and so on.
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
    if (row.model == std::string("char-gpt")) sizes.dropout = 0.3;  // generation applies no dropout
    const auto model = testing::make_seeded<models::Model>(row.model, sizes, {});
    // Larger than initial values, so that logits depend on every visible token.
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
