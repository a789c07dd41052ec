#include <thimble/nn/files/weights.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/nn/files/state_numbers.h>

namespace thimble::nn {
namespace weights_detail {

constexpr std::string_view prefix = "transformer.";

std::vector<NamedTensor> all_tensors(const Module& module) {
  std::vector<NamedTensor> list = module.parameters();
  for (NamedTensor& buffer : module.buffers()) list.push_back(std::move(buffer));
  return list;
}

// Whether the last dotted parts of `name` are `suffix`.
bool has_suffix(std::string_view name, std::string_view suffix) {
  if (name == suffix) return true;
  return name.size() > suffix.size() && name.ends_with(suffix) && name[name.size() - suffix.size() - 1] == '.';
}

// Which tensor of the file goes into which of the model.
struct Match {
  std::vector<std::pair<const SafetensorsEntry*, NamedTensor>> pairs;
  std::vector<std::string> missing, unused;
};

Match match(const std::vector<NamedTensor>& targets, const SafetensorsHeader& header, const LoadOptions& options) {
  Match result;
  std::set<const SafetensorsEntry*> used;
  for (const NamedTensor& target : targets) {
    const SafetensorsEntry* entry = header.find(target.name);
    if (!entry) entry = header.find(std::string(prefix) + target.name);
    if (entry) {
      used.insert(entry);
      result.pairs.emplace_back(entry, target);
    } else {
      result.missing.push_back(target.name);
    }
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    const auto& suffixes = options.skipped_suffixes;
    const bool is_skipped = std::any_of(suffixes.begin(), suffixes.end(),
                                        [&](const std::string& suffix) { return has_suffix(entry.name, suffix); });
    if (!is_skipped && !used.count(&entry)) result.unused.push_back(entry.name);
  }
  return result;
}

// "'a', 'b' and 3 more".
std::string text(const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) list += (i > 0 ? ", " : "") + quote(names[i]);
  return names.size() <= most ? list : list + " and " + std::to_string(names.size() - most) + " more";
}

void require_all(const Match& match, const std::string& path) {
  std::string why;
  if (!match.missing.empty()) why = "the file lacks " + text(match.missing);
  if (!match.unused.empty()) why += (why.empty() ? "" : "; ") + ("the model lacks " + text(match.unused));
  if (!why.empty()) throw ValueError("load_weights: " + path + ": " + why);
}

}  // namespace weights_detail

void save_weights(const Module& module, const std::string& path, const Metadata& metadata) {
  const ParameterUse use;
  write_tensor_file(path, weights_detail::all_tensors(module), metadata);
}

LoadedWeights load_weights(Module& module, const std::string& path, const LoadOptions& options) {
  const ParameterUse use;
  const SafetensorsReader file(path);
  weights_detail::Match match = weights_detail::match(weights_detail::all_tensors(module), file.header(), options);
  if (options.is_strict) weights_detail::require_all(match, path);
  for (const auto& [entry, target] : match.pairs) {
    check_file_tensor("load_weights: " + path, *entry, target, Conversion::floating);
  }
  for (const auto& [entry, target] : match.pairs) file.verify(*entry);
  FileStaging staging;
  for (const auto& [entry, target] : match.pairs) {
    check_state_numbers("load_weights: " + path, file, *entry, target, staging);
  }
  for (const auto& [entry, target] : match.pairs) read_file_tensor(file, *entry, target, staging);
  return {file.header().metadata, std::move(match.missing), std::move(match.unused)};
}

}  // namespace thimble::nn
