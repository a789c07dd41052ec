#include <thimble/nn/files/weight_files.h>
#include <thimble/nn/files/weights.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/files/file.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/cut_tensors.h>
#include <thimble/nn/files/json_file.h>
#include <thimble/nn/files/public_names.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::nn {

namespace {

constexpr std::uint64_t most_index_bytes = 100'000'000;  // like a header of safetensors

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw FileError(path, 0, "is not an index of weights: " + why);
}

// The file of each tensor.
std::map<std::string, std::string> read_index(const std::string& path) {
  std::map<std::string, std::string> shard_of;
  try {
    shard_of = JsonKeys(path, most_index_bytes).text_map("weight_map");
  } catch (const ValueError& error) {
    refuse_file(path, std::string(error.what()).substr(path.size() + 2));  // without "FILE: ", which refuse() writes
  }
  if (shard_of.empty()) refuse_file(path, "weight_map has no tensors");
  return shard_of;
}

}  // namespace

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
  const std::map<std::string, std::string> shard_of = read_index(path);
  std::set<std::string> names;
  for (const auto& [tensor, name] : shard_of) names.insert(name);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const std::string& name : names) {
    if (name.empty() || name == "." || name == ".." || name.find_first_of("/\\") != std::string::npos) {
      refuse_file(path, "file " + quote(name) + "; expected the name of a file beside it");
    }
    add((folder / name).string());
  }
  for (const auto& [tensor, name] : shard_of) {
    const StoredWeight weight = find(tensor);
    if (weight.file == nullptr || std::filesystem::path(weight.file->path()).filename() != name) {
      refuse_file(path, "tensor " + quote(tensor) + " is not in " + quote(name));
    }
  }
  for (const StoredWeight& weight : weights_) {
    if (shard_of.count(weight.entry->name) == 0) {
      refuse_file(path, "tensor " + quote(weight.entry->name) + " of " + weight.file->path() + " is not in weight_map");
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

namespace {

constexpr std::string_view file_prefix = "transformer.";

std::vector<NamedTensor> all_tensors(const Module& module) {
  std::vector<NamedTensor> list = module.parameters();
  for (NamedTensor& buffer : module.buffers()) list.push_back(std::move(buffer));
  return list;
}

std::vector<FileTensor> file_tensors(const Module& module) {
  const CutParameters cuts(module);
  std::vector<FileTensor> list;
  for (const NamedTensor& t : all_tensors(module)) list.push_back(cuts.of_parameter(t));
  return list;
}

/// Appends the tensors one after the other and assembles shards.
void assemble(const std::vector<FileTensor>& tensors, FunctionRef<void(const NamedTensor&)> append) {
  Assembly assembly(append);
  for (const FileTensor& t : tensors) {
    fetch_parameters(t.here);
    assembly.put(t);
  }
}

// Whether the last dotted parts of `name` are `suffix`.
bool has_suffix(std::string_view name, std::string_view suffix) {
  if (name == suffix) return true;
  return name.size() > suffix.size() && name.ends_with(suffix) && name[name.size() - suffix.size() - 1] == '.';
}

// Pairs of tensors in the files and in the model.
struct Match {
  std::vector<std::pair<StoredWeight, FileTensor>> pairs;
  std::vector<std::pair<StoredWeight, StoredWeight>> copies;  // a tensor in use, and its copy under another name
  std::vector<std::string> missing, unused;
};

/// Names that a tensor of the module may have in files, its name in the module first.
std::vector<std::vector<std::string>> names_of(const std::string& name, const PublicNames* names,
                                               const LoadOptions& options) {
  std::vector<std::vector<std::string>> all{{options.prefix + name}};
  if (!options.prefix.empty()) return all;
  all.push_back({std::string(file_prefix) + name});
  if (names == nullptr) return all;
  for (auto& other : names->names_in_files(name)) all.push_back(std::move(other));
  return all;
}

/// Tensors of the files that a tensor of the module concatenates; empty if one of them is missing.
std::vector<StoredWeight> find_all(const WeightFiles& files, const std::vector<std::string>& names) {
  std::vector<StoredWeight> found;
  for (const std::string& name : names) {
    found.push_back(files.find(name));
    if (found.back().entry == nullptr) return {};
  }
  return found;
}

/// A target's rows for each of `count` tensors of a file.
std::vector<FileTensor> rows_of(const FileTensor& target, std::size_t count) {
  if (count == 1) return {target};
  const NamedTensor& whole = target.whole;
  const std::int64_t rows = whole.tensor.size(0) / static_cast<std::int64_t>(count);
  std::vector<FileTensor> list;
  for (std::int64_t first = 0; list.size() < count; first += rows) {
    const Tensor part = view::slice(whole.tensor, 0, first, first + rows);
    list.push_back({{whole.name, part, whole.layout}, part});
  }
  return list;
}

Match match_tensors(const std::vector<FileTensor>& targets, const WeightFiles& files, const PublicNames* names,
                    const LoadOptions& options) {
  Match result;
  std::set<const SafetensorsEntry*> used;
  std::set<std::string> missing;
  for (const FileTensor& target : targets) {
    const std::string& name = target.whole.name;
    std::vector<StoredWeight> taken;
    for (const std::vector<std::string>& others : names_of(name, names, options)) {
      if (others.size() > 1 && target.shard) continue;  // shards are read from one tensor
      const std::vector<StoredWeight> found = find_all(files, others);
      if (!taken.empty() && found.size() != taken.size()) continue;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const bool is_new = used.insert(found[i].entry).second;
        if (is_new && !taken.empty()) result.copies.emplace_back(taken[i], found[i]);
      }
      if (!found.empty() && taken.empty()) taken = found;
    }
    if (taken.empty()) {
      if (missing.insert(name).second) result.missing.push_back(name);
      continue;
    }
    const std::vector<FileTensor> parts = rows_of(target, taken.size());
    for (std::size_t i = 0; i < taken.size(); ++i) result.pairs.emplace_back(taken[i], parts[i]);
  }
  std::vector<std::string> suffixes = options.skipped_suffixes;
  if (names != nullptr && options.prefix.empty()) {
    for (std::string& suffix : names->passed_over()) suffixes.push_back(std::move(suffix));
  }
  for (const StoredWeight& weight : files.weights()) {
    const std::string& name = weight.entry->name;
    if (!name.starts_with(options.prefix)) continue;
    const bool is_skipped = std::any_of(suffixes.begin(), suffixes.end(),
                                        [&](const std::string& suffix) { return has_suffix(name, suffix); });
    if (!is_skipped && !used.count(weight.entry)) result.unused.push_back(name);
  }
  return result;
}

// Divides the tensors, in order, into shards of at most `most_bytes`.
std::vector<std::vector<NamedTensor>> shards_of(const std::vector<NamedTensor>& tensors, std::uint64_t most_bytes) {
  std::vector<std::vector<NamedTensor>> shards(1);
  std::uint64_t bytes = 0;
  for (const NamedTensor& t : tensors) {
    if (!shards.back().empty() && t.tensor.bytes() > most_bytes - std::min(most_bytes, bytes)) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(t);
    bytes += t.tensor.bytes();
  }
  return shards;
}

// "'a', 'b' and 3 more"
std::string text(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) list += (i > 0 ? ", " : "") + quote(names[i]);
  return names.size() <= most ? list : list + " and " + std::to_string(names.size() - most) + " more";
}

/// Throws ValueError if a tensor has different values under two names.
void require_copies(const Match& match, const std::string& path, FileStaging& staging) {
  for (const auto& [first, second] : match.copies) {
    const SafetensorsEntry &a = *first.entry, &b = *second.entry;
    bool is_same = a.dtype == b.dtype && a.shape == b.shape;
    for (std::uint64_t at = 0; is_same && at < a.bytes(); at += file_piece_bytes) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(file_piece_bytes, a.bytes() - at));
      const auto of_a = staging.of_file(count).first(count), of_b = staging.of_tensor(count).first(count);
      first.file->read_part(a, at, of_a);
      second.file->read_part(b, at, of_b);
      is_same = std::equal(of_a.begin(), of_a.end(), of_b.begin());
    }
    if (is_same) continue;
    throw ValueError("load_weights: " + path + ": " + quote(b.name) + ": expected a copy of " + quote(a.name) +
                     ", of which the model has one, got other values");
  }
}

