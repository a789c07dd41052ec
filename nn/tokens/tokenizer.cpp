#include <thimble/nn/tokens/tokenizer.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include <utf8proc.h>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/printable.h>

namespace thimble::data {

namespace {

constexpr std::uint32_t code_points = 0x110000;  // Unicode's; a byte b that is not UTF-8 has code code_points + b
constexpr std::uint32_t before_finals = 0x11A7;  // a Hangul vowel; utf8proc 2.8 drops it after a syllable

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

void append_nfc(std::string& out, std::string_view utf8) {
  utf8proc_uint8_t* form = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size =
      utf8proc_map(bytes_of(utf8), static_cast<utf8proc_ssize_t>(utf8.size()), &form, options);
  if (size < 0) throw std::bad_alloc();  // the only error for valid UTF-8
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(form, std::free);
  out.append(reinterpret_cast<const char*>(form), static_cast<std::size_t>(size));
}

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = 0;
  const std::string_view rest = text.substr(at, 4);
  const auto size = utf8proc_iterate(bytes_of(rest), static_cast<utf8proc_ssize_t>(rest.size()), &code);
  if (size <= 0) return {code_points + first, 1};
  return {static_cast<std::uint32_t>(code), static_cast<std::size_t>(size)};
}

void append_character(std::string& text, std::uint32_t code) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

CharacterClass class_of(std::uint32_t code) {
  if (code >= code_points) return CharacterClass::other;
  if ((code >= '\t' && code <= '\r') || code == 0x85) return CharacterClass::space;  // controls with White_Space
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharacterClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharacterClass::number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharacterClass::space;
    default:
      return CharacterClass::other;
  }
}

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    // Line by line, since utf8proc keeps four bytes a character. Nothing composes with a line break or before_finals.
    std::size_t end = at;
    while (end < text.size() && (end == at || text[end - 1] != '\n')) {
      const Character next = character_at(text, end);
      if (next.code >= code_points || (next.code == before_finals && end > at)) break;
      end += next.bytes;
    }
    if (end > at) {
      append_nfc(out, text.substr(at, end - at));
    } else {
      out += text[end++];
    }
    at = end;
  }
  return out;
}

namespace {

constexpr std::uint32_t no_byte = 256, hidden_from = 0x100;

constexpr bool is_visible(std::uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Table {
  std::array<std::uint32_t, 256> letters{};
  std::array<std::uint32_t, 512> bytes{};

  constexpr Table() {
    bytes.fill(no_byte);
    std::uint32_t hidden = hidden_from;
    for (std::uint32_t byte = 0; byte < letters.size(); ++byte) {
      letters[byte] = is_visible(byte) ? byte : hidden++;
      bytes[letters[byte]] = byte;
    }
  }
};

constexpr Table table;

}  // namespace

std::uint32_t letter_of(std::uint8_t byte) { return table.letters[byte]; }

std::optional<std::string> from_letters(std::string_view letters) {
  const auto& byte_of = table.bytes;
  std::string bytes;
  for (std::size_t at = 0; at < letters.size();) {
    const Character c = character_at(letters, at);
    if (c.code >= byte_of.size() || byte_of[c.code] == no_byte) return std::nullopt;
    bytes += static_cast<char>(byte_of[c.code]);
    at += c.bytes;
  }
  return bytes;
}

TextFinder::TextFinder(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    is_first_[static_cast<unsigned char>(text[0])] = true;
    sorted_.emplace_back(text, sorted_.size());
  }
  std::sort(sorted_.begin(), sorted_.end());
}

