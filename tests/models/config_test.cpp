// config.json key by key: for each family, each key that transformers writes is applied, is listed as having no effect,
// or is refused by name. Sizes match the tensors in the folder before a model is built.

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/models/model.h>
#include <thimble/models/weights/config.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/weights.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;
using files_test::contains;
using files_test::TemporaryFolder;
using Json = nlohmann::ordered_json;

namespace {

ModelConfig read(const Json& json, std::string_view family) {
  const TemporaryFolder folder;
  files_test::write_text_file(folder / "config.json", json.dump());
  return read_model_config(folder / "config.json", family);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ValueError& error) {
    return error.what();
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

/// Everything that a configuration changes, as text.
std::string text_of(const ModelConfig& config) {
  const ModelOptions& s = config.sizes;
  std::string text;
  for (const std::int64_t size : {s.vocabulary, s.sequence, s.layers, s.heads, s.width, s.key_heads, s.hidden, s.window,
                                  s.image, s.channels, s.classes}) {
    text += std::to_string(size) + " ";
  }
  text += std::to_string(s.dropout) + " " + config.why_no_dropout;
  for (const auto& [key, value] : function_texts(s.function, {.rotary = RotaryPositions{1e-9}})) {
    text += "; " + key + " " + value;
  }
  return text;
}

const Json llama{{"model_type", "llama"},       {"vocab_size", 17},
                 {"hidden_size", 48},           {"intermediate_size", 40},
                 {"num_hidden_layers", 2},      {"num_attention_heads", 6},
                 {"num_key_value_heads", 2},    {"rms_norm_eps", 1e-5},
                 {"rope_theta", 500.0},         {"max_position_embeddings", 512},
                 {"tie_word_embeddings", false}};
const Json mistral = [] {
  Json json = llama;
  json["model_type"] = "mistral", json["sliding_window"] = 9;
  return json;
}();
const Json qwen = [] {
  Json json = llama;
  json["model_type"] = "qwen2", json["use_sliding_window"] = true, json["sliding_window"] = 9;
  json["max_window_layers"] = 0;
  return json;
}();
const Json gpt{{"model_type", "gpt2"}, {"vocab_size", 17}, {"n_embd", 48},
               {"n_layer", 2},         {"n_head", 6},      {"n_positions", 512}};
const Json bert{{"model_type", "bert"},     {"vocab_size", 17},       {"hidden_size", 48},
                {"intermediate_size", 192}, {"num_hidden_layers", 2}, {"num_attention_heads", 6}};
const Json vit{{"model_type", "vit"},    {"hidden_size", 48},        {"intermediate_size", 192},
               {"num_hidden_layers", 2}, {"num_attention_heads", 6}, {"image_size", 32}};

enum class Effect : std::uint8_t { applied, none, refused };
struct Row {
  const Json* config;
  const char *family, *key, *value;
  Effect effect;
};
constexpr auto applied = Effect::applied, none = Effect::none, refused = Effect::refused;

const Row rows[] = {
    {&llama, "llama", "vocab_size", "18", applied},
    {&llama, "llama", "hidden_size", "60", applied},
    {&llama, "llama", "intermediate_size", "41", applied},
    {&llama, "llama", "num_hidden_layers", "3", applied},
    {&llama, "llama", "num_attention_heads", "8", applied},
    {&llama, "llama", "num_key_value_heads", "3", applied},
    {&llama, "llama", "num_key_value_heads", "null", applied},
    {&llama, "llama", "num_key_value_heads", "4", refused},
    {&llama, "llama", "max_position_embeddings", "513", applied},
    {&llama, "llama", "rms_norm_eps", "0.5", applied},
    {&llama, "llama", "rms_norm_eps", "0", refused},
    {&llama, "llama", "rms_norm_eps", "-1e-5", refused},
    {&llama, "llama", "rms_norm_eps", "1e300", refused},
    {&llama, "llama", "rms_norm_eps", "\"1e-5\"", refused},
    {&llama, "llama", "tie_word_embeddings", "true", applied},
    {&llama, "llama", "tie_word_embeddings", "1", refused},
    {&llama, "llama", "rope_theta", "501", applied},
    {&llama, "llama", "rope_theta", "1e300", refused},
    {&llama, "llama", "rope_theta", "-1", refused},
    {&llama, "llama", "rope_theta", "0.5", refused},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "linear", "factor": 2.0})", applied},
    {&llama, "llama", "rope_scaling", R"({"type": "dynamic", "factor": 2.0})", applied},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "yarn", "factor": 2.0})", applied},
    {&llama, "llama", "rope_scaling",
     R"({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0})", applied},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "default"})", none},
    {&llama, "llama", "rope_scaling", "null", none},
    {&llama, "llama", "rope_scaling", "7", refused},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "longrope", "factor": 2.0})", refused},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "linear"})", refused},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "linear", "factor": 0})", refused},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "linear", "type": "dynamic", "factor": 2.0})", refused},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "linear", "factor": 2.0, "beta_fast": 3})", refused},
    {&llama, "llama", "rope_scaling", R"({"rope_type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2})",
     refused},
    {&llama, "llama", "rope_scaling", R"({"factor": 2.0})", refused},
    {&llama, "llama", "rope_parameters", R"({"rope_type": "default", "rope_theta": 500.0})", none},
    {&llama, "llama", "rope_parameters", R"({"rope_type": "default"})", none},
    {&llama, "llama", "rope_parameters", R"({"rope_type": "default", "rope_theta": 9.0})", refused},
    {&llama, "llama", "rope_parameters", R"({"full_attention": {"rope_type": "default"}})", refused},
    {&llama, "llama", "partial_rotary_factor", "1.0", none},
    {&llama, "llama", "partial_rotary_factor", "0.5", refused},
    {&llama, "llama", "head_dim", "8", none},
    {&llama, "llama", "head_dim", "16", refused},
    {&llama, "llama", "hidden_act", "\"swish\"", none},
    {&llama, "llama", "hidden_act", "\"gelu\"", refused},
    {&llama, "llama", "attention_bias", "true", refused},
    {&llama, "llama", "mlp_bias", "true", refused},
    {&llama, "llama", "is_causal", "false", refused},
    {&llama, "llama", "attention_dropout", "0.1", applied},  // to the reason why it cannot train
    {&llama, "llama", "use_sliding_window", "true", refused},
    {&llama, "llama", "sliding_window", "4", none},
    {&llama, "llama", "layer_types", R"(["full_attention", "full_attention"])", none},
    {&llama, "llama", "layer_types", R"(["full_attention", "sliding_attention"])", refused},
    {&llama, "llama", "quantization_config", R"({"bits": 4})", refused},
    {&llama, "llama", "model_type", "\"gemma\"", refused},
    {&llama, "llama", "model_type", "null", refused},
    {&llama, "llama", "vocab_size", "0", refused},
    {&llama, "llama", "vocab_size", "2.5", refused},
    {&llama, "llama", "vocab_size", "18446744073709551615", refused},
    {&llama, "llama", "hidden_size", "50", refused},
    {&llama, "llama", "of_tomorrow", "0", refused},
    {&llama, "llama", "of_tomorrow", "false", none},
    {&llama, "llama", "of_tomorrow", "[]", none},
    {&mistral, "llama", "sliding_window", "8", applied},
    {&mistral, "llama", "sliding_window", "null", applied},
    {&mistral, "llama", "sliding_window", "-1", refused},
    {&mistral, "llama", "sliding_window", "0", refused},
    {&mistral, "llama", "use_sliding_window", "true", refused},
    {&mistral, "llama", "layer_types", R"(["full_attention", "full_attention"])", refused},
    {&qwen, "llama", "use_sliding_window", "false", applied},
    {&qwen, "llama", "sliding_window", "8", applied},
    {&qwen, "llama", "max_window_layers", "1", refused},
    {&qwen, "llama", "max_window_layers", "2", applied},
    {&qwen, "llama", "layer_types", R"(["full_attention", "full_attention"])", applied},
    {&qwen, "llama", "layer_types", R"(["full_attention", "sliding_attention"])", refused},
    {&qwen, "llama", "layer_types", R"(["sliding_attention"])", refused},
    {&gpt, "gpt", "vocab_size", "18", applied},
    {&gpt, "gpt", "n_embd", "60", applied},
    {&gpt, "gpt", "n_layer", "3", applied},
    {&gpt, "gpt", "n_head", "8", applied},
    {&gpt, "gpt", "n_head", "5", refused},
    {&gpt, "gpt", "n_positions", "511", applied},
    {&gpt, "gpt", "num_attention_heads", "6", none},
    {&gpt, "gpt", "num_attention_heads", "8", refused},  // n_head has another value
    {&gpt, "gpt", "hidden_size", "60", refused},
    {&gpt, "gpt", "n_inner", "192", none},
    {&gpt, "gpt", "n_inner", "100", refused},
    {&gpt, "gpt", "activation_function", "\"gelu\"", applied},
    {&gpt, "gpt", "activation_function", "\"gelu_pytorch_tanh\"", none},
    {&gpt, "gpt", "activation_function", "\"relu\"", refused},
    {&gpt, "gpt", "layer_norm_epsilon", "0.1", applied},
    {&gpt, "gpt", "layer_norm_epsilon", "0", refused},
    {&gpt, "gpt", "resid_pdrop", "0.2", applied},
    {&gpt, "gpt", "attn_pdrop", "0.2", applied},
    {&gpt, "gpt", "embd_pdrop", "1.5", refused},
    {&gpt, "gpt", "scale_attn_weights", "false", refused},
    {&gpt, "gpt", "is_causal", "false", refused},
    {&gpt, "gpt", "scale_attn_by_inverse_layer_idx", "true", refused},
    {&gpt, "gpt", "reorder_and_upcast_attn", "true", none},
    {&gpt, "gpt", "add_cross_attention", "true", refused},
    {&gpt, "gpt", "tie_word_embeddings", "false", refused},
    {&gpt, "gpt", "n_ctx", "9", none},
    {&gpt, "gpt", "summary_type", "\"mean\"", none},
    {&gpt, "gpt", "model_type", "\"llama\"", refused},
    {&gpt, "gpt", "model_type", "null", none},
    {&bert, "bert", "vocab_size", "18", applied},
    {&bert, "bert", "num_hidden_layers", "3", applied},
    {&bert, "bert", "num_attention_heads", "8", applied},
    {&bert, "bert", "max_position_embeddings", "100", applied},
    {&bert, "bert", "intermediate_size", "100", refused},
    {&bert, "bert", "type_vocab_size", "3", refused},
    {&bert, "bert", "layer_norm_eps", "0.1", applied},
    {&bert, "bert", "hidden_act", "\"gelu_new\"", applied},
    {&bert, "bert", "hidden_act", "\"relu\"", refused},
    {&bert, "bert", "hidden_dropout_prob", "0.2", applied},
    {&bert, "bert", "attention_probs_dropout_prob", "0.2", applied},
    {&bert, "bert", "position_embedding_type", "\"relative_key\"", refused},
    {&bert, "bert", "is_decoder", "true", refused},
    {&bert, "bert", "tie_word_embeddings", "false", refused},
    {&bert, "bert", "pooler_fc_size", "7", none},
    {&bert, "bert", "classifier_dropout", "0.3", none},
    {&bert, "bert", "initializer_range", "0.5", none},
    {&bert, "bert", "pruned_heads", R"({"0": [1]})", refused},
    {&bert, "bert", "torch_dtype", "\"bfloat16\"", none},
    {&vit, "vit", "hidden_size", "60", refused},  // a quarter of intermediate_size is expected
    {&vit, "vit", "image_size", "48", applied},
    {&vit, "vit", "image_size", "[48, 48]", applied},
    {&vit, "vit", "image_size", "[48, 32]", refused},
    {&vit, "vit", "image_size", "40", refused},
    {&vit, "vit", "patch_size", "8", refused},
    {&vit, "vit", "num_channels", "1", applied},
    {&vit, "vit", "id2label", R"({"0": "a", "1": "b", "2": "c"})", applied},
    {&vit, "vit", "num_labels", "3", applied},
    {&vit, "vit", "qkv_bias", "false", refused},
    {&vit, "vit", "layer_norm_eps", "0.1", applied},
    {&vit, "vit", "hidden_act", "\"gelu_new\"", applied},
    {&vit, "vit", "hidden_act", "\"quick_gelu\"", refused},
    {&vit, "vit", "hidden_dropout_prob", "0.2", applied},
    {&vit, "vit", "attention_probs_dropout_prob", "0.2", applied},
    {&vit, "vit", "pooler_act", "\"relu\"", none},
    {&vit, "vit", "pooler_output_size", "7", none},
    {&vit, "vit", "encoder_stride", "7", none},
};

