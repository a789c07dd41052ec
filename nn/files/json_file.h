#pragma once
// JSON from other programs: errors name the byte, keys are read by name.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble::nn {

/// The first characters of a value, for messages.
template <class Json>
std::string begin_of(const Json& value, std::size_t longest = 80) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

/// A callback for a Json parser: calls `refuse` with the reason for a repeated key or too deeply nested values.
template <class Json, class Refuse>
auto json_watch(Refuse refuse) {
  return [refuse, keys = std::vector<std::set<std::string>>()](int depth, auto event, Json& parsed) mutable {
    constexpr int max_depth = 32;
    using Event = decltype(event);
    if (depth > max_depth) refuse("more than " + std::to_string(max_depth) + " values within each other");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.template get_ref<const std::string&>()).second) {
      refuse("key '" + parsed.template get_ref<const std::string&>() + "' is there twice");
    }
    return true;
  };
}

/// An object of a JSON file. Functions that read a key mark it as known, and throw ValueError "FILE: KEY: expected ...,
/// got ..." for a value of another kind.
class JsonKeys {
 public:
  /// Reads a file of at most `max_bytes`. Throws FileError with the byte: no JSON, a NUL byte, a key twice in one
  /// object, a number beyond f64, more than 32 nested values, a value other than an object.
  explicit JsonKeys(const std::string& path, std::uint64_t max_bytes = 1 << 24);

  /// Whether the key has a value that is not null.
  bool has(const std::string& key) const;
  /// Whether the key has the value null.
  bool is_null(const std::string& key) const;
  /// An integer from `least` to 2^40, or `otherwise` if the key is missing or null.
  std::int64_t size(const std::string& key, std::int64_t otherwise, std::int64_t least = 1) const;
  /// An integer from 1 to 2^40, or nullopt if the key is missing or null.
  std::optional<std::int64_t> size_if_there(const std::string& key) const;
  /// A number in [low, high], or `otherwise` if the key is missing or null.
  double number(const std::string& key, double otherwise, double low, double high) const;
  /// A number in [low, high]; the key must be there and not null.
  double number(const std::string& key, double low, double high) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  /// The index of the value, a text, in `names`.
  std::size_t choice(const std::string& key, std::span<const std::string_view> names, std::size_t otherwise) const;
  /// An object, with the file's path and this key in its errors.
  JsonKeys object(const std::string& key) const;
  bool is_flag(const std::string& key) const;
  bool is_text(const std::string& key) const;
  /// An integer from `least` to 2^40, or an array of such integers.
  std::vector<std::int64_t> sizes(const std::string& key, std::int64_t least = 1) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::map<std::string, std::string> text_map(const std::string& key) const;
  /// Throws unless the flag is `value` or missing.
  void require_flag(const std::string& key, bool value) const;

  /// Throws ValueError: "FILE: KEY: expected `expected`, got ...".
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;
  /// Throws ValueError for the first key that no function has read, that is not in `without_effect`, and that has a
  /// value other than null, false, or an empty text, array or object.
  void refuse_unknown(std::span<const std::string_view> without_effect) const;

  const std::string& path() const noexcept { return path_; }

 private:
  JsonKeys(std::shared_ptr<const void> object, std::string path) : object_(std::move(object)), path_(std::move(path)) {}
  const void* find(const std::string& key) const;  // the parser's value, or null if the key is missing

  std::shared_ptr<const void> object_;
  std::string path_;
  mutable std::set<std::string, std::less<>> known_;
};

}  // namespace thimble::nn
