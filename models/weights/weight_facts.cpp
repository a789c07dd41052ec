#include <thimble/models/weights/weight_facts.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/weight_files.h>

namespace thimble::models {
namespace weight_facts_detail {

constexpr std::string_view gpt_prefix = "transformer.";  // of GPT-2's public files

/// The config.json of a folder, or of a file in it that is named as the hub names weights; empty: there is none.
std::string config_beside(const std::string& path) {
  std::error_code unknown;
  std::filesystem::path folder(path);
  if (!std::filesystem::is_directory(folder, unknown)) {
    const std::string name = folder.filename().string();
    const bool is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    if (name != nn::weight_file && name != nn::weight_index && !is_shard) return {};
    folder = folder.parent_path();
  }
  folder /= "config.json";
  return std::filesystem::exists(folder, unknown) ? folder.string() : std::string();
}

}  // namespace weight_facts_detail

std::string WeightFacts::text(const std::string& key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

WeightFacts read_weight_facts(const std::string& path, bool is_checkpoint) {
  WeightFacts facts{path, {}, {}};
  facts.is_checkpoint = is_checkpoint;
  const nn::WeightFiles files(path);
  facts.metadata = files.metadata();
  if (is_checkpoint) {
    SafetensorsHeader header = files.weights().empty() ? SafetensorsHeader{} : files.weights().front().file->header();
    facts.metadata = nn::parse_checkpoint_info(header, path).metadata;
  } else {
    facts.config = weight_facts_detail::config_beside(path);
  }
  const std::string_view prefix = is_checkpoint ? std::string_view(checkpoint_prefix) : std::string_view();
  for (const nn::StoredWeight& weight : files.weights()) {
    facts.bytes += weight.entry->bytes();
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

}  // namespace thimble::models