/// Saves a small named model to a folder with this config.json.
void save(const std::string& folder, const char* name, const ModelOptions& sizes, const Json& config) {
  std::filesystem::create_directories(folder);
  nn::save_weights(*make_seeded<Model>(name, sizes), folder + "/model.safetensors", {{"format", "pt"}});
  files_test::write_text_file(folder + "/config.json", config.dump());
}

ModelOptions small(std::int64_t heads = 6) {
  return {.vocabulary = 17, .sequence = 24, .layers = 2, .heads = heads, .width = 48};
}

}  // namespace

TEST_CASE("config: each key is applied, changes nothing, or is refused by name", "[models][config][quick]") {
  for (const Row& row : rows) {
    CAPTURE(row.family, row.key, row.value);
    Json json = *row.config;
    const std::string before = text_of(read(json, row.family));
    json[row.key] = Json::parse(row.value);
    const std::string error = error_of([&] { read(json, row.family); });
    CHECK((error == "no error") == (row.effect != refused));
    if (row.effect == refused) {
      CAPTURE(error);
      const bool names_key = contains(error, row.key) || contains(error, "intermediate_size") ||
                             contains(error, "n_head") || contains(error, "num_attention_heads");
      CHECK((names_key && contains(error, "expected")));
      continue;
    }
    CHECK((text_of(read(json, row.family)) == before) == (row.effect == none));
  }
}

