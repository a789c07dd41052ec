#include <thimble/nn/tokens/words.h>

#include <thimble/nn/tokens/unicode.h>

namespace thimble::data {
namespace words_detail {

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

/// The characters of a text from a place on.
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

  /// 's|'t|'re|'ve|'m|'ll|'d : its end, or `at` where there is none. In any case as (?i: ) has it: U+017F is an s, too.
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

  /// \s+(?!\S)|\s+ : spaces but for the last one before another character, where there are several.
  std::size_t spaces(std::size_t at) const {
    std::size_t end = at, last = at;
    while (is(CharacterClass::space, end)) last = end, end = after(end);
    return has(end) && last > at ? last : end;
  }

  /// \s*[\r\n]+ : spaces up to the last line break among them, or `at` where there is none.
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

}  // namespace words_detail

std::string_view to_string(WordPattern pattern) { return words_detail::known[static_cast<int>(pattern)].name; }

std::string_view regex_of(WordPattern pattern) { return words_detail::known[static_cast<int>(pattern)].regex; }

std::optional<WordPattern> find_word_pattern(std::string_view regex) {
  for (const auto& known : words_detail::known) {
    if (known.regex == regex) return known.pattern;
  }
  return std::nullopt;
}

std::size_t end_of_word(WordPattern pattern, std::string_view text, std::size_t at) {
  const words_detail::Scanner scan(text);
  if (pattern == WordPattern::gpt2) return words_detail::gpt2_word(scan, at);
  return words_detail::llama3_word(scan, at, pattern == WordPattern::llama3 ? 3 : 1);
}

}  // namespace thimble::data
