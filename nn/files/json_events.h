#pragma once
// JSON as events, for headers of binary files: no document is built, so a repeated key is detected, and a hostile file
// cannot cause deep recursion. nlohmann-json reads documents of freer form.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace thimble {

/// Receives the values of a text in order. It throws to reject one. An array or object that is rejected at its start is
/// not entered, so the receiver bounds the depth.
class JsonEvents {
 public:
  virtual void begin_object() = 0;
  virtual void key(std::string& name) = 0;  ///< the receiver may move from it, and from string()'s value
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void string(std::string& value) = 0;
  virtual void unsigned_number(std::uint64_t value) = 0;
  /// A description of any other value: "null", "a boolean", "a negative number", "the number '1.5', which is ...".
  virtual void other(const std::string& found) = 0;
  /// The text is not JSON from `token` on, the characters of an unfinished or wrong word. Throws an error of the
  /// format; if it returns, read_json throws a ValueError.
  virtual void invalid(const std::string& token) = 0;

 protected:
  ~JsonEvents() = default;
};

/// Reads `text`, a single JSON value (RFC 8259). During an event, `count` is the number of bytes read: to the end of
/// the value, and one more after a number.
void read_json(std::string_view text, std::uint64_t& count, JsonEvents& events);

/// `text` as a JSON string, quotes included, or nullopt if it is not UTF-8.
std::optional<std::string> json_string(std::string_view text);

}  // namespace thimble
