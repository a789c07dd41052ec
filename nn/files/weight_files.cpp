#include <thimble/nn/files/weight_files.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/nn/files/json_file.h>

namespace thimble::nn {
namespace weight_files_detail {

constexpr std::uint64_t most_index_bytes = 100'000'000;  // as a header of safetensors

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw FileError(path, 0, "is not an index of weights: " + why);
}

// Which file each tensor is in.
std::map<std::string, std::string> read_index(const std::string& path) {
  std::map<std::string, std::string> shard_of;
  try {
    shard_of = JsonKeys(path, most_index_bytes).text_map("weight_map");
  } catch (const ValueError& error) {
    refuse(path, error.what());
  }
  if (shard_of.empty()) refuse(path, "weight_map has no tensors");
  return shard_of;
}

}  // namespace weight_files_detail

WeightFiles::WeightFiles(const std::string& path) {
  const std::filesystem::path given(path);
  std::error_code unknown;
  if (!std::filesystem::is_directory(given, unknown)) {
    if (path.ends_with(".index.json")) {
      open_index(path);
    } else {
      add(path);
    }
  } else if (std::filesystem::exists(given / weight_file, unknown)) {
    add((given / weight_file).string());
  } else if (std::filesystem::exists(given / weight_index, unknown)) {
    open_index((given / weight_index).string());
  } else {
    throw FileError(path, 0,
                    "the folder has neither " + std::string(weight_file) + " nor " + std::string(weight_index));
  }
}

StoredWeight WeightFiles::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? StoredWeight{} : found->second;
}

void WeightFiles::add(const std::string& path) {
  files_.push_back(std::make_unique<SafetensorsReader>(path));
  const SafetensorsReader& file = *files_.back();
  for (const SafetensorsEntry& entry : file.header().tensors) {
    weights_.push_back({&file, &entry});
    const auto [other, is_new] = by_name_.try_emplace(entry.name, weights_.back());
    if (!is_new) {
      throw FileError(path, file.header().data_offset + entry.begin,
                      "tensor " + quote(entry.name) + " is in " + other->second.file->path() + " as well");
    }
  }
}

void WeightFiles::open_index(const std::string& path) {
  using weight_files_detail::refuse;
  const std::map<std::string, std::string> shard_of = weight_files_detail::read_index(path);
  std::set<std::string> names;
  for (const auto& [tensor, name] : shard_of) names.insert(name);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const std::string& name : names) {
    if (name.empty() || name == "." || name == ".." || name.find_first_of("/\\") != std::string::npos) {
      refuse(path, "file " + quote(name) + "; expected the name of a file beside it");
    }
    add((folder / name).string());
  }
  for (const auto& [tensor, name] : shard_of) {
    const StoredWeight weight = find(tensor);
    if (weight.file == nullptr || std::filesystem::path(weight.file->path()).filename() != name) {
      refuse(path, "tensor " + quote(tensor) + " is not in " + quote(name));
    }
  }
  for (const StoredWeight& weight : weights_) {
    if (shard_of.count(weight.entry->name) == 0) {
      refuse(path, "tensor " + quote(weight.entry->name) + " of " + weight.file->path() + " is not in weight_map");
    }
  }
}

std::string weight_shard(std::size_t number, std::size_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", number, count);
  return text;
}

std::string format_weight_index(const std::map<std::string, std::string>& shard_of, std::uint64_t total_bytes) {
  const nlohmann::ordered_json json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", shard_of}};
  return json.dump(2) + "\n";
}

}  // namespace thimble::nn
