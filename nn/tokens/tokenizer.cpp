#include <thimble/nn/tokens/tokenizer.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/nn/tokens/byte_letters.h>
#include <thimble/nn/tokens/unicode.h>

namespace thimble::data {
namespace tokenizer_detail {

[[noreturn]] void refuse(const std::string& part, const std::string& why) {
  throw ValueError("tokenizer: " + part + ": " + why);
}

std::string place(const char* part, std::size_t number) { return part + ("[" + std::to_string(number) + "]"); }

/// The bytes that a token decodes to: those of its letters, or its text where a character is no letter.
std::string bytes_of_token(const std::string& token) { return from_letters(token).value_or(token); }

/// Where the spaces begin that `text` ends with.
std::size_t last_spaces(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    std::size_t at = begin - 1;
    while (at > 0 && begin - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    const Character last = character_at(text, at);
    if (at + last.bytes != begin || class_of(last.code) != CharacterClass::space) break;
    begin = at;
  }
  return begin;
}

/// Where the spaces end that are in `text` from `at` on.
std::size_t first_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (class_of(next.code) != CharacterClass::space) break;
    at += next.bytes;
  }
  return at;
}

}  // namespace tokenizer_detail

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  add_vocabulary();
  add_merges();
  add_tokens();
  check_ends();
}

void Tokenizer::add_vocabulary() {
  using tokenizer_detail::refuse;
  const std::vector<std::string>& vocabulary = parts_.vocabulary;
  constexpr std::size_t most_tokens = std::size_t{1} << 24;
  if (vocabulary.size() > most_tokens)
    refuse("vocabulary", std::to_string(vocabulary.size()) + " tokens; at most 2^24");
  ids_.reserve(vocabulary.size());
  bytes_.reserve(vocabulary.size() + parts_.added.size());
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& token = vocabulary[id];
    if (token.empty()) refuse(tokenizer_detail::place("vocabulary", id), "a token without text");
    if (!ids_.try_emplace(token, static_cast<std::uint32_t>(id)).second) {
      refuse(tokenizer_detail::place("vocabulary", id), "token " + quote(token) + " is there twice");
    }
    bytes_.push_back(tokenizer_detail::bytes_of_token(token));
    if (parts_.ignores_merges && from_letters(token)) words_[bytes_.back()] = static_cast<std::uint32_t>(id);
  }
  for (std::size_t byte = 0; byte < first_.size(); ++byte) {
    std::string letter;
    append_character(letter, letter_of(static_cast<std::uint8_t>(byte)));
    const auto found = ids_.find(letter);
    if (found == ids_.end()) {
      refuse("vocabulary", "no token for byte " + std::to_string(byte) +
                               "; expected a byte-level vocabulary, which has one for each");
    }
    first_[byte] = found->second;
  }
}

void Tokenizer::add_merges() {
  using tokenizer_detail::refuse;
  const std::vector<std::string>& vocabulary = parts_.vocabulary;
  for (std::size_t i = 0; i < parts_.merges.size(); ++i) {
    const auto [left, right, result] = parts_.merges[i];
    for (const std::uint32_t id : {left, right, result}) {
      if (id < vocabulary.size()) continue;
      refuse(tokenizer_detail::place("merges", i),
             "token " + std::to_string(id) + "; allowed: below " + std::to_string(vocabulary.size()));
    }
    if (vocabulary[left] + vocabulary[right] != vocabulary[result]) {
      refuse(tokenizer_detail::place("merges", i),
             quote(vocabulary[left]) + " and " + quote(vocabulary[right]) + " make " + quote(vocabulary[result]));
    }
    if (!merges_.add(left, right, result)) {
      refuse(tokenizer_detail::place("merges", i),
             quote(vocabulary[left]) + " and " + quote(vocabulary[right]) + " merge already");
    }
  }
}

void Tokenizer::add_tokens() {
  using tokenizer_detail::refuse;
  std::unordered_map<std::string_view, std::size_t> seen;
  std::vector<std::string> raw, normalized;
  is_special_.assign(bytes_.size(), false);
  for (std::size_t i = 0; i < parts_.added.size(); ++i) {
    const AddedToken& token = parts_.added[i];
    const std::string part = tokenizer_detail::place("added_tokens", i);
    if (token.content.empty()) refuse(part, "a token without text");
    if (!seen.try_emplace(token.content, i).second) refuse(part, quote(token.content) + " is there twice");
    const auto known = ids_.find(token.content);
    const std::size_t id = known != ids_.end() ? known->second : bytes_.size();
    if (token.id != id) {
      refuse(part, quote(token.content) + " has id " + std::to_string(token.id) + "; allowed: " + std::to_string(id) +
                       (known != ids_.end() ? ", its id in the vocabulary" : ", the next one"));
    }
    const std::string form = token.is_normalized && parts_.is_nfc ? to_nfc(token.content) : token.content;
    if (known == ids_.end()) {
      bytes_.emplace_back();
      is_special_.push_back(false);
    }
    bytes_[id] = tokenizer_detail::bytes_of_token(form);
    if (token.is_special) is_special_[id] = true;
    (token.is_normalized ? normalized_places_ : raw_places_).push_back(i);
    (token.is_normalized ? normalized : raw).push_back(form);
  }
  raw_ = TextFinder(raw);
  normalized_ = TextFinder(normalized);
}

