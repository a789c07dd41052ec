#include <thimble/nn/fit/json_reader.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/nn/files/json_file.h>

namespace thimble::nn {
void JsonReader::refuse(const std::string& why, std::uint64_t offset) const {
  throw FileError(source, offset, "is not " + kind + ": " + why);
}

void JsonReader::refuse(const std::string& what, const Json& is, const std::string& expected) const {
  refuse(what + ": expected " + expected + ", got " + begin_of(is, 40));
}

JsonReader::Json JsonReader::parse(std::string_view text) const {
  // The parser would take a NUL byte for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) refuse("it has a NUL byte", nul);
  try {
    return Json::parse(text, json_watch<Json>([&](const std::string& why) { refuse(why); }));
  } catch (const nlohmann::json::parse_error& error) {
    refuse("it is not JSON from here on", error.byte);
  } catch (const nlohmann::json::exception&) {  // a number outside the range of double
    refuse("it has a number out of range");
  }
}

const JsonReader::Json& JsonReader::object(const Json& json, const std::string& what,
                                           std::initializer_list<const char*> names,
                                           std::initializer_list<const char*> more) const {
  if (!json.is_object()) refuse(what, json, "an object");
  std::vector<const char*> known(names);
  known.insert(known.end(), more);
  for (const auto& [name, value] : json.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string all;
    for (const char* const one : known) all += (all.empty() ? "" : ", ") + std::string(one);
    refuse(what + " has " + quote(name) + ", which is none of its keys: " + all);
  }
  for (const char* const name : names) {
    if (!json.contains(name)) refuse(what + " has no '" + name + "'");
  }
  return json;
}

const JsonReader::Json& JsonReader::list(const Json& json, const std::string& what) const {
  if (!json.is_array()) refuse(what, json, "a list");
  return json;
}

const JsonReader::Json& JsonReader::list(const Json& json, const std::string& what, std::size_t count) const {
  if (list(json, what).size() != count) refuse(what, json, "a list of " + std::to_string(count));
  return json;
}

std::string JsonReader::text(const Json& json, const std::string& what) const {
  if (!json.is_string()) refuse(what, json, "a text");
  return json.get<std::string>();
}

bool JsonReader::flag(const Json& json, const std::string& what) const {
  if (!json.is_boolean()) refuse(what, json, "true or false");
  return json.get<bool>();
}

double JsonReader::real(const Json& json, const std::string& what, double min) const {
  if (!json.is_number() || !std::isfinite(json.get<double>()) || json.get<double>() < min) {
    refuse(what, json, "a number of at least " + std::to_string(min));
  }
  return json.get<double>();
}

std::int64_t JsonReader::integer(const Json& json, const std::string& what, std::int64_t min, std::int64_t max) const {
  const bool is_small = json.is_number_integer() &&
                        (!json.is_number_unsigned() || std::in_range<std::int64_t>(json.get<std::uint64_t>()));
  const std::int64_t value = is_small ? json.get<std::int64_t>() : 0;
  if (!is_small || value < min || value > max) {
    refuse(what, json, "an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

}  // namespace thimble::nn
