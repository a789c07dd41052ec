#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/files/file.h>
#include <thimble/nn/tokens/tokenizer_file.h>

namespace thimble::data {
namespace tokenizer_write_detail {

using Json = nlohmann::ordered_json;

Json byte_level(bool uses_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", uses_regex}};
}

Json pre_tokenizer(WordPattern pattern) {
  if (pattern == WordPattern::gpt2) return byte_level(true);
  const Json split{
      {"type", "Split"}, {"pattern", {{"Regex", regex_of(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false)}}};
}

Json post_processor(const TokenizerParts& parts) {
  if (parts.prefix.empty() && parts.suffix.empty()) return byte_level(true);
  const std::size_t own = parts.vocabulary.size();
  const auto text_of = [&](std::uint32_t id) {
    for (const AddedToken& token : parts.added) {
      if (token.id == id) return token.content;
    }
    return id < own ? parts.vocabulary[id] : std::string();
  };
  Json single = Json::array(), tokens = Json::object();
  const auto add_ends = [&](const std::vector<std::uint32_t>& ends) {
    for (const std::uint32_t id : ends) {
      const std::string text = text_of(id);
      single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    }
  };
  add_ends(parts.prefix);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add_ends(parts.suffix);
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  const Json around{{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
  return {{"type", "Sequence"}, {"processors", {byte_level(true), around}}};
}

Json added_tokens(const TokenizerParts& parts) {
  Json list = Json::array();
  for (const AddedToken& token : parts.added) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", false},
                    {"lstrip", token.strips_left},
                    {"rstrip", token.strips_right},
                    {"normalized", token.is_normalized},
                    {"special", token.is_special}});
  }
  return list;
}

}  // namespace tokenizer_write_detail

std::string format_tokenizer(const TokenizerParts& parts) {
  using namespace tokenizer_write_detail;
  const auto in_json = [](const std::string& token) { return Json(token).dump(); };
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null";
  const auto add = [&text](const char* key, const Json& value) {
    text += std::string(",\n  \"") + key + "\": " + value.dump();
  };
  add("added_tokens", added_tokens(parts));
  add("normalizer", parts.is_nfc ? Json{{"type", "NFC"}} : Json());
  add("pre_tokenizer", pre_tokenizer(parts.pattern));
  add("post_processor", post_processor(parts));
  add("decoder", byte_level(true));
  text += ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n";
  text += "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n";
  text += "    \"byte_fallback\": false,\n    \"ignore_merges\": ";
  text += parts.ignores_merges ? "true" : "false";
  text += ",\n    \"vocab\": {";
  for (std::size_t id = 0; id < parts.vocabulary.size(); ++id) {
    text += (id == 0 ? "\n      " : ",\n      ") + in_json(parts.vocabulary[id]) + ": " + std::to_string(id);
  }
  text += "\n    },\n    \"merges\": [";
  for (std::size_t i = 0; i < parts.merges.size(); ++i) {
    const auto& [left, right, result] = parts.merges[i];
    text += (i == 0 ? "\n      [" : ",\n      [") + in_json(parts.vocabulary[left]) + ", " +
            in_json(parts.vocabulary[right]) + "]";
  }
  text += "\n    ]\n  }\n}\n";
  return text;
}

void write_tokenizer(const std::string& path, const Tokenizer& tokenizer) {
  write_file_atomically(path, std::string_view(format_tokenizer(tokenizer.parts())));
}

}  // namespace thimble::data
