#pragma once
// JSON that other programs wrote: texts with the byte where they go wrong, objects whose keys are read by name.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace thimble::nn {

/// The tree of a JSON text from `path`. Throws FileError with the byte, whose reason begins with `begin`: no JSON, a
/// NUL byte, a key twice in one object, a number beyond f64, more than `max_depth` values within each other.
nlohmann::ordered_json parse_json(const std::string& path, std::string_view text, const std::string& begin = {},
                                  int max_depth = 32);

/// The object that a file of at most `max_bytes` holds. Throws FileError as parse_json does, and for another value.
nlohmann::ordered_json read_json_object(const std::string& path, std::uint64_t max_bytes = 1 << 24);

/// A value for an error message: its JSON, printable ASCII, cut after 80 characters.
std::string json_text(const nlohmann::ordered_json& value);

/// An object of a JSON file, of which a reader applies or refuses every key. `json` must outlive it. All that reads a
/// key throws ValueError, "FILE: KEY: expected ..., got ...", for a value of another kind, and notes the key as known.
class JsonKeys {
 public:
  JsonKeys(const nlohmann::ordered_json& json, std::string path) : json_(json), path_(std::move(path)) {}

  /// Whether the key is there, with a value that is not null.
  bool has(const std::string& key) const;
  /// Whether the key is there, with null.
  bool is_null(const std::string& key) const;
  /// An integer from 1 to 2^40. `otherwise` where it is missing or null.
  std::int64_t size(const std::string& key, std::int64_t otherwise) const;
  /// The same, or none where it is missing or null.
  std::optional<std::int64_t> size_if_there(const std::string& key) const;
  /// A number in [low, high].
  double number(const std::string& key, double otherwise, double low, double high) const;
  /// The same; a key that is missing or null is refused.
  double number(const std::string& key, double low, double high) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  /// One of `names`, whose place it is.
  std::size_t choice(const std::string& key, std::span<const std::string_view> names, std::size_t otherwise) const;
  /// An object, with the file's path and this key in its errors.
  JsonKeys object(const std::string& key) const;
  const nlohmann::ordered_json& value(const std::string& key) const;
  /// Throws unless the flag is `value`, which it is where it is missing.
  void require_flag(const std::string& key, bool value) const;

  /// Throws ValueError: "FILE: KEY: expected `expected`, got ...".
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;
  /// Throws ValueError for the first key that nothing has read, is not in `without_effect`, and has a value other than
  /// null, false, or an empty text, array or object.
  void refuse_unknown(std::span<const std::string_view> without_effect) const;

  const std::string& path() const noexcept { return path_; }

 private:
  const nlohmann::ordered_json* find(const std::string& key) const;

  const nlohmann::ordered_json& json_;
  std::string path_;
  mutable std::set<std::string, std::less<>> known_;
};

}  // namespace thimble::nn
