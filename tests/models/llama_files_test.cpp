// Folders of the Llama family: reading files of transformers 4 and 5, round trips in one file or in shards, and
// refusals by name.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/nn/files/weight_files.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/refusal.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using refusal_test::refusal;
using Json = nlohmann::ordered_json;

namespace {

ModelOptions tiny() {
  ModelOptions options;
  options.layers = 2, options.width = 32, options.heads = 4, options.key_heads = 2, options.hidden = 48;
  options.sequence = 16, options.vocabulary = 17;
  return options;
}

// Llama 3.1 as transformers 4 writes it.
const char* const older = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 8, "hidden_act": "silu", "hidden_size": 32,
  "initializer_range": 0.02, "intermediate_size": 48, "max_position_embeddings": 512, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 17})";
// Qwen 2 as transformers 5 writes it.
const char* const newer = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
  "intermediate_size": 48, "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
  "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000.0,
  "rope_type": "default"}, "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
  "vocab_size": 17})";

LlamaConfig read(const std::string& text, const ModelOptions& options = {}) {
  const TemporaryFolder folder;
  files_test::write_text_file(folder / "config.json", text);
  return read_llama_config(folder / "config.json", options);
}

std::unique_ptr<Llama> made(const char* name, std::uint64_t seed = 1) {
  return make_seeded<Llama>(name, tiny(), {}, seed);
}

std::map<std::string, std::vector<double>> values_of(const nn::Module& model) {
  std::map<std::string, std::vector<double>> values;
  for (const nn::NamedTensor& p : model.parameters()) values[p.name] = to_host<double>(p.tensor);
  return values;
}

}  // namespace

TEST_CASE("llama files: config.json of transformers 4 and 5", "[models][llama][quick]") {
  const LlamaConfig llama = read(older);
  CHECK((llama.sizes.vocabulary == 17 && llama.sizes.layers == 2 && llama.sizes.width == 32));
  CHECK((llama.sizes.heads == 4 && llama.sizes.key_heads == 2 && llama.sizes.hidden == 48));
  CHECK((llama.sizes.sequence == 512 && llama.positions == 512 && llama.sizes.dropout == 0));
  CHECK((llama.theta == 500000 && llama.epsilon == 1e-5 && llama.is_tied && !llama.has_bias));
  CHECK(llama.scaling == RotaryScaling{32, 1, 4, 8192});
  ModelOptions options;
  options.sequence = 9, options.head = Head::chunked;
  const LlamaConfig qwen = read(newer, options);
  CHECK((qwen.sizes.key_heads == 1 && qwen.sizes.sequence == 9 && qwen.positions == 64));
  CHECK((qwen.theta == 1000000 && qwen.epsilon == 1e-6 && !qwen.is_tied && qwen.has_bias));
  CHECK((!qwen.scaling && qwen.sizes.head == Head::chunked));
}

