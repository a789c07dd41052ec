#include <thimble/nn/tokens/tokenizer_file.h>

#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/nn/files/json_file.h>

namespace thimble::data {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 28;

/// A value of the file and its key: "model.vocab".
class Value {
 public:
  Value(const Json& json, std::string key, const std::string& path) : json_(json), key_(std::move(key)), path_(path) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw FileError(path_, 0,
                    "tokenizer: " + (key_.empty() ? std::string("the file") : "key " + quote(key_)) + ": " + why);
  }
  [[noreturn]] void refuse(const std::string& allowed) const {
    fail(quote(json_.dump(-1, ' ', true), 200) + "; expected " + allowed);
  }

  const Json& json() const { return json_; }
  bool is_null() const { return json_.is_null(); }
  std::size_t size() const { return json_.size(); }

  const Value& object(std::initializer_list<std::string_view> keys) const {
    if (!json_.is_object()) refuse("an object");
    for (const auto& [key, value] : json_.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      std::string known;
      for (const std::string_view k : keys) known += (known.empty() ? "" : ", ") + std::string(k);
      fail("unknown key " + quote(key) + "; known: " + known);
    }
    return *this;
  }
  const Value& array() const {
    if (!json_.is_array()) refuse("an array");
    return *this;
  }

  /// A member of an object, or null if it is missing.
  Value part(std::string_view name) const {
    static const Json none;
    const auto found = json_.find(name);
    return {found == json_.end() ? none : *found, (key_.empty() ? "" : key_ + ".") + std::string(name), path_};
  }
  Value part(std::size_t i) const { return {json_[i], key_ + "[" + std::to_string(i) + "]", path_}; }

  const std::string& text() const {
    if (!json_.is_string()) refuse("a text");
    return json_.get_ref<const std::string&>();
  }
  bool flag() const {
    if (!json_.is_boolean()) refuse("true or false");
    return json_.get<bool>();
  }
  bool flag_or(bool otherwise) const { return is_null() ? otherwise : flag(); }
  std::uint32_t id() const {
    if (!json_.is_number_unsigned() || json_.get<std::uint64_t>() > 0xFFFFFFFF) refuse("an id, from 0 to 2^32 - 1");
    return json_.get<std::uint32_t>();
  }
  void want_null() const {
    if (!is_null()) refuse("null");
  }
  void want_flag(bool wanted, bool otherwise) const {
    if (flag_or(otherwise) != wanted) refuse(wanted ? "true" : "false");
  }
  /// `type` of an object.
  const std::string& type() const {
    if (!json_.is_object()) refuse("an object with a 'type'");
    return part("type").text();
  }

 private:
  const Json& json_;
  std::string key_;
  const std::string& path_;
};

/// The document, without repeated keys.
Json parse_json(std::string_view text, const std::string& path) {
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {  // the parser's own end of a text
    throw FileError(path, nul, "tokenizer: a NUL byte; expected JSON");
  }
  const auto watch =
      nn::json_watch<Json>([&](const std::string& why) { throw FileError(path, 0, "tokenizer: " + why); });
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& error) {
    throw FileError(path, error.byte, "tokenizer: the file is not JSON");
  } catch (const Json::out_of_range&) {
    throw FileError(path, 0, "tokenizer: the file has a number beyond those of 64 bits");
  }
}

void read_vocabulary(const Value& vocab, TokenizerParts& parts) {
  if (!vocab.json().is_object()) vocab.refuse("an object of tokens and ids");
  parts.vocabulary.resize(vocab.size());
  for (const auto& [token, id] : vocab.json().items()) {
    if (token.empty()) vocab.fail("a token without text");
    const bool is_id = id.is_number_unsigned() && id.get<std::uint64_t>() < parts.vocabulary.size();
    if (!is_id || !parts.vocabulary[id.get<std::size_t>()].empty()) {
      vocab.fail("token " + quote(token) + " has id " + quote(id.dump(-1, ' ', true)) + "; expected 0 to " +
                 std::to_string(parts.vocabulary.size() - 1) + ", each once");
    }
    parts.vocabulary[id.get<std::size_t>()] = token;
  }
}