void require_all(const Match& match, const std::string& path, bool is_checkpoint) {
  if (is_checkpoint && !(match.missing.empty() && match.unused.empty())) {
    throw ValueError("load_weights: " + path + ": expected weights, got a checkpoint, which load_checkpoint reads");
  }
  std::string why;
  if (!match.missing.empty()) why = "the file lacks " + text(match.missing);
  if (!match.unused.empty()) why += (why.empty() ? "" : "; ") + ("the model lacks " + text(match.unused));
  if (!why.empty()) throw ValueError("load_weights: " + path + ": " + why);
}

}  // namespace

void save_weights(const Module& module, const std::string& path, const Metadata& metadata) {
  const ParameterUse use;
  const std::vector<FileTensor> tensors = file_tensors(module);
  write_tensor_file(path, {}, wholes_of(tensors), metadata,
                    [&](FunctionRef<void(const NamedTensor&)> append) { assemble(tensors, append); });
}

void visit_save_weights(const Module& module) {
  const ParameterUse use;
  assemble(file_tensors(module), [](const NamedTensor&) {});
}

void save_weight_folder(const Module& module, const std::string& folder, std::uint64_t most_bytes,
                        const Metadata& metadata) {
  if (most_bytes == 0) throw ValueError("save_weight_folder: shards of at most 0 bytes; expected at least 1");
  if (!CutParameters(module).empty()) {
    throw ValueError("save_weight_folder: of a model in shards; expected whole layers, and save_weights() of shards");
  }
  const std::filesystem::path into(folder);
  std::error_code error;
  std::filesystem::create_directories(into, error);
  if (error) throw FileError(folder, 0, "cannot make the folder: " + error.message());
  const ParameterUse use;
  const std::string whole = (into / weight_file).string();
  const auto shards = shards_of(all_tensors(module), most_bytes);
  if (shards.size() == 1) return write_tensor_file(whole, shards.front(), metadata);
  if (std::filesystem::exists(whole, error)) {
    throw FileError(whole, 0, "is there, and would be read in place of " + std::to_string(shards.size()) + " shards");
  }
  const std::string index = (into / weight_index).string();
  remove_file(index);  // it would name a mix of old and new shards
  std::map<std::string, std::string> shard_of;
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = weight_shard(i + 1, shards.size());
    write_tensor_file((into / name).string(), shards[i], metadata);
    for (const NamedTensor& t : shards[i]) shard_of[t.name] = name, total_bytes += t.tensor.bytes();
  }
  write_file_atomically(index, format_weight_index(shard_of, total_bytes));
}