TEST_CASE("config: keys in the lists of those without effect have none", "[models][config][quick]") {
  const std::pair<const char*, const Json*> families[] = {
      {"gpt", &gpt}, {"llama", &llama}, {"bert", &bert}, {"vit", &vit}};
  for (const auto& [family, config] : families) {
    CHECK(config_keys_without_effect(family).size() > 60);
    for (const std::string_view key : config_keys_without_effect(family)) {
      CAPTURE(family, key);
      if (std::string_view(family) == "vit" && (key == "id2label" || key == "num_labels")) continue;  // classes
      Json json = *config;
      json[std::string(key)] = 0.25;
      CHECK(text_of(read(json, family)) == text_of(read(*config, family)));
    }
  }
}

TEST_CASE("config: what is missing is as transformers has it", "[models][config][quick]") {
  const ModelOptions m = read({{"model_type", "mistral"}}, "llama").sizes,
                     q = read({{"model_type", "qwen2"}}, "llama").sizes;
  const ModelOptions l = read({{"model_type", "llama"}}, "llama").sizes;
  const Json windows{{"model_type", "qwen2"}, {"use_sliding_window", true}, {"num_hidden_layers", 28}};
  CHECK(read(windows, "llama").sizes.window == 0);  // max_window_layers is 28
  CHECK((l.vocabulary == 32000 && l.width == 4096 && l.hidden == 11008 && l.layers == 32 && l.heads == 32));
  CHECK((l.key_heads == 32 && l.sequence == 2048 && l.window == 0 && l.function.epsilon == 1e-6));
  CHECK((m.key_heads == 8 && m.hidden == 14336 && m.sequence == 131072 && m.window == 4096));
  CHECK((q.vocabulary == 151936 && q.key_heads == 32 && q.hidden == 22016 && q.sequence == 32768 && q.window == 0));
  CHECK((q.function.has_bias == true && l.function.has_bias == false && l.function.is_tied == false));
  CHECK((l.function.rotary->theta == 10000 && !l.function.rotary->scaling));
  const ModelOptions g = read({{"model_type", "gpt2"}}, "gpt").sizes, b = read({{"model_type", "bert"}}, "bert").sizes;
  CHECK((g.vocabulary == 50257 && g.width == 768 && g.layers == 12 && g.heads == 12 && g.sequence == 1024));
  CHECK((g.function.epsilon == 1e-5 && g.function.gelu == GeluForm::tanh && g.dropout == 0.1));
  CHECK(
      (b.vocabulary == 30522 && b.sequence == 512 && b.function.epsilon == 1e-12 && b.function.gelu == GeluForm::erf));
  const ModelOptions v = read({{"model_type", "vit"}}, "vit").sizes;
  CHECK((v.image == 224 && v.channels == 3 && v.classes == 2 && v.width == 768 && v.function.epsilon == 1e-12));
}