std::optional<TextFinder::Found> TextFinder::find(std::string_view text, std::size_t from) const {
  if (sorted_.empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!is_first_[static_cast<unsigned char>(text[begin])]) continue;
    // Texts that match `text` so far are neighbours in sorted_. Each byte narrows the range.
    std::optional<Found> longest;
    auto low = sorted_.begin(), high = sorted_.end();
    for (std::size_t size = 0; low != high; ++size) {
      if (low->first.size() == size) {
        longest = {low->second, begin, begin + size};
        if (++low == high) break;
      }
      if (begin + size == text.size()) break;
      const auto byte = static_cast<unsigned char>(text[begin + size]);
      const auto at = [size](const auto& entry) { return static_cast<unsigned char>(entry.first[size]); };
      low = std::partition_point(low, high, [&](const auto& entry) { return at(entry) < byte; });
      high = std::partition_point(low, high, [&](const auto& entry) { return at(entry) == byte; });
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

bool MergeTable::add(std::uint32_t left, std::uint32_t right, std::uint32_t result) {
  const auto rank = static_cast<std::uint32_t>(merges_.size());
  return merges_.try_emplace(std::uint64_t{left} << 32 | right, Merge{rank, result}).second;
}

const MergeTable::Merge* MergeTable::find(std::uint32_t left, std::uint32_t right) const {
  const auto found = merges_.find(std::uint64_t{left} << 32 | right);
  return found == merges_.end() ? nullptr : &found->second;
}

void MergeTable::apply(std::vector<std::uint32_t>& tokens, Room& room) const {
  constexpr std::uint32_t gone = 0xFFFFFFFF;
  const auto size = static_cast<std::uint32_t>(tokens.size());
  if (size < 2) return;
  // A linked list over `tokens`: a merged token takes its left token's place.
  room.before.resize(size);
  room.after.resize(size);
  room.waiting.clear();
  const auto is_later = [](const Waiting& a, const Waiting& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto merge_at = [&](std::uint32_t at) -> const Merge* {
    const std::uint32_t right = room.after[at];
    return right == size ? nullptr : find(tokens[at], tokens[right]);
  };
  for (std::uint32_t at = 0; at < size; ++at) {
    room.before[at] = at == 0 ? gone : at - 1;
    room.after[at] = at + 1;
    if (const Merge* merge = merge_at(at)) room.waiting.push_back({merge->rank, at, merge->result});
  }
  std::make_heap(room.waiting.begin(), room.waiting.end(), is_later);
  while (!room.waiting.empty()) {
    std::pop_heap(room.waiting.begin(), room.waiting.end(), is_later);
    const Waiting top = room.waiting.back();
    room.waiting.pop_back();
    if (tokens[top.at] == gone) continue;
    const Merge* const merge = merge_at(top.at);  // the right neighbour may have changed
    if (merge == nullptr || merge->result != top.result) continue;
    const std::uint32_t right = room.after[top.at], next = room.after[right];
    tokens[top.at] = top.result;
    tokens[right] = gone;
    room.after[top.at] = next;
    if (next < size) room.before[next] = top.at;
    for (const std::uint32_t at : {room.before[top.at], top.at}) {
      if (at == gone) continue;
      const Merge* const waits = merge_at(at);
      if (waits == nullptr) continue;
      room.waiting.push_back({waits->rank, at, waits->result});
      std::push_heap(room.waiting.begin(), room.waiting.end(), is_later);
    }
  }
  std::erase(tokens, gone);
}

namespace {

struct Known {
  WordPattern pattern;
  std::string_view name, regex;
};

constexpr Known known[] = {
    {WordPattern::gpt2, "gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {WordPattern::llama3, "llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::qwen2, "qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

bool is_newline(char c) { return c == '\n' || c == '\r'; }

/// Scans runs of characters at a position of a text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool has(std::size_t at) const { return at < text_.size(); }
  char byte(std::size_t at) const { return text_[at]; }
  /// The end of the character at `at`.
  std::size_t after(std::size_t at) const { return at + character_at(text_, at).bytes; }
  bool is(CharacterClass wanted, std::size_t at) const {
    return has(at) && class_of(character_at(text_, at).code) == wanted;
  }
  /// The end of the characters of a class from `at` on, at most `most` of them.
  std::size_t run(CharacterClass wanted, std::size_t at, std::size_t most = static_cast<std::size_t>(-1)) const {
    for (std::size_t count = 0; count < most && is(wanted, at); ++count) at = after(at);
    return at;
  }

  /// 's|'t|'re|'ve|'m|'ll|'d : the end of the match, or `at`. `in_any_case` is (?i: ), where U+017F is an s, too.
  std::size_t contraction(std::size_t at, bool in_any_case) const {
    if (byte(at) != '\'' || !has(at + 1)) return at;
    const auto letter = [&](std::size_t place) {
      const char c = has(place) ? byte(place) : '\0';
      return in_any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    if (in_any_case && text_.substr(at + 1, 2) == "\u017F") return at + 3;
    const char first = letter(at + 1), second = letter(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    const bool is_pair =
        (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
    return is_pair ? at + 3 : at;
  }

  /// \s+(?!\S)|\s+ : spaces; of several before another character, all but the last.
  std::size_t spaces(std::size_t at) const {
    std::size_t end = at, last = at;
    while (is(CharacterClass::space, end)) last = end, end = after(end);
    return has(end) && last > at ? last : end;
  }

  /// \s*[\r\n]+ : spaces up to their last line break, or `at` without a line break.
  std::size_t line_breaks(std::size_t at) const {
    std::size_t end = at;
    for (; is(CharacterClass::space, at); at = after(at)) {
      if (is_newline(byte(at))) end = at + 1;
    }
    return end;
  }

 private:
  std::string_view text_;
};

std::size_t gpt2_word(const Scanner& scan, std::size_t at) {
  using enum CharacterClass;
  if (const std::size_t end = scan.contraction(at, false); end > at) return end;
  const std::size_t body = scan.byte(at) == ' ' ? at + 1 : at;
  for (const CharacterClass its_class : {letter, number, other}) {
    if (scan.is(its_class, body)) return scan.run(its_class, body);
  }
  return scan.spaces(at);
}

std::size_t llama3_word(const Scanner& scan, std::size_t at, std::size_t most_digits) {
  using enum CharacterClass;
  if (const std::size_t end = scan.contraction(at, true); end > at) return end;
  if (scan.is(letter, at)) return scan.run(letter, at);
  if (scan.is(number, at)) return scan.run(number, at, most_digits);
  if (!is_newline(scan.byte(at)) && scan.is(letter, scan.after(at))) return scan.run(letter, scan.after(at));
  const std::size_t body = scan.byte(at) == ' ' ? at + 1 : at;
  if (scan.is(other, body)) {
    std::size_t end = scan.run(other, body);
    while (scan.has(end) && is_newline(scan.byte(end))) ++end;
    return end;
  }
  if (const std::size_t end = scan.line_breaks(at); end > at) return end;
  return scan.spaces(at);
}

}  // namespace

std::string_view to_string(WordPattern pattern) { return known[static_cast<int>(pattern)].name; }

std::string_view regex_of(WordPattern pattern) { return known[static_cast<int>(pattern)].regex; }

std::optional<WordPattern> find_word_pattern(std::string_view regex) {
  for (const auto& known : known) {
    if (known.regex == regex) return known.pattern;
  }
  return std::nullopt;
}

std::size_t end_of_word(WordPattern pattern, std::string_view text, std::size_t at) {
  const Scanner scan(text);
  if (pattern == WordPattern::gpt2) return gpt2_word(scan, at);
  return llama3_word(scan, at, pattern == WordPattern::llama3 ? 3 : 1);
}

namespace {

[[noreturn]] void refuse(const std::string& part, const std::string& why) {
  throw ValueError("tokenizer: " + part + ": " + why);
}

std::string place(const char* part, std::size_t number) { return part + ("[" + std::to_string(number) + "]"); }

/// The bytes of a token: decoded letters, or its text if a character is no letter.
std::string bytes_of_token(const std::string& token) { return from_letters(token).value_or(token); }

/// The begin of the spaces at the end of `text`.
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

/// The end of the spaces in `text` from `at` on.
std::size_t first_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (class_of(next.code) != CharacterClass::space) break;
    at += next.bytes;
  }
  return at;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  add_vocabulary();
  add_merges();
  add_tokens();
  check_ends();
}

void Tokenizer::add_vocabulary() {
  const std::vector<std::string>& vocabulary = parts_.vocabulary;
  constexpr std::size_t most_tokens = std::size_t{1} << 24;
  if (vocabulary.size() > most_tokens)
    refuse("vocabulary", std::to_string(vocabulary.size()) + " tokens; at most 2^24");
  ids_.reserve(vocabulary.size());
  bytes_.reserve(vocabulary.size() + parts_.added.size());
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& token = vocabulary[id];
    if (token.empty()) refuse(place("vocabulary", id), "a token without text");
    if (!ids_.try_emplace(token, static_cast<std::uint32_t>(id)).second) {
      refuse(place("vocabulary", id), "token " + quote(token) + " is there twice");
    }
    bytes_.push_back(bytes_of_token(token));
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
  const std::vector<std::string>& vocabulary = parts_.vocabulary;
  for (std::size_t i = 0; i < parts_.merges.size(); ++i) {
    const auto [left, right, result] = parts_.merges[i];
    for (const std::uint32_t id : {left, right, result}) {
      if (id < vocabulary.size()) continue;
      refuse(place("merges", i),
             "token " + std::to_string(id) + "; expected below " + std::to_string(vocabulary.size()));
    }
    if (vocabulary[left] + vocabulary[right] != vocabulary[result]) {
      refuse(place("merges", i),
             quote(vocabulary[left]) + " and " + quote(vocabulary[right]) + " make " + quote(vocabulary[result]));
    }
    if (!merges_.add(left, right, result)) {
      refuse(place("merges", i), quote(vocabulary[left]) + " and " + quote(vocabulary[right]) + " merge already");
    }
  }
}

void Tokenizer::add_tokens() {
  std::unordered_map<std::string_view, std::size_t> seen;
  std::vector<std::string> raw, normalized;
  is_special_.assign(bytes_.size(), false);
  for (std::size_t i = 0; i < parts_.added.size(); ++i) {
    const AddedToken& token = parts_.added[i];
    const std::string part = place("added_tokens", i);
    if (token.content.empty()) refuse(part, "a token without text");
    if (!seen.try_emplace(token.content, i).second) refuse(part, quote(token.content) + " is there twice");
    const auto known = ids_.find(token.content);
    const std::size_t id = known != ids_.end() ? known->second : bytes_.size();
    if (token.id != id) {
      refuse(part, quote(token.content) + " has id " + std::to_string(token.id) + "; expected " + std::to_string(id) +
                       (known != ids_.end() ? ", its id in the vocabulary" : ", the next one"));
    }
    const std::string form = token.is_normalized && parts_.is_nfc ? to_nfc(token.content) : token.content;
    if (known == ids_.end()) {
      bytes_.emplace_back();
      is_special_.push_back(false);
    }
    bytes_[id] = bytes_of_token(form);
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
      refuse(ends == &parts_.prefix ? "prefix" : "suffix",
             "token " + std::to_string(id) + "; expected below " + std::to_string(bytes_.size()));
    }
  }
}

std::uint32_t Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : parts_.added) {
    if (added.content == token) return added.id;
  }
  if (const auto found = ids_.find(token); found != ids_.end()) return found->second;
  throw ValueError("tokenizer: no token " + quote(token) + "; expected one of its " + std::to_string(size()));
}

/// Encodes one text.
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

  /// Appends the added tokens of `text` and calls rest(piece) for the text between them.
  template <class Rest>
  void split(std::string_view text, const TextFinder& finder, const std::vector<std::size_t>& places, Rest&& rest) {
    std::size_t done = 0, from = 0;
    while (const auto found = finder.find(text, from)) {
      const AddedToken& token = tokenizer_.parts_.added[places[found->number]];
      from = found->end;
      if (options_.takes_special_as_text && token.is_special) continue;
      std::size_t begin = found->begin, end = found->end;
      if (token.strips_left) begin = std::max(done, last_spaces(text.substr(0, begin)));
      if (token.strips_right) end = first_spaces(text, end);
      if (begin >= end) continue;  // the token before it has stripped all of it
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

  // A cache: words repeat, so their tokens are copied from the first occurrence between two added tokens.
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
    throw ValueError("tokenizer: a text of " + std::to_string(text.size()) + " bytes; expected less than 2^32 - 1");
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
                       "; expected below " + std::to_string(bytes_.size()));
    }
    if (!skips_special || !is_special_[tokens[i]]) text += bytes_[tokens[i]];
  }
  return text;
}

}  // namespace thimble::data