LoadedWeights load_weights(Module& module, const std::string& path, const LoadOptions& options) {
  const ParameterUse use;
  const WeightFiles files(path);
  const auto* const names = dynamic_cast<const PublicNames*>(&module);
  Match match = match_tensors(file_tensors(module), files, names, options);
  if (options.is_strict) require_all(match, path, options.prefix.empty() && is_checkpoint(files.metadata()));
  for (const auto& [weight, target] : match.pairs) {
    check_file_tensor("load_weights: " + path, *weight.entry, target.whole, Conversion::floating);
  }
  for (const auto& [weight, target] : match.pairs) weight.file->verify(*weight.entry);
  FileStaging staging;
  require_copies(match, path, staging);
  for (const auto& [weight, target] : match.pairs) {
    check_state_numbers("load_weights: " + path, *weight.file, *weight.entry, target.whole, staging);
  }
  for (const auto& [weight, target] : match.pairs) read_file_tensor(*weight.file, *weight.entry, target, staging);
  return {files.metadata(), std::move(match.missing), std::move(match.unused)};
}

void visit_weights(const Module& module) {
  const ParameterUse use;
  for (const NamedTensor& t : all_tensors(module)) {
    fetch_parameters(t.tensor);
    if (t.tensor.storage()) t.tensor.storage()->bump_version();
  }
}

std::string weights_sum(const std::string& path) {
  constexpr std::uint64_t most = 4096;
  const WeightFiles files(path);
  std::uint32_t sum = 0;
  std::vector<std::byte> bytes;
  for (const StoredWeight& weight : files.weights()) {
    const SafetensorsEntry& entry = *weight.entry;
    std::string text = entry.name + " " + std::string(to_string(entry.dtype));
    for (const std::int64_t size : entry.shape) text += " " + std::to_string(size);
    sum = crc32c(std::as_bytes(std::span(text)), sum);
    bytes.resize(std::min(most, entry.bytes()));
    for (const std::uint64_t first : {std::uint64_t{0}, entry.bytes() - bytes.size()}) {
      weight.file->read_part(entry, first, bytes);
      sum = crc32c(bytes, sum);
    }
  }
  char text[16];
  std::snprintf(text, sizeof text, "%08x", sum);
  return text;
}

}  // namespace thimble::nn
