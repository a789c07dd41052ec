#include <thimble/models/generation/weight_facts.h>

#include <charconv>
#include <filesystem>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/weight_files.h>

namespace thimble::models {
namespace weight_facts_detail {

constexpr std::string_view gpt_prefix = "transformer.";  // of GPT-2's public files

std::int64_t number(const WeightFacts& facts, const std::string& key) {
  const std::string text = facts.text(key);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty()) return 0;
  if (error != std::errc{} || stop != text.data() + text.size() || value < 1) {
    throw ValueError(facts.path + ": " + key + " " + quote(text) + " is no whole number from 1 on");
  }
  return value;
}

/// Size `axis` of a matrix of the file; 0: it has no such matrix.
std::int64_t size_of_matrix(const WeightFacts& facts, const std::string& name, int axis) {
  const auto found = facts.shapes.find(name);
  return found == facts.shapes.end() || found->second.rank() != 2 ? 0 : found->second[axis];
}

/// How many layers there are: names are `before`, a number, `after`.
std::int64_t count_layers(const WeightFacts& facts, const std::string& before, const std::string& after) {
  std::int64_t count = 0;
  while (facts.shapes.count(before + std::to_string(count) + after) != 0) ++count;
  return count;
}

void set_open(std::int64_t& size, std::int64_t value) {
  if (size == 0) size = value;
}

}  // namespace weight_facts_detail

std::string WeightFacts::text(const std::string& key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

WeightFacts read_weight_facts(const std::string& path, bool is_checkpoint) {
  WeightFacts facts{path, {}, {}, is_checkpoint};
  const nn::WeightFiles files(path);
  facts.metadata = files.metadata();
  if (is_checkpoint) {
    SafetensorsHeader header = files.weights().empty() ? SafetensorsHeader{} : files.weights().front().file->header();
    facts.metadata = nn::parse_checkpoint_info(header, path).metadata;
  }
  const std::string_view prefix = is_checkpoint ? std::string_view(checkpoint_prefix) : std::string_view();
  for (const nn::StoredWeight& weight : files.weights()) {
    std::string_view name = weight.entry->name;
    if (!name.starts_with(prefix) || weight.entry->shape.size() > 8) continue;
    name.remove_prefix(prefix.size());
    if (name.starts_with(weight_facts_detail::gpt_prefix)) name.remove_prefix(weight_facts_detail::gpt_prefix.size());
    Shape shape;
    for (const std::int64_t size : weight.entry->shape) shape.push_back(size);
    facts.shapes.emplace(name, shape);
  }
  return facts;
}

void fill_in(GenerationShape& shape, const WeightFacts& facts) {
  using namespace weight_facts_detail;
  Setup& setup = shape.setup;
  if (const std::string name = facts.text("model"); !name.empty() && name != setup.model) {
    throw ValueError(facts.path + ": it is of the model " + quote(name) + ", not of " + quote(setup.model));
  }
  shape.has_q8_weights = facts.text("format") == "thimble-q8_0-1";
  const std::filesystem::path config = std::filesystem::path(facts.path) / "config.json";
  std::error_code error;
  const bool is_llama = facts.shapes.count("model.embed_tokens.weight") != 0;
  if (is_llama && std::filesystem::exists(config, error)) {
    ModelOptions options;
    options.sequence = setup.sizes.sequence;
    shape.llama = read_llama_config(config.string(), options);
    return;
  }
  ModelOptions& sizes = setup.sizes;
  set_open(sizes.heads, number(facts, "heads"));
  set_open(sizes.window, number(facts, "window"));
  if (facts.shapes.count("wte.weight") != 0) {
    set_open(sizes.vocabulary, size_of_matrix(facts, "wte.weight", 0));
    set_open(sizes.width, size_of_matrix(facts, "wte.weight", 1));
    set_open(sizes.sequence, size_of_matrix(facts, "wpe.weight", 0));
    set_open(sizes.layers, count_layers(facts, "h.", ".ln_1.weight"));
  } else if (is_llama) {
    set_open(sizes.vocabulary, size_of_matrix(facts, "model.embed_tokens.weight", 0));
    set_open(sizes.width, size_of_matrix(facts, "model.embed_tokens.weight", 1));
    set_open(sizes.layers, count_layers(facts, "model.layers.", ".input_layernorm.weight"));
    set_open(sizes.hidden, size_of_matrix(facts, "model.layers.0.mlp.gate_proj.weight", 0));
    const std::int64_t keys = size_of_matrix(facts, "model.layers.0.self_attn.k_proj.weight", 0);
    const std::int64_t heads = sizes.heads > 0 ? sizes.heads : llama_config(setup.model, {}).sizes.heads;
    if (keys > 0 && heads > 0 && sizes.width % heads == 0) {
      set_open(sizes.key_heads, keys / (sizes.width / heads));
    }
  }
}

}  // namespace thimble::models
