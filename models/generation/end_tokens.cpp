#include <thimble/models/generation/end_tokens.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <thimble/core/error.h>
#include <thimble/nn/files/json_file.h>
#include <thimble/nn/tokens/tokenizer.h>

namespace thimble::models {
namespace end_tokens_detail {

constexpr std::array<std::string_view, 3> special_tokens = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>"};

// `eos_token_id` of a file: null, a token or a list of tokens.
std::vector<std::int64_t> read(const std::string& path) {
  const nn::JsonKeys keys(path);
  return keys.has("eos_token_id") ? keys.sizes("eos_token_id", 0) : std::vector<std::int64_t>();
}

}  // namespace end_tokens_detail

std::vector<std::int64_t> find_end_tokens(const std::string& folder, const TokenText& text) {
  std::vector<std::int64_t> tokens;
  for (const char* const name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code error;
    if (tokens.empty() && !folder.empty() && std::filesystem::is_regular_file(path, error)) {
      tokens = end_tokens_detail::read(path.string());
    }
  }
  if (tokens.empty() && text.tokenizer()) {
    for (const data::AddedToken& added : text.tokenizer()->parts().added) {
      const auto& ends = end_tokens_detail::special_tokens;
      if (added.is_special && std::find(ends.begin(), ends.end(), added.content) != ends.end()) {
        tokens.push_back(added.id);
      }
    }
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace thimble::models