/// "left right", or ["left", "right"].
void read_merges(const Value& merges, TokenizerParts& parts) {
  merges.array();
  std::unordered_map<std::string_view, std::uint32_t> ids;
  for (std::uint32_t id = 0; id < parts.vocabulary.size(); ++id) ids[parts.vocabulary[id]] = id;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const Json& json = merges.json()[i];
    std::string_view left, right;
    if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
      left = json[0].get_ref<const std::string&>(), right = json[1].get_ref<const std::string&>();
    } else {
      const std::string_view both = json.is_string() ? std::string_view(json.get_ref<const std::string&>()) : "";
      const std::size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
        merges.part(i).refuse("two tokens, as \"a b\" or [\"a\", \"b\"]");
      }
      left = both.substr(0, space), right = both.substr(space + 1);
    }
    const std::string result = std::string(left) + std::string(right);
    for (const std::string_view token : {left, right, std::string_view(result)}) {
      if (!ids.contains(token)) merges.part(i).fail("token " + quote(token) + " is not in 'model.vocab'");
    }
    parts.merges.push_back({ids.at(left), ids.at(right), ids.at(result)});
  }
}

void read_model(const Value& model, TokenizerParts& parts) {
  model.object({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const Value type = model.part("type"); !type.is_null() && type.text() != "BPE") type.refuse("BPE");
  model.part("dropout").want_null();
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Value ends = model.part(name); !ends.is_null() && !ends.text().empty()) ends.refuse("null or \"\"");
  }
  // With a token for every byte nothing is unknown, so these keys have no effect.
  if (const Value unknown = model.part("unk_token"); !unknown.is_null()) unknown.text();
  model.part("fuse_unk").flag_or(false);
  model.part("byte_fallback").flag_or(false);
  parts.ignores_merges = model.part("ignore_merges").flag_or(false);
  read_vocabulary(model.part("vocab"), parts);
  read_merges(model.part("merges"), parts);
}

void read_added(const Value& added, TokenizerParts& parts) {
  if (added.is_null()) return;
  added.array();
  for (std::size_t i = 0; i < added.size(); ++i) {
    const Value token = added.part(i);
    token.object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    token.part("single_word").want_flag(false, false);
    parts.added.push_back({.id = token.part("id").id(),
                           .content = token.part("content").text(),
                           .is_special = token.part("special").flag_or(false),
                           .strips_left = token.part("lstrip").flag_or(false),
                           .strips_right = token.part("rstrip").flag_or(false),
                           .is_normalized = token.part("normalized").flag_or(true)});
  }
}

/// Reads ByteLevel. Returns `use_regex`: whether it cuts at GPT-2's pattern.
bool read_byte_level(const Value& step) {
  step.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  step.part("trim_offsets").flag_or(true);
  return step.part("use_regex").flag_or(true);
}

void read_pre_tokenizer(const Value& step, TokenizerParts& parts) {
  constexpr const char* allowed = "ByteLevel, or a Sequence of a Split and ByteLevel with 'use_regex' false";
  if (step.is_null()) step.refuse(allowed);
  if (step.type() == "ByteLevel") {
    step.part("add_prefix_space").want_flag(false, true);
    if (!read_byte_level(step)) step.part("use_regex").refuse("true, where there is no Split before");
    parts.pattern = WordPattern::gpt2;
    return;
  }
  if (step.type() != "Sequence") step.refuse(allowed);
  step.object({"type", "pretokenizers"});
  const Value steps = step.part("pretokenizers");
  steps.array();
  if (steps.size() != 2 || steps.part(0).type() != "Split" || steps.part(1).type() != "ByteLevel")
    steps.refuse(allowed);
  const Value split = steps.part(0), bytes = steps.part(1);
  split.object({"type", "pattern", "behavior", "invert"});
  if (split.part("behavior").text() != "Isolated") split.part("behavior").refuse("Isolated");
  split.part("invert").want_flag(false, false);
  const Value regex = split.part("pattern").object({"Regex"}).part("Regex");
  const auto pattern = find_word_pattern(regex.text());
  if (!pattern) {
    std::string known;
    for (const WordPattern p : word_patterns) {
      known += (known.empty() ? "" : ", ") + std::string(to_string(p)) + " " + std::string(regex_of(p));
    }
    regex.refuse("the patterns of " + known);
  }
  parts.pattern = *pattern;
  bytes.part("add_prefix_space").want_flag(false, true);
  if (read_byte_level(bytes)) bytes.part("use_regex").refuse("false, after a Split");
}

/// Special tokens around one text: [{"SpecialToken": {"id": ...}}, {"Sequence": {"id": "A"}}].
void read_template(const Value& step, TokenizerParts& parts) {
  step.object({"type", "single", "pair", "special_tokens"});
  const Value single = step.part("single"), names = step.part("special_tokens");
  single.array();
  bool is_after = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const Value piece = single.part(i);
    piece.object({"SpecialToken", "Sequence"});
    if (piece.size() != 1) piece.refuse("one of SpecialToken, Sequence");
    if (const Value text = piece.part("Sequence"); !text.is_null()) {
      text.object({"id", "type_id"});
      if (is_after || text.part("id").text() != "A") text.refuse("the text A, once");
      is_after = true;
      continue;
    }
    const Value token = piece.part("SpecialToken");
    token.object({"id", "type_id"});
    const std::string& name = token.part("id").text();
    if (!names.json().is_object()) names.refuse("an object of special tokens");
    if (!names.json().contains(name)) names.fail("no token " + quote(name) + ", which 'single' has");
    const Value ids = names.part(name).object({"id", "ids", "tokens"}).part("ids");
    ids.array();
    for (std::size_t k = 0; k < ids.size(); ++k) {
      (is_after ? parts.suffix : parts.prefix).push_back(ids.part(k).id());
    }
  }
  if (!is_after) single.refuse("a text A among special tokens");
}

