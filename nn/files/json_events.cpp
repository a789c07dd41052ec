#include <thimble/nn/files/json_events.h>

#include <charconv>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/printable.h>

namespace thimble {

namespace {

constexpr std::string_view escaped = "\"\\/bfnrt", unescaped = "\"\\/\b\f\n\r\t";

class Reader {
 public:
  Reader(std::string_view text, std::uint64_t& count, JsonEvents& events)
      : text_(text), count_(count), events_(events) {}

  void read() {
    value();
    skip_blanks();
    if (at_ < text_.size()) invalid(at_);
  }

 private:
  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool is_digit() const { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; }

  void skip_blanks() {
    while (is_at(' ') || is_at('\t') || is_at('\n') || is_at('\r')) ++at_;
  }

  // The token from `begin` to the wrong character at at_.
  [[noreturn]] void invalid(std::size_t begin) {
    at_ = at_ < text_.size() ? at_ + 1 : at_;
    count_ = at_;
    const std::string token(text_.substr(begin, at_ - begin));
    events_.invalid(token);
    throw ValueError("json: expected a value, got " + quote(token) + " at byte " + std::to_string(count_));
  }

  void expect(char c) {
    skip_blanks();
    if (!is_at(c)) invalid(at_);
    count_ = ++at_;
  }

  // Reads the comma after a member, or `end`, and then returns true.
  bool is_end(char end) {
    skip_blanks();
    if (is_at(end)) {
      count_ = ++at_;
      return true;
    }
    expect(',');
    return false;
  }

  void value() {
    skip_blanks();
    if (is_at('{')) return object();
    if (is_at('[')) return array();
    if (is_at('"')) {
      std::string text = string();
      return events_.string(text);
    }
    if (is_at('-') || is_digit()) return number();
    for (const std::string_view word : {"null", "true", "false"})
      if (is_at(word[0])) return literal(word);
    invalid(at_);
  }

  void literal(std::string_view word) {
    const std::size_t begin = at_;
    for (const char c : word) {
      if (!is_at(c)) invalid(begin);
      ++at_;
    }
    count_ = at_;
    events_.other(word == "null" ? "null" : "a boolean");
  }

  void object() {
    count_ = ++at_;
    events_.begin_object();
    skip_blanks();
    if (is_at('}')) {
      count_ = ++at_;
      return events_.end_object();
    }
    do {
      skip_blanks();
      if (!is_at('"')) invalid(at_);
      std::string name = string();
      events_.key(name);
      expect(':');
      value();
    } while (!is_end('}'));
    events_.end_object();
  }

  void array() {
    count_ = ++at_;
    events_.begin_array();
    skip_blanks();
    if (is_at(']')) {
      count_ = ++at_;
      return events_.end_array();
    }
    do {
      value();
    } while (!is_end(']'));
    events_.end_array();
  }

  void number() {
    const std::size_t begin = at_;
    const auto digits = [&] {
      if (!is_digit()) invalid(begin);
      while (is_digit()) ++at_;
    };
    const bool is_negative = is_at('-');
    if (is_negative) ++at_;
    if (is_at('0')) {
      ++at_;
    } else {
      digits();
    }
    const std::size_t whole = at_;
    if (is_at('.')) {
      ++at_;
      digits();
    }
    if (is_at('e') || is_at('E')) {
      ++at_;
      if (is_at('+') || is_at('-')) ++at_;
      digits();
    }
    count_ = at_ + (at_ < text_.size() ? 1 : 0);
    const std::string_view text = text_.substr(begin, at_ - begin);
    std::uint64_t value = 0;
    if (whole == at_ && is_negative) return events_.other("a negative number");
    if (whole == at_ && std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc())
      return events_.unsigned_number(value);
    events_.other("the number " + quote(std::string(text)) + ", which is no integer below 2^64,");
  }

  std::string string() {
    const std::size_t begin = at_++;
    std::string result;
    for (;;) {
      if (at_ == text_.size()) invalid(begin);
      const char c = text_[at_];
      if (c == '"') {
        count_ = ++at_;
        return result;
      }
      if (c == '\\') {
        ++at_;
        escape(begin, result);
        continue;
      }
      const std::size_t length = static_cast<unsigned char>(c) < 0x20 ? 0 : utf8_length(text_.substr(at_));
      if (length == 0) invalid(begin);
      result += text_.substr(at_, length);
      at_ += length;
    }
  }

  // Reads an escape after its backslash and adds it to `result` as UTF-8. Characters above U+FFFF take two escapes.
  void escape(std::size_t begin, std::string& result) {
    if (!is_at('u')) {
      const std::size_t which = at_ < text_.size() ? escaped.find(text_[at_]) : std::string_view::npos;
      if (which == std::string_view::npos) invalid(begin);
      result += unescaped[which];
      ++at_;
      return;
    }
    std::uint32_t code = unit(begin);
    if (code >= 0xdc00 && code < 0xe000) invalid(begin);
    if (code >= 0xd800 && code < 0xdc00) {
      if (!is_at('\\')) invalid(begin);
      ++at_;
      if (!is_at('u')) invalid(begin);
      const std::uint32_t low = unit(begin);
      if (low < 0xdc00 || low >= 0xe000) invalid(begin);
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // bytes after the first
    constexpr std::uint32_t first[] = {0, 0xc0, 0xe0, 0xf0};
    result += static_cast<char>(first[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; --i) result += static_cast<char>(0x80 | (code >> 6 * i & 0x3f));
  }

  // uXXXX, from the u on.
  std::uint32_t unit(std::size_t begin) {
    ++at_;
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      constexpr std::string_view digits = "0123456789abcdefABCDEF";
      const std::size_t digit = at_ < text_.size() ? digits.find(text_[at_]) : std::string_view::npos;
      if (digit == std::string_view::npos) invalid(begin);
      code = code << 4 | static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
    }
    return code;
  }

  std::string_view text_;
  std::uint64_t& count_;
  JsonEvents& events_;
  std::size_t at_ = 0;
};

}  // namespace

void read_json(std::string_view text, std::uint64_t& count, JsonEvents& events) { Reader(text, count, events).read(); }

std::optional<std::string> json_string(std::string_view text) {
  std::string json = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) return std::nullopt;
    const char c = text[at];
    const std::size_t which = c == '/' ? std::string_view::npos : unescaped.find(c);
    if (which != std::string_view::npos) {
      json += {'\\', escaped[which]};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += {'\\', 'u', '0', '0', static_cast<char>('0' + (c >> 4)), "0123456789abcdef"[c & 15]};
    } else {
      json += text.substr(at, length);
    }
    at += length;
  }
  return json + "\"";
}

}  // namespace thimble