TEST_CASE("llama files: a configuration is written and read again", "[models][llama][quick]") {
  const TemporaryFolder folder;
  for (const char* name : {"llama-3.2-1b", "llama-2-7b", "qwen2.5-0.5b", "qwen2.5-7b", "tiny-llama"}) {
    INFO(name);
    const LlamaConfig config = llama_config(name, tiny());
    write_llama_config(folder / "config.json", config, DType::bf16);
    const LlamaConfig again = read_llama_config(folder / "config.json", options_with(&ModelOptions::sequence, 16));
    CHECK((again.theta == config.theta && again.epsilon == config.epsilon && again.scaling == config.scaling));
    CHECK((again.is_tied == config.is_tied && again.has_bias == config.has_bias));
    CHECK(again.positions == config.positions);
    CHECK((again.sizes.key_heads == 2 && again.sizes.hidden == 48 && again.sizes.sequence == 16));
    const Json json = Json::parse(read_text_file(folder / "config.json"));
    CHECK(json.at("architectures").at(0) == (config.has_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM"));
    CHECK(json.at("torch_dtype") == "bfloat16");
  }
}

TEST_CASE("llama files: a folder keeps its window and its scaling", "[models][llama][quick]") {
  const TemporaryFolder folder;
  for (const char* name : {"tiny-llama", "qwen2.5-0.5b"}) {
    ModelOptions sizes = tiny();
    sizes.window = 5;
    write_llama_config(folder / "config.json", llama_config(name, sizes), DType::f32);
    CHECK(read_llama_config(folder / "config.json", options_with(&ModelOptions::sequence, 16)).sizes.window == 5);
  }
  CHECK(Json::parse(read_text_file(folder / "config.json")).at("use_sliding_window") == true);
  LlamaConfig config = llama_config("tiny-llama", tiny());
  for (const RotaryScaling& scaling : {RotaryScaling{7.3, 0.2, 5, 77, RotaryKind::llama3},
                                       RotaryScaling{7.3, 1, 4, config.positions, RotaryKind::linear},
                                       RotaryScaling{7.3, 1, 4, config.positions, RotaryKind::dynamic},
                                       RotaryScaling{7.3, 2, 9, 99, RotaryKind::yarn, 1.25, false}}) {
    config.scaling = scaling;
    write_llama_config(folder / "config.json", config, DType::f32);
    CHECK(read_llama_config(folder / "config.json").scaling == scaling);
  }
}

TEST_CASE("llama files: options beside those of a configuration are refused", "[models][llama][quick]") {
  CHECK_THROWS_AS(read("{"), FileError);
  CHECK_THROWS_AS(read_llama_config("/nowhere/config.json"), FileError);
  CHECK_THROWS_AS(read(older, tiny()), ValueError);
  Json json = Json::parse(older);
  json["attention_dropout"] = 0.1;
  CHECK(refusal<Error>([&] {
          read(json.dump());
        }).ends_with("attention_dropout 0, got 0.1; options with dropout 0 set another"));
  CHECK(read(json.dump(), options_with(&ModelOptions::dropout, 0.0)).sizes.dropout == 0);
}

TEST_CASE("llama files: a folder in one file or in shards is the same model", "[models][llama][quick]") {
  const Threads alone;
  for (const char* name : {"tiny-llama", "qwen2.5-7b"}) {
    const auto model = made(name);
    const auto values = values_of(*model);
    std::size_t total = 0, largest = 0;
    for (const nn::NamedTensor& p : model->parameters()) {
      total += p.tensor.bytes(), largest = std::max(largest, p.tensor.bytes());
    }
    const std::vector<nn::NamedTensor> list = model->parameters();
    const std::uint64_t of_two = list[0].tensor.bytes() + list[1].tensor.bytes();  // the first shard is full
    for (const std::uint64_t most : {std::uint64_t{1} << 30, std::uint64_t{16384}, of_two, std::uint64_t{1}}) {
      CAPTURE(name, most);
      const TemporaryFolder folder;
      save_llama(*model, folder / "model", most);
      const auto again = load_llama(folder / "model", {}, options_with(&ModelOptions::sequence, 16));
      CHECK(values_of(*again) == values);
      CHECK(run_pass(*again, make_batch(*again, 2)) == run_pass(*model, make_batch(*model, 2)));
      const bool is_whole = most > total;
      CHECK(std::filesystem::exists(folder / "model/model.safetensors") == is_whole);
      CHECK(std::filesystem::exists(folder / "model/model.safetensors.index.json") == !is_whole);
      if (is_whole) continue;
      const Json index = Json::parse(read_text_file(folder / "model/model.safetensors.index.json"));
      CHECK(index.at("metadata").at("total_size") == total);
      CHECK(index.at("weight_map").size() == values.size());
      std::map<std::string, std::size_t> bytes;
      for (const nn::NamedTensor& p : model->parameters()) {
        bytes[index.at("weight_map").at(p.name).get<std::string>()] += p.tensor.bytes();
      }
      std::size_t shards = 0, filled = most + 1;
      for (const nn::NamedTensor& p : list) {  // fills the last shard while it has room
        if (filled == 0 || filled + p.tensor.bytes() > most) ++shards, filled = 0;
        filled += p.tensor.bytes();
      }
      CHECK(bytes.size() == shards);
      for (const auto& [file, of_file] : bytes) {
        CHECK((of_file <= most || of_file <= largest));
        const SafetensorsReader shard(folder / ("model/" + file));
        CHECK(shard.header().metadata.at("format") == "pt");
      }
      // Loads the index, by its name, into an existing model.
      const auto other = made(name, 2);
      nn::load_weights(*other, folder / "model/model.safetensors.index.json");
      CHECK(values_of(*other) == values);
    }
  }
}

TEST_CASE("llama files: shards that others wrote, and a tied head that is there twice", "[models][llama][quick]") {
  const Threads alone;
  const TemporaryFolder folder;
  const auto model = made("tiny-llama");
  std::vector<nn::NamedTensor> first, second;
  for (const nn::NamedTensor& p : model->parameters()) (first.size() <= second.size() ? first : second).push_back(p);
  first.push_back({"lm_head.weight", model->parameters().front().tensor});
  nn::write_tensor_file(folder / "a.safetensors", first, {});
  nn::write_tensor_file(folder / "b.safetensors", second, {});
  Json map;
  for (const auto& p : first) map[p.name] = "a.safetensors";
  for (const auto& p : second) map[p.name] = "b.safetensors";
  const auto write_index = [&](const Json& weights) {
    files_test::write_text_file(folder / "model.safetensors.index.json", Json{{"weight_map", weights}}.dump());
  };
  write_llama_config(folder / "config.json", model->config(), DType::f32);
  write_index(map);
  const std::string path = folder / "";
  const auto load = [&] { return load_llama(path, {}, options_with(&ModelOptions::sequence, 16)); };
  CHECK(values_of(*load()) == values_of(*model));
  nn::load_weights(*model, path);
  // A head with other values is not the table.
  for (nn::NamedTensor& p : first) {
    if (p.name == "lm_head.weight") p.tensor = full(p.tensor.shape(), 0.5);
  }
  nn::write_tensor_file(folder / "a.safetensors", first, {});
  CHECK(refusal<Error>([&] { nn::load_weights(*model, path); })
            .ends_with(
                "'lm_head.weight': expected a copy of 'model.embed_tokens.weight', of which the model has one, got "
                "other values"));
  CHECK_THROWS_AS(load(), ValueError);
  first.back().tensor = model->parameters().front().tensor;
  nn::write_tensor_file(folder / "a.safetensors", first, {});

  const std::string norm = "model.norm.weight";
  const std::string own = map[norm], other = own == "a.safetensors" ? "b.safetensors" : "a.safetensors";
  const auto refused = [&](const std::function<void(Json&)>& change, const std::string& why) {
    INFO(why);
    Json changed = map;
    change(changed);
    write_index(changed);
    CHECK_THROWS_AS(load(), FileError);
    const std::string error = refusal<Error>(load);
    CAPTURE(error);
    CHECK(error.find(why) != std::string::npos);
  };
  refused([&](Json& j) { j[norm] = other; }, "tensor 'model.norm.weight' is not in '" + other + "'");
  refused([&](Json& j) { j[norm] = "../a.safetensors"; }, "expected the name of a file beside it");
  refused([&](Json& j) { j[norm] = "c.safetensors"; }, "c.safetensors");
  refused([&](Json& j) { j["more"] = own; }, "tensor 'more' is not in '" + own + "'");
  refused([&](Json& j) { j.erase(norm); }, "is not in weight_map");
  refused([&](Json& j) { j[norm] = 3; },
          "index.json: at byte 0: is not an index of weights: weight_map: expected texts");
  refused([&](Json& j) { j = Json::object(); }, "weight_map has no tensors");
  files_test::write_text_file(folder / "model.safetensors.index.json", "{");
  CHECK_THROWS_AS(load(), FileError);
  std::filesystem::remove(folder / "model.safetensors.index.json");
  CHECK(refusal<Error>(load).find("has neither model.safetensors nor") != std::string::npos);
  // A tensor in two shards.
  nn::write_tensor_file(folder / "b.safetensors", first, {});
  write_index(map);
  CHECK(refusal<Error>(load).find("as well") != std::string::npos);
  // Refuses to write shards next to a model.safetensors, which would be read instead.
  save_llama(*model, path);
  CHECK_THROWS_AS(save_llama(*model, path, 1000), FileError);
  CHECK_THROWS_AS(save_llama(*model, path, 0), ValueError);
  CHECK_THROWS_AS(save_llama(*model, folder / "config.json/x"), FileError);
}

TEST_CASE("llama files: weights are converted to the placement's dtypes, and checked on a dry device",
          "[models][llama][quick]") {
  const Threads alone;
  const TemporaryFolder folder;
  const auto model = made("llama-3-8b");
  save_llama(*model, folder / "m", 16384);
  const auto narrow = load_llama(folder / "m", {cpu, DType::bf16, DType::f32});
  for (const nn::NamedTensor& p : narrow->parameters()) {
    const bool is_norm = p.name.ends_with("norm.weight");
    CHECK(p.tensor.dtype() == (is_norm ? DType::f32 : DType::bf16));
    for (const nn::NamedTensor& whole : model->parameters()) {
      if (whole.name != p.name) continue;
      CHECK(to_host<double>(p.tensor) == to_host<double>(to_dtype(whole.tensor.detach(), p.tensor.dtype())));
    }
  }
  CHECK(load_llama(folder / "m", {dry(cpu)})->parameter_count() == model->parameter_count());
  // A layer more than the files have.
  Json json = Json::parse(read_text_file(folder / "m/config.json"));
  json["num_hidden_layers"] = 3;
  files_test::write_text_file(folder / "m/config.json", json.dump());
  CHECK_THROWS_AS(load_llama(folder / "m"), ValueError);
  json["num_hidden_layers"] = 2, json["intermediate_size"] = 32;
  files_test::write_text_file(folder / "m/config.json", json.dump());
  CHECK_THROWS_AS(load_llama(folder / "m"), ValueError);
}