void Tokenizer::check_ends() const {
  for (const auto* ends : {&parts_.prefix, &parts_.suffix}) {
    for (const std::uint32_t id : *ends) {
      if (id < bytes_.size()) continue;
      tokenizer_detail::refuse(ends == &parts_.prefix ? "prefix" : "suffix",
                               "token " + std::to_string(id) + "; allowed: below " + std::to_string(bytes_.size()));
    }
  }
}

std::uint32_t Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : parts_.added) {
    if (added.content == token) return added.id;
  }
  if (const auto found = ids_.find(token); found != ids_.end()) return found->second;
  throw ValueError("tokenizer: no token " + quote(token) + "; allowed: one of its " + std::to_string(size()));
}

/// One text on its way to tokens.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const EncodeOptions& options) : tokenizer_(tokenizer), options_(options) {}

  std::vector<std::uint32_t> take() && { return std::move(tokens_); }

  void add_ends(const std::vector<std::uint32_t>& ends) { tokens_.insert(tokens_.end(), ends.begin(), ends.end()); }

  void encode(std::string_view text) {
    split(text, tokenizer_.raw_, tokenizer_.raw_places_, [this](std::string_view piece) {
      if (!tokenizer_.parts_.is_nfc) return encode_normalized(piece);
      const std::string normalized = to_nfc(piece);
      encode_normalized(normalized);
    });
  }

 private:
  void encode_normalized(std::string_view text) {
    split(text, tokenizer_.normalized_, tokenizer_.normalized_places_,
          [this](std::string_view piece) { encode_words(piece); });
  }

  /// Calls rest(piece) for what lies between the added tokens of `text`, and appends these.
  template <class Rest>
  void split(std::string_view text, const TextFinder& finder, const std::vector<std::size_t>& places, Rest&& rest) {
    std::size_t done = 0, from = 0;
    while (const auto found = finder.find(text, from)) {
      const AddedToken& token = tokenizer_.parts_.added[places[found->number]];
      from = found->end;
      if (options_.takes_special_as_text && token.is_special) continue;
      std::size_t begin = found->begin, end = found->end;
      if (token.strips_left) begin = std::max(done, tokenizer_detail::last_spaces(text.substr(0, begin)));
      if (token.strips_right) end = tokenizer_detail::first_spaces(text, end);
      if (done < begin) rest(text.substr(done, begin - done));
      tokens_.push_back(token.id);
      done = end;
    }
    if (done < text.size()) rest(text.substr(done));
  }

  void encode_words(std::string_view text) {
    seen_.clear();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = end_of_word(tokenizer_.parts_.pattern, text, at);
      encode_word(text.substr(at, end - at));
      at = end;
    }
  }

  void encode_word(std::string_view word) {
    const std::size_t first = tokens_.size();
    const bool is_noted = word.size() <= longest_noted;
    if (const auto before = is_noted ? seen_.find(word) : seen_.end(); before != seen_.end()) {
      for (std::size_t i = 0; i < before->second.count; ++i) tokens_.push_back(tokens_[before->second.first + i]);
      return;
    }
    if (const auto whole =
            tokenizer_.words_.empty() ? tokenizer_.words_.end() : tokenizer_.words_.find(std::string(word));
        whole != tokenizer_.words_.end()) {
      tokens_.push_back(whole->second);
    } else {
      word_.clear();
      for (const char byte : word) word_.push_back(tokenizer_.first_[static_cast<unsigned char>(byte)]);
      tokenizer_.merges_.apply(word_, room_);
      tokens_.insert(tokens_.end(), word_.begin(), word_.end());
    }
    if (is_noted && seen_.size() < most_noted) seen_[word] = {first, tokens_.size() - first};
  }

  // Words come again and again, and their tokens are those of the first time. Of a piece of text without added tokens.
  struct Seen {
    std::size_t first, count;  // in tokens_
  };
  static constexpr std::size_t longest_noted = 32, most_noted = 1 << 16;

  const Tokenizer& tokenizer_;
  const EncodeOptions& options_;
  std::vector<std::uint32_t> tokens_, word_;
  MergeTable::Room room_;
  std::unordered_map<std::string_view, Seen> seen_;
};

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() >= std::numeric_limits<std::uint32_t>::max()) {
    throw ValueError("tokenizer: a text of " + std::to_string(text.size()) + " bytes; allowed: less than 2^32 - 1");
  }
  Encoder encoder(*this, options);
  if (options.adds_ends) encoder.add_ends(parts_.prefix);
  encoder.encode(text);
  if (options.adds_ends) encoder.add_ends(parts_.suffix);
  return std::move(encoder).take();
}

std::string Tokenizer::decode(std::span<const std::uint32_t> tokens, bool skips_special) const {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= bytes_.size()) {
      throw ValueError("tokenizer: token " + std::to_string(tokens[i]) + " at position " + std::to_string(i) +
                       "; allowed: below " + std::to_string(bytes_.size()));
    }
    if (!skips_special || !is_special_[tokens[i]]) text += bytes_[tokens[i]];
  }
  return text;
}

}  // namespace thimble::data