void read_post_processor(const Value& step, TokenizerParts& parts) {
  constexpr const char* allowed = "null, ByteLevel, TemplateProcessing, or a Sequence of these two";
  if (step.is_null()) return;
  if (step.type() == "ByteLevel") {  // affects only offsets
    step.part("add_prefix_space").flag_or(true);
    read_byte_level(step);
  } else if (step.type() == "TemplateProcessing") {
    read_template(step, parts);
  } else if (step.type() == "Sequence") {
    const Value steps = step.object({"type", "processors"}).part("processors");
    steps.array();
    int templates = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Value inner = steps.part(i);
      if (inner.type() == "Sequence") inner.refuse("ByteLevel, TemplateProcessing");
      if (inner.type() == "TemplateProcessing" && ++templates > 1) inner.refuse("one TemplateProcessing");
      read_post_processor(inner, parts);
    }
  } else {
    step.refuse(allowed);
  }
}

}  // namespace

Tokenizer parse_tokenizer(std::span<const std::byte> file, const std::string& path) {
  const Json json = parse_json({reinterpret_cast<const char*>(file.data()), file.size()}, path);
  const Value whole(json, "", path);
  whole.object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                "decoder", "model"});
  if (const Value version = whole.part("version"); !version.is_null() && version.text() != "1.0") version.refuse("1.0");
  // Training cut and padded its texts with these; encoding one text does neither.
  for (const char* name : {"truncation", "padding"}) {
    const Value part = whole.part(name);
    if (!part.is_null()) part.refuse("null, which the file may be given: it then encodes whole texts");
  }
  TokenizerParts parts;
  if (const Value step = whole.part("normalizer"); !step.is_null()) {
    if (step.type() != "NFC") step.refuse("null, NFC");
    step.object({"type"});
    parts.is_nfc = true;
  }
  read_pre_tokenizer(whole.part("pre_tokenizer"), parts);
  read_post_processor(whole.part("post_processor"), parts);
  const Value decoder = whole.part("decoder");
  if (decoder.is_null() || decoder.type() != "ByteLevel") decoder.refuse("ByteLevel");
  read_byte_level(decoder);
  read_model(whole.part("model"), parts);
  read_added(whole.part("added_tokens"), parts);
  try {
    return Tokenizer(std::move(parts));
  } catch (const ValueError& error) {
    throw FileError(path, 0, error.what());
  }
}

Tokenizer read_tokenizer(const std::string& path) { return parse_tokenizer(read_whole_file(path, most_bytes), path); }

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level(bool uses_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", uses_regex}};
}

OrderedJson pre_tokenizer(WordPattern pattern) {
  if (pattern == WordPattern::gpt2) return byte_level(true);
  const OrderedJson split{
      {"type", "Split"}, {"pattern", {{"Regex", regex_of(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false)}}};
}

OrderedJson post_processor(const TokenizerParts& parts) {
  if (parts.prefix.empty() && parts.suffix.empty()) return byte_level(true);
  const std::size_t own = parts.vocabulary.size();
  const auto text_of = [&](std::uint32_t id) {
    for (const AddedToken& token : parts.added) {
      if (token.id == id) return token.content;
    }
    return id < own ? parts.vocabulary[id] : std::string();
  };
  OrderedJson single = OrderedJson::array(), tokens = OrderedJson::object();
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
  OrderedJson pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  const OrderedJson around{
      {"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
  return {{"type", "Sequence"}, {"processors", {byte_level(true), around}}};
}

OrderedJson added_tokens(const TokenizerParts& parts) {
  OrderedJson list = OrderedJson::array();
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

}  // namespace

std::string format_tokenizer(const TokenizerParts& parts) {
  const auto in_json = [](const std::string& token) { return OrderedJson(token).dump(); };
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null";
  const auto add = [&text](const char* key, const OrderedJson& value) {
    text += std::string(",\n  \"") + key + "\": " + value.dump();
  };
  add("added_tokens", added_tokens(parts));
  add("normalizer", parts.is_nfc ? OrderedJson{{"type", "NFC"}} : OrderedJson());
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