TEST_CASE("config: JSON that is none is refused with its byte", "[models][config][quick]") {
  const struct {
    std::string text, error;
  } cases[] = {{"", "at byte 0: the file is not JSON"},
               {"{\"a\": 1,}", "at byte 8: the file is not JSON"},
               {"{\"a\": nan}", "at byte 7: the file is not JSON"},
               {"[1]", "at byte 0: expected a JSON object, got [1]"},
               {"{\"a\": 1, \"a\": 2}", "key 'a' is there twice"},
               {"{\"a\": 1e999}", "a number beyond the range of f64"},
               {std::string("{\"a\": \0}", 8), "at byte 6: expected JSON, got a NUL byte"},
               {std::string(40, '[') + std::string(40, ']'), "more than 32 values within each other"},
               {"{\"model_type\": \"gpt2\", \"vocab_size\": " + std::string(300, '9') + "}",
                "vocab_size: expected an integer from 1 to 2^40, got 1e+300"}};
  for (const auto& row : cases) {
    CAPTURE(row.text);
    const TemporaryFolder folder;
    files_test::write_text_file(folder / "config.json", row.text);
    const std::string error = error_of([&] { read_model_config(folder / "config.json", "gpt"); });
    CAPTURE(error);
    CHECK(contains(error, row.error));
    CHECK(!contains(error, "json.exception"));
    CHECK(error.size() < 400);
  }
}

