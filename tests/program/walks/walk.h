#pragma once
// Shared by the walks over flags (flags_walk_test.cpp) and keys (keys_walk_test.cpp): comparing two results of the
// program, and the list of verdicts in the build folder.

#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/files.h"

namespace walk_test {

using Words = std::vector<std::string>;

/// The words of a text; 'quoted ones' keep their spaces and quotes.
inline Words words_of(const std::string& text) {
  Words words;
  std::string word;
  bool is_quoted = false;
  for (const char c : text + " ") {
    if (c == '\'') is_quoted = !is_quoted;
    if (c != ' ' || is_quoted) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

/// Keys of times and process sizes, whose values vary between runs.
inline const std::set<std::string>& volatile_keys() {
  static const std::set<std::string> keys{"ms",
                                          "plan_ms",
                                          "ms_per_step",
                                          "items_per_s",
                                          "tokens_per_second",
                                          "prompt_seconds",
                                          "plain_ms",
                                          "planned_ms",
                                          "ms_f32",
                                          "ms_int8",
                                          "rss_peak_bytes",
                                          "arena_rss_bytes",
                                          "heap_bytes",
                                          "outside_bytes",
                                          "proof_seconds",
                                          "search_seconds",
                                          "process_peak_bytes",
                                          "control_group_peak_bytes"};
  return keys;
}

inline bool is_volatile(const std::string& key) { return volatile_keys().contains(key); }

/// Paths of the values in which two outputs differ, such as "/peak_by_category/input"; "/text" if they are not JSON.
inline std::set<std::string> differences(const std::string& a, const std::string& b) {
  const auto parsed = [](const std::string& text) { return nlohmann::json::parse(text, nullptr, false); };
  const nlohmann::json one = parsed(a), other = parsed(b);
  if (!one.is_structured() || !other.is_structured())
    return a == b ? std::set<std::string>{} : std::set<std::string>{"/text"};
  std::set<std::string> paths;
  const auto is_in = [](const nlohmann::json& flat, const std::string& path, const nlohmann::json& value) {
    const auto found = flat.find(path);
    return found != flat.end() && *found == value;
  };
  const nlohmann::json flat = one.flatten(), other_flat = other.flatten();
  for (const auto& [path, value] : flat.items()) {
    if (!is_volatile(path.substr(path.rfind('/') + 1)) && !is_in(other_flat, path, value)) paths.insert(path);
  }
  for (const auto& [path, value] : other_flat.items()) {
    if (!is_volatile(path.substr(path.rfind('/') + 1)) && !is_in(flat, path, value)) paths.insert(path);
  }
  return paths;
}

/// Replaces the list of a walk in flags_and_keys.txt in the program's build folder.
inline void write_list(const std::string& walk, const std::string& list) {
  const std::filesystem::path build = std::filesystem::path(std::getenv("THIMBLE_PROGRAM")).parent_path().parent_path();
  files_test::write_text_file((build / (walk + "_walked.txt")).string(), list);
  std::string all;
  for (const char* const name : {"flags", "keys"}) {
    const std::filesystem::path part = build / (std::string(name) + "_walked.txt");
    if (std::filesystem::exists(part))
      all += "# " + std::string(name) + "\n" + files_test::read_text_file(part.string());
  }
  files_test::write_text_file((build / "flags_and_keys.txt").string(), all);
}

}  // namespace walk_test
