#include <thimble/nn/files/json_file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/files/printable.h>
#include <thimble/memory/units.h>

namespace thimble::nn {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t max_size = std::int64_t{1} << 40;

bool is_empty(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

Json parse(const std::string& path, std::string_view text) {
  const auto refuse = [&](std::uint64_t byte, const std::string& why) { throw FileError(path, byte, why); };
  if (const std::size_t nul = text.find('\0'); nul != text.npos) refuse(nul, "expected JSON, got a NUL byte");
  std::istringstream in{std::string(text)};
  const auto byte = [&] { return static_cast<std::uint64_t>(in.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in)); };
  const auto watch = json_watch<Json>([&](const std::string& why) { refuse(byte(), why); });
  try {
    return Json::parse(in, watch);
  } catch (const Json::parse_error& error) {
    refuse(error.byte > 0 ? error.byte - 1 : 0, "the file is not JSON");
  } catch (const Json::out_of_range&) {
    refuse(byte(), "a number beyond the range of f64");
  }
  return {};
}

const Json* as_json(const void* value) { return static_cast<const Json*>(value); }

}  // namespace

JsonKeys::JsonKeys(const std::string& path, std::uint64_t max_bytes) : path_(path) {
  const std::vector<std::byte> bytes = read_whole_file(path, max_bytes);
  const auto json =
      std::make_shared<const Json>(parse(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  if (!json->is_object()) throw FileError(path, 0, "expected a JSON object, got " + begin_of(*json));
  object_ = json;
}

const void* JsonKeys::find(const std::string& key) const {
  known_.insert(key);
  const Json& object = *as_json(object_.get());
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

bool JsonKeys::has(const std::string& key) const {
  const auto* const value = as_json(find(key));
  return value != nullptr && !value->is_null();
}

bool JsonKeys::is_null(const std::string& key) const {
  const auto* const value = as_json(find(key));
  return value != nullptr && value->is_null();
}

bool JsonKeys::is_flag(const std::string& key) const {
  const auto* const value = as_json(find(key));
  return value != nullptr && value->is_boolean();
}

bool JsonKeys::is_text(const std::string& key) const {
  const auto* const value = as_json(find(key));
  return value != nullptr && value->is_string();
}

void JsonKeys::refuse(const std::string& key, const std::string& expected) const {
  const auto* const value = as_json(find(key));
  throw ValueError(path_ + ": " + key + ": expected " + expected + ", got " +
                   (value == nullptr ? "no such key" : begin_of(*value)));
}

std::optional<std::int64_t> JsonKeys::size_if_there(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  return size(key, 0);
}

std::int64_t JsonKeys::size(const std::string& key, std::int64_t otherwise, std::int64_t least) const {
  if (!has(key)) return otherwise;
  const auto& value = *as_json(find(key));
  // The parser has numbers above 2^63 as unsigned, which would wrap.
  if (value.is_number_integer() && value >= least && value <= max_size) return value.get<std::int64_t>();
  refuse(key, "an integer from " + std::to_string(least) + " to 2^40");
}

std::vector<std::int64_t> JsonKeys::sizes(const std::string& key, std::int64_t least) const {
  if (!has(key) || !as_json(find(key))->is_array()) return {size(key, 0, least)};
  std::vector<std::int64_t> list;
  for (const auto& value : *as_json(find(key))) {
    if (!value.is_number_integer() || value < least || value > max_size) {
      refuse(key, "integers from " + std::to_string(least) + " to 2^40");
    }
    list.push_back(value.get<std::int64_t>());
  }
  return list;
}

std::vector<std::string> JsonKeys::texts(const std::string& key) const {
  if (!has(key) || !as_json(find(key))->is_array()) refuse(key, "an array of texts");
  std::vector<std::string> list;
  for (const auto& value : *as_json(find(key))) {
    if (!value.is_string()) refuse(key, "an array of texts");
    list.push_back(value.get<std::string>());
  }
  return list;
}

std::map<std::string, std::string> JsonKeys::text_map(const std::string& key) const {
  if (!has(key) || !as_json(find(key))->is_object()) refuse(key, "an object of texts");
  std::map<std::string, std::string> map;
  for (const auto& [name, value] : as_json(find(key))->items()) {
    if (!value.is_string()) refuse(key, "texts, of " + quote(name) + " as well");
    map.emplace(name, value.get<std::string>());
  }
  return map;
}

double JsonKeys::number(const std::string& key, double low, double high) const {
  if (has(key) && as_json(find(key))->is_number()) {
    const double value = as_json(find(key))->get<double>();
    if (value >= low && value <= high) return value;
  }
  refuse(key, "a number from " + format_real(low) + " to " + format_real(high));
}

double JsonKeys::number(const std::string& key, double otherwise, double low, double high) const {
  return has(key) ? number(key, low, high) : otherwise;
}

bool JsonKeys::flag(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!is_flag(key)) refuse(key, "true or false");
  return as_json(find(key))->get<bool>();
}

std::string JsonKeys::text(const std::string& key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!as_json(find(key))->is_string()) refuse(key, "a text");
  return as_json(find(key))->get<std::string>();
}

std::size_t JsonKeys::choice(const std::string& key, std::span<const std::string_view> names,
                             std::size_t otherwise) const {
  if (!has(key)) return otherwise;
  std::string expected;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (*as_json(find(key)) == names[i]) return i;
    expected += (i == 0 ? "\"" : i + 1 == names.size() ? " or \"" : ", \"") + std::string(names[i]) + "\"";
  }
  refuse(key, expected);
}

JsonKeys JsonKeys::object(const std::string& key) const {
  if (!has(key) || !as_json(find(key))->is_object()) refuse(key, "an object");
  return {std::shared_ptr<const void>(object_, find(key)), path_ + ": " + key};
}

void JsonKeys::require_flag(const std::string& key, bool value) const {
  if (flag(key, value) != value) refuse(key, value ? "true" : "false");
}

void JsonKeys::refuse_unknown(std::span<const std::string_view> without_effect) const {
  for (const auto& [key, value] : as_json(object_.get())->items()) {
    if (known_.contains(key) || is_empty(value)) continue;
    if (std::find(without_effect.begin(), without_effect.end(), key) != without_effect.end()) continue;
    throw ValueError(path_ + ": " + quote(key) +
                     ": expected a key that is known here, or null or false as its value, got " + begin_of(value));
  }
}

}  // namespace thimble::nn