TEST_CASE("config: sizes are those of the tensors beside it, before anything is built", "[models][config][quick]") {
  const TemporaryFolder folder;
  const std::string path = folder / "m";
  const auto start = std::chrono::steady_clock::now();
  Json of_gpt = gpt;
  of_gpt["n_positions"] = 24;
  const struct {
    const char* key;
    std::int64_t value;
  } of_gpts[] = {
      {"n_layer", 1000000000}, {"n_layer", 1}, {"vocab_size", 1000000}, {"n_embd", 6000000}, {"n_positions", 25}};
  save(path, "char-gpt", small(), of_gpt);
  CHECK(load_model("gpt2", path)->options().heads == 6);
  for (const auto& row : of_gpts) {
    Json json = of_gpt;
    json[row.key] = row.value;
    files_test::write_text_file(path + "/config.json", json.dump());
    const std::string error = error_of([&] { load_model("gpt2", path); });
    CAPTURE(row.key, error);
    CHECK(contains(error, std::string(row.key) + ": expected "));
    CHECK(contains(error, "got " + std::to_string(row.value)));
  }
  ModelOptions sizes = small();
  sizes.key_heads = 2, sizes.hidden = 40;
  Json of_llama = llama;
  of_llama["tie_word_embeddings"] = true;
  save(path, "tiny-llama", sizes, of_llama);
  CHECK(load_llama(path)->config().theta == 500);
  of_llama["max_position_embeddings"] = 40;  // positions are rotated: a longer sequence is one only if it is asked for
  files_test::write_text_file(path + "/config.json", of_llama.dump());
  CHECK(load_model("tiny-llama", path)->options().sequence == 40);
  const auto longer = load_model("tiny-llama", path, {}, {.sequence = 41});
  CHECK((longer->options().sequence == 41 && longer->options().function.positions == 40));
  for (const char* const key : {"num_hidden_layers", "intermediate_size"}) {
    Json json = of_llama;
    json[key] = 1000000;
    files_test::write_text_file(path + "/config.json", json.dump());
    for (const std::string& error :
         {error_of([&] { load_llama(path); }), error_of([&] { load_model("tiny-llama", path); })}) {
      CAPTURE(key, error);
      CHECK(contains(error, std::string(key) + ": expected "));
    }
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  CHECK(contains(error_of([&] { load_model("mlp", path); }), "expected no config.json beside weights of mlp"));
  CHECK(contains(error_of([&] { load_model("gpt2", path); }), "model_type: expected \"gpt2\", got \"llama\""));
}

TEST_CASE("config: a size, a window or a function that is asked for and is another is refused",
          "[models][config][quick]") {
  const TemporaryFolder folder;
  const std::string path = folder / "m", file = folder / "own.safetensors";
  Json config = gpt;
  config["n_positions"] = 24, config["layer_norm_epsilon"] = 0.25, config["attn_pdrop"] = 0.3;
  save(path, "char-gpt", small(), config);
  const auto error_with = [&](const ModelOptions& options, const std::string& from) {
    return error_of([&] { load_model("char-gpt", from, {}, options); });
  };
  CHECK(contains(error_with({}, path),
                 "expected one rate of dropout, got resid_pdrop 0.1, embd_pdrop 0.1, attn_pdrop 0.3"));
  CHECK(error_with({.heads = 6, .dropout = 0}, path) == "no error");
  CHECK(contains(error_with({.heads = 12, .dropout = 0}, path), "`heads`: expected 6, as "));
  CHECK(contains(error_with({.layers = 3, .dropout = 0}, path), "`layers`: expected 2, as "));
  for (const std::int64_t length : {23, 25}) {  // a table of positions has one length
    CHECK(contains(error_with({.sequence = length, .dropout = 0}, path), "`sequence`: expected 24, as "));
  }
  CHECK(contains(error_with({.window = 5, .dropout = 0}, path), "`window`: expected 0, as "));
  CHECK(contains(error_with({.dropout = 0, .function = {.epsilon = 1e-5}}, path), "got another epsilon, 1e-05"));
  const auto model = load_model("char-gpt", path, {}, {.dropout = 0});
  CHECK(model->options().function.epsilon == 0.25);
  // Thimble's own file records its model's function, which is the default.
  nn::Metadata metadata = function_metadata("char-gpt", model->options());
  CHECK(metadata == nn::Metadata{{"heads", "6"}, {"epsilon", "0.25"}});
  metadata["model"] = "char-gpt";
  nn::save_weights(*model, file, metadata);
  const auto again = load_model("char-gpt", file);
  CHECK((again->options().heads == 6 && again->options().function.epsilon == 0.25));
  CHECK(contains(error_with({.heads = 4}, file), "`heads`: expected 6, as "));
  CHECK(contains(error_with({.window = 4}, file), "`window`: expected 0, as "));
  CHECK(contains(error_with({.function = {.epsilon = 1e-5}}, file), "got another epsilon"));
  CHECK(contains(error_of([&] { load_model("tiny-llama", file); }),
                 "it is of the model 'char-gpt', not of 'tiny-llama'"));
  for (const auto& [key, value] :
       {std::pair{"epsilon", "0"}, {"activation", "relu"}, {"heads", "six"}, {"rope_scaling", "x"}}) {
    nn::Metadata changed = metadata;
    changed[key] = value;
    nn::save_weights(*model, file, changed);
    CHECK(contains(error_with({}, file), std::string(key) + ": expected "));
  }
}

TEST_CASE("config: a yarn without turns has the usual ones", "[models][config][quick]") {
  Json json = llama;
  json["rope_scaling"] = Json{{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 0}, {"beta_slow", 0}};
  const auto rotary = read(json, "llama").sizes.function.rotary;
  REQUIRE(rotary);
  const auto scaling = rotary->scaling;
  REQUIRE(scaling);
  CHECK(scaling->low == 1);
  CHECK(scaling->high == 32);
  CHECK(scaling->rounds_pairs);
  json["rope_theta"] = 1.0;
  CHECK_THROWS_WITH(read(json, "llama"),
                    Catch::Contains("rope_theta") && Catch::Contains("a number above 1 with yarn"));
  json["rope_scaling"] = Json{{"rope_type", "linear"}, {"factor", 2.0}};
  CHECK(read(json, "llama").sizes.function.rotary->theta == 1);
}

// ---- A model's function beyond its sizes: as text in files, and refused if the family lacks it.

using namespace thimble::models;

TEST_CASE("function: it is written as text and read again", "[models][config][quick]") {
  const ModelFunction own = complete_options("qwen2.5-7b").function;
  std::vector<ModelFunction> others(8, own);
  others[0].epsilon = 0.1;
  others[1].rotary->theta = 1.0 / 3;
  others[2].rotary->scaling = RotaryScaling{7.3, 0.2, 5, 77, RotaryKind::llama3};
  others[3].rotary->scaling = RotaryScaling{7.3, 1, 4, 8192, RotaryKind::linear};
  others[4].rotary->scaling = RotaryScaling{7.3, 1, 4, 99, RotaryKind::dynamic};
  others[5].rotary->scaling = RotaryScaling{7.3, 2, 9, 99, RotaryKind::yarn, 1.25, false};
  others[6].is_tied = true, others[6].has_bias = false, others[6].positions = 3;
  for (const ModelFunction& f : others) {
    const nn::Metadata texts = function_texts(f, own);
    CHECK(texts.empty() == (f == own));
    CHECK(read_function(texts, own, "x") == f);
  }
  // A scaling can be removed again.
  const ModelFunction scaled = complete_options("llama-3.2-1b").function;
  ModelFunction plain = scaled;
  plain.rotary->scaling.reset();
  CHECK(function_texts(plain, scaled) == nn::Metadata{{"rope_scaling", "default"}});
  CHECK(read_function({{"rope_scaling", "default"}}, scaled, "x") == plain);
  CHECK_THROWS_AS(make_model("gpt2", {.function = {.is_tied = false}}, {dry(cpu)}), ValueError);
  CHECK_THROWS_AS(make_model("mlp", {.function = {.epsilon = 1e-5}}, {dry(cpu)}), ValueError);
  CHECK_THROWS_AS(make_model("bert-base", {.function = {.epsilon = 0.0}}, {dry(cpu)}), ValueError);
}
