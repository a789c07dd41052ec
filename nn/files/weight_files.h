#pragma once
// The weights of one model in one safetensors file, or in several with an index, as on Hugging Face's hub:
// `model-00001-of-00003.safetensors`, ..., and `model.safetensors.index.json` with {"metadata": {"total_size": bytes},
// "weight_map": {tensor: file}}.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/nn/files/safetensors.h>

namespace thimble::nn {

/// A tensor of one of the files.
struct StoredWeight {
  const SafetensorsReader* file = nullptr;  ///< null if no file has the tensor
  const SafetensorsEntry* entry = nullptr;
};

/// Files open for reading; only their headers are in memory.
class WeightFiles {
 public:
  /// `path`: a safetensors file, an index (`*.index.json`), or a folder with `model.safetensors` or else
  /// `model.safetensors.index.json`. Throws FileError: not readable, not safetensors, not an index, or an index that
  /// points to another folder or whose tensors differ from its files'.
  explicit WeightFiles(const std::string& path);

  /// All tensors, file by file in the order of their bytes.
  const std::vector<StoredWeight>& weights() const noexcept { return weights_; }
  StoredWeight find(std::string_view name) const;
  /// The first file's metadata.
  const std::map<std::string, std::string>& metadata() const { return files_.front()->header().metadata; }

 private:
  void open_index(const std::string& path);
  void add(const std::string& path);

  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::vector<StoredWeight> weights_;
  std::map<std::string, StoredWeight, std::less<>> by_name_;
};

inline constexpr std::string_view weight_file = "model.safetensors";
inline constexpr std::string_view weight_index = "model.safetensors.index.json";
/// "model-00002-of-00010.safetensors" for shard 2 of 10.
std::string weight_shard(std::size_t number, std::size_t count);
/// The text of an index. `shard_of` maps each tensor to its file.
std::string format_weight_index(const std::map<std::string, std::string>& shard_of, std::uint64_t total_bytes);

}  // namespace thimble::nn
