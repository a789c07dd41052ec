#include <thimble/models/generation/end_tokens.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/nn/files/json_file.h>
#include <thimble/nn/tokens/tokenizer.h>

namespace thimble::models {
namespace end_tokens_detail {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> special_tokens = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>"};

// `eos_token_id` of a file, which may be null, a number or a list of them.
std::vector<std::int64_t> read(const std::string& path) {
  const Json json = nn::read_json_object(path);
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return {};
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::vector<std::int64_t> tokens;
  for (const Json& token : list) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > 0xFFFFFFFF) {
      throw FileError(path, 0,
                      "key 'eos_token_id': expected a token or a list of tokens, got " + nn::json_text(*found));
    }
    tokens.push_back(token.get<std::int64_t>());
  }
  return tokens;
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
