// The reader of headers against nlohmann-json: both accept the same texts and read the same values.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <thimble/nn/files/json_events.h>

#include "support/catch.h"

using namespace thimble;

namespace {

struct Invalid {
  std::string token;
};

/// Writes each event as a line of text.
struct Events final : JsonEvents {
  std::string text;
  void begin_object() override { text += "{\n"; }
  void key(std::string& name) override { text += "key " + name + "\n"; }
  void end_object() override { text += "}\n"; }
  void begin_array() override { text += "[\n"; }
  void end_array() override { text += "]\n"; }
  void string(std::string& value) override { text += "string " + value + "\n"; }
  void unsigned_number(std::uint64_t value) override { text += "number " + std::to_string(value) + "\n"; }
  void other(const std::string& found) override { text += found.substr(0, 7) + "\n"; }  // numbers without their digits
  [[noreturn]] void invalid(const std::string& token) override { throw Invalid{token}; }
};

/// The events of nlohmann-json's parser for the same text.
struct OracleEvents : nlohmann::json_sax<nlohmann::json> {
  std::string text;
  bool add(const std::string& line) {
    text += line + "\n";
    return true;
  }
  bool null() override { return add("null"); }
  bool boolean(bool) override { return add("a boole"); }
  bool number_integer(std::int64_t) override { return add("a negat"); }
  bool number_unsigned(std::uint64_t value) override { return add("number " + std::to_string(value)); }
  bool number_float(double, const std::string&) override { return add("the num"); }
  bool string(std::string& value) override { return add("string " + value); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return add("{"); }
  bool key(std::string& name) override { return add("key " + name); }
  bool end_object() override { return add("}"); }
  bool start_array(std::size_t) override { return add("["); }
  bool end_array() override { return add("]"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
};

std::string events_of(const std::string& text) {
  Events events;
  std::uint64_t count = 0;
  try {
    read_json(text, count, events);
  } catch (const Invalid&) {
    return "invalid";
  }
  CHECK(count <= text.size());
  return events.text;
}

std::string oracle_events_of(const std::string& text) {
  OracleEvents events;
  return nlohmann::json::sax_parse(text, &events) ? events.text : "invalid";
}

}  // namespace

TEST_CASE("json_events: a text has the events of nlohmann-json, or is refused by both", "[files]") {
  std::vector<std::string> texts{
      R"({})",
      R"([])",
      " \t\r\n{ \"a\" : [ 1 , 2 ] } \n",
      R"({"a": {"b": [[], {}, null, true, false]}, "a": ""})",
      R"([0, 1, 18446744073709551615, 18446744073709551616, 1.5, 2e3, 2E+3, 0.25e-2, -0, -1, -1.5])",
      R"(["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20AC\ud83d\ude00", "é€😀", "\u0000"])",
      "\"alone\"",
      "7",
      "",
      " ",
      "{",
      "[1",
      "[1,]",
      "[,1]",
      "[1 2]",
      R"({"a"})",
      R"({"a":})",
      R"({"a":1,})",
      R"({a:1})",
      R"({"a":1}})",
      R"({"a":1} x)",
      "[01]",
      "[+1]",
      "[-01]",
      "[-00]",
      "[-0.5]",
      "[1.]",
      "[.5]",
      "[1e]",
      "[1e+]",
      "[-]",
      "[--1]",
      "[nul]",
      "[truE]",
      "[nullx]",
      "[NaN]",
      "[\"a]",
      "[\"\\x\"]",
      "[\"\\u12g4\"]",
      "[\"\\u123\"]",
      "[\"\\ud800\"]",
      "[\"\\ud800x\"]",
      "[\"\\ud800\\n\"]",
      "[\"\\ud800\\u0041\"]",
      "[\"\\udc00\"]",
      "[\"\\ud7ff\\ue000\"]",  // the borders of both halves of a surrogate pair
      "[\"\\ud800\\udc00\"]",
      "[\"\\udbff\\udfff\"]",
      "[\"\\ud800\\udbff\"]",
      "[\"\\ud800\\ue000\"]",
      "[\"\\udfff\"]",
      "[\"\\",
      "[\"\t\"]",
      "[\"\xff\"]",
      "[\"\xc0\xaf\"]",
      "[\"\xed\xa0\x80\"]",
      "[\"\xf4\x90\x80\x80\"]",
      "[\"\xe2\x82\"]",
      "[/* */1]",
      "['a']",
  };
  // Every text with a byte changed, removed or cut off there. No exponents: the oracle refuses numbers beyond f64.
  std::mt19937 random(7);
  const std::string bytes = "{}[]\",:\\0189-+.u \n\x1f\x7f\x80\xc3\xff";
  const std::size_t whole = texts.size();
  for (std::size_t i = 0; i < whole; ++i) {
    for (std::size_t at = 0; at < texts[i].size(); ++at) {
      std::string changed = texts[i], lost = texts[i];
      changed[at] = bytes[random() % bytes.size()];
      texts.push_back(changed);
      texts.push_back(lost.erase(at, 1));
      texts.push_back(texts[i].substr(0, at));
    }
  }
  for (const std::string& text : texts) {
    INFO("text " << text);
    CHECK(events_of(text) == oracle_events_of(text));
  }
}

TEST_CASE("json_events: bytes read, and the characters that are not JSON", "[files]") {
  struct Case {
    const char* text;
    std::uint64_t count;
    const char* token;
  };
  for (const Case& c : {Case{"[nux]", 4, "nux"}, Case{"{\"ab\" 1", 7, "1"}, Case{"[\"a\\q", 5, "\"a\\q"},
                        Case{"[1", 2, ""}, Case{"[-x", 3, "-x"}}) {
    Events events;
    std::uint64_t count = 0;
    std::string token = "none";
    try {
      read_json(c.text, count, events);
    } catch (const Invalid& invalid) {
      token = invalid.token;
    }
    INFO(c.text);
    CHECK(token == c.token);
    CHECK(count == c.count);
  }
}

TEST_CASE("json_events: strings are written as nlohmann-json writes them", "[files]") {
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (std::size_t n = random() % 9; text.size() < n;) text += static_cast<char>(random() % (i % 2 == 0 ? 128 : 256));
    std::optional<std::string> expected;  // nullopt where it is not UTF-8
    try {
      expected = nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
    }
    INFO(i);
    CHECK(json_string(text) == expected);
  }
  for (const std::string text : {"é", "€", "😀", "a/b", "\x7f"}) CHECK(json_string(text) == nlohmann::json(text).dump());
}
