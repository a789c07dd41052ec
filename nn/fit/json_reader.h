#pragma once
// Reads untrusted JSON: each value is checked where it is read.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

namespace thimble::nn {

/// Rejects values with a FileError that names the file, the value and the expected one.
struct JsonReader {
  using Json = nlohmann::ordered_json;

  std::string source;  ///< file name
  std::string kind;    ///< of the file: "a plan"

  Json parse(std::string_view text) const;

  [[noreturn]] void refuse(const std::string& why, std::uint64_t offset = 0) const;
  [[noreturn]] void refuse(const std::string& what, const Json& is, const std::string& expected) const;

  /// An object with all of `names`, optionally some of `more`, and no other key.
  const Json& object(const Json& json, const std::string& what, std::initializer_list<const char*> names,
                     std::initializer_list<const char*> more = {}) const;
  const Json& list(const Json& json, const std::string& what) const;
  const Json& list(const Json& json, const std::string& what, std::size_t count) const;
  std::string text(const Json& json, const std::string& what) const;
  bool flag(const Json& json, const std::string& what) const;
  /// An integer from `min` to `max`, and below 2^63.
  template <class T>
  T number(const Json& json, const std::string& what, T min = 0, T max = std::numeric_limits<T>::max()) const {
    constexpr auto limit = std::numeric_limits<std::int64_t>::max();
    return static_cast<T>(integer(json, what, static_cast<std::int64_t>(min),
                                  std::cmp_less(max, limit) ? static_cast<std::int64_t>(max) : limit));
  }
  /// A finite number of at least `min`.
  double real(const Json& json, const std::string& what, double min) const;

 private:
  std::int64_t integer(const Json& json, const std::string& what, std::int64_t min, std::int64_t max) const;
};

}  // namespace thimble::nn
