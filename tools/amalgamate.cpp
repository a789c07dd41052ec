// Writes the single header: all headers of the library in include order, then its .cpp files.
//
//   amalgamate VERSION INCLUDE_DIR LIST OUTPUT
//
// LIST names headers and sources, one per line, relative to INCLUDE_DIR/thimble, lower layers first. Rules:
//   - `#pragma once` and `#include <thimble/...>` are dropped: every file appears once, after the files it includes.
//   - Other includes move to the top of their section, once each. An include inside `#if` stays in place.
//   - Headers that thimble.h leads to are under no condition. Inner headers and bodies are under
//     THIMBLE_IMPLEMENTATION, bodies in parts that compile separately (THIMBLE_PART). Plans and runs of named
//     models, and users of JSON, zlib or utf8proc, are under THIMBLE_WITH_FILES: a .cpp that includes these headers,
//     the header of the same name, and every file that includes that header.
//   - A .cpp that leaves a macro defined is refused, since the macro would reach later bodies.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fs = std::filesystem;

namespace {

struct File {
  std::string name;                   // "core/shape.h"
  std::vector<std::string> includes;  // library headers, as "core/shape.h"
  std::set<std::string> others;       // all other includes outside conditionals
  std::set<std::string> defined;      // macros still defined at the end
  std::string body;                   // without pragma once and hoisted includes
  bool needs_files = false;
  bool is_public = false;  // thimble.h leads to it
  bool is_models = false;  // models/models.h leads to it, thimble.h does not

  bool is_header() const { return name.ends_with(".h"); }
  std::string stem() const { return name.substr(0, name.rfind('.')); }
};

[[noreturn]] void fail(const std::string& file, std::size_t line, const std::string& why) {
  throw std::runtime_error(file + ":" + std::to_string(line) + ": " + why);
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// ---- Which lines are code

/// Tracks block comments, strings and raw strings across lines, so that directives inside them do not count.
class Scanner {
 public:
  /// True if the next line starts outside comments and raw strings.
  bool at_code() const { return !in_comment_ && raw_end_.empty(); }

  void read(std::string_view line) {
    for (std::size_t i = 0; i < line.size();) {
      if (in_comment_) {
        i = leave(line, i, "*/", in_comment_);
      } else if (!raw_end_.empty()) {
        const std::size_t end = line.find(raw_end_, i);
        if (end == std::string_view::npos) return;
        i = end + raw_end_.size();
        raw_end_.clear();
      } else if (line.substr(i).starts_with("//")) {
        return;
      } else if (line.substr(i).starts_with("/*")) {
        in_comment_ = true;
        i += 2;
      } else if (line.substr(i).starts_with("R\"")) {
        const std::size_t open = line.find('(', i);
        raw_end_ = ")" + std::string(line.substr(i + 2, open - i - 2)) + "\"";
        i = open + 1;
      } else if (line[i] == '"' || (line[i] == '\'' && (i == 0 || !is_word(line[i - 1])))) {
        i = skip_quoted(line, i);
      } else {
        ++i;
      }
    }
  }

 private:
  static std::size_t leave(std::string_view line, std::size_t i, std::string_view end, bool& inside) {
    const std::size_t at = line.find(end, i);
    if (at == std::string_view::npos) return line.size();
    inside = false;
    return at + end.size();
  }
  static std::size_t skip_quoted(std::string_view line, std::size_t i) {
    const char quote = line[i++];
    while (i < line.size() && line[i] != quote) i += line[i] == '\\' ? 2 : 1;
    return i + 1;
  }

  bool in_comment_ = false;
  std::string raw_end_;
};

/// `#  include <x>  // why` -> {"include", "<x>"}; {"", ""} if the line is no directive.
std::pair<std::string, std::string> directive(std::string_view line) {
  auto skip_blanks = [&](std::size_t i) {
    while (i < line.size() && (line[i] == ' ' || line[i] == '\t')) ++i;
    return i;
  };
  std::size_t i = skip_blanks(0);
  if (i == line.size() || line[i] != '#') return {};
  i = skip_blanks(i + 1);
  std::size_t end = i;
  while (end < line.size() && is_word(line[end])) ++end;
  std::string name(line.substr(i, end - i));
  i = skip_blanks(end);
  end = i;
  if (name == "include") {
    end = line.find(line[i] == '<' ? '>' : '"', i + 1) + 1;
  } else {
    while (end < line.size() && is_word(line[end])) ++end;
  }
  return {std::move(name), std::string(line.substr(i, end - i))};
}

// ---- Reading one file

/// Records an include; returns whether its line is dropped.
bool take_include(File& file, const std::string& what, int depth, std::size_t line) {
  if (!what.starts_with("<")) fail(file.name, line, "include " + what + " is not spelled <thimble/...>");
  const std::string path = what.substr(1, what.size() - 2);
  if (path.starts_with("thimble/")) {
    if (depth > 0) fail(file.name, line, "include " + what + " under a condition cannot be merged");
    file.includes.push_back(path.substr(8));
    return true;
  }
  const bool needs_files = path == "zlib.h" || path == "utf8proc.h" || path.starts_with("nlohmann/");
  if (needs_files) file.needs_files = true;
  if (file.is_header() && path != "nlohmann/json_fwd.hpp" && needs_files) {
    fail(file.name, line, "a header includes " + what);
  }
  if (depth > 0) return false;
  file.others.insert(path);
  return true;
}

File read_file(const fs::path& root, const std::string& name) {
  std::ifstream in(root / name);
  if (!in) throw std::runtime_error((root / name).string() + ": cannot be read");
  File file;
  file.name = name;
  Scanner scanner;
  int depth = 0;
  bool continues = false;  // the previous line ended in a backslash
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    bool is_dropped = false;
    if (scanner.at_code() && !continues) {
      const auto [verb, argument] = directive(line);
      if (verb == "if" || verb == "ifdef" || verb == "ifndef") ++depth;
      if (verb == "endif") --depth;
      if (verb == "define") file.defined.insert(argument);
      if (verb == "undef") file.defined.erase(argument);
      if (verb == "pragma" && argument == "once") is_dropped = true;
      if (verb == "include") is_dropped = take_include(file, argument, depth, number);
    }
    scanner.read(line);
    continues = line.ends_with('\\');
    if (is_dropped) continue;
    if (line.empty() && (file.body.empty() || file.body.ends_with("\n\n"))) continue;
    file.body += line + '\n';
  }
  while (file.body.ends_with("\n\n")) file.body.pop_back();
  if (!file.is_header() && !file.defined.empty()) {
    throw std::runtime_error(name + ": leaves the macro " + *file.defined.begin() + " defined");
  }
  return file;
}

// ---- The library

class Library {
 public:
  Library(const fs::path& root, const fs::path& list) : root_(root) {
    std::ifstream in(list);
    if (!in) throw std::runtime_error(list.string() + ": cannot be read");
    for (std::string name; std::getline(in, name);) {
      if (!name.empty()) add(name);
    }
    mark_files();
    for (const std::string& name : read_file(root, "thimble.h").includes) mark_public(name, &File::is_public);
    mark_public("models/models.h", &File::is_models);
  }

  /// Headers in include order, then sources in the order of the list.
  const std::vector<std::string>& order() const { return order_; }
  const File& at(const std::string& name) const { return files_.at(name); }

 private:
  void add(const std::string& name, const std::string& includer = "the list of files") {
    if (files_.contains(name)) return;
    if (!fs::exists(root_ / name)) throw std::runtime_error(name + ": not there, but named in " + includer);
    if (!open_.insert(name).second) throw std::runtime_error(name + ": includes itself through other headers");
    File file = read_file(root_, name);
    for (const std::string& include : file.includes) add(include, name);
    open_.erase(name);
    files_.emplace(name, std::move(file));
    order_.push_back(name);
  }

  /// Spreads needs_files from sources to their headers and to the files that include these, until nothing changes.
  void mark_files() {
    for (bool changed = true; std::exchange(changed, false);) {
      auto mark = [&](File& file) { changed |= !std::exchange(file.needs_files, true); };
      for (auto& [name, file] : files_) {
        for (const std::string& include : file.includes) {
          if (files_.at(include).needs_files) mark(file);
        }
        const auto header = files_.find(file.stem() + ".h");
        const auto source = files_.find(file.stem() + ".cpp");
        if (header == files_.end() || source == files_.end()) continue;
        if (header->second.needs_files || source->second.needs_files) {
          mark(header->second);
          mark(source->second);
        }
      }
    }
  }

  void mark_public(const std::string& name, bool File::*mark) {
    File& file = files_.at(name);
    if (file.is_public || std::exchange(file.*mark, true)) return;
    for (const std::string& include : file.includes) mark_public(include, mark);
  }

  fs::path root_;
  std::map<std::string, File> files_;
  std::vector<std::string> order_;
  std::set<std::string> open_;
};

// ---- Writing

constexpr std::size_t parts = 8;  // that bodies are split into

/// The sections of the output, in order.
class Writer {
 public:
  explicit Writer(const Library& library) : library_(library) {}

  /// Writes the headers that `wanted` picks, after their external includes, under `condition` and a guard.
  template <class Wanted>
  void headers(const std::string& guard, const std::string& condition, const Wanted& wanted) {
    std::string bodies;
    std::set<std::string> others;
    for (const std::string& name : library_.order())
      if (const File& file = library_.at(name); file.is_header() && wanted(file)) bodies += take(file, others);
    section(guard, condition, others, bodies);
  }

  /// Writes the bodies that need files, or the others, in parts that THIMBLE_PART selects.
  void sources(const std::string& guard, const std::string& condition, bool files) {
    std::vector<const File*> all;
    for (const std::string& name : library_.order())
      if (const File& file = library_.at(name); !file.is_header() && file.needs_files == files) all.push_back(&file);
    std::vector<std::string> bodies(parts);
    std::set<std::string> others;
    std::stable_sort(all.begin(), all.end(), [](const File* a, const File* b) { return cost(*a) > cost(*b); });
    std::vector<std::size_t> costs(parts, 0);
    for (const File* file : all) {
      const auto part = static_cast<std::size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
      costs[part] += cost(*file);
      bodies[part] += take(*file, others);
    }
    std::string text;
    for (std::size_t i = 0; i < parts; ++i)
      text += "\n#if !defined(THIMBLE_PART) || THIMBLE_PART == " + std::to_string(i + 1) + "\n" + bodies[i] +
              "\n#endif  // THIMBLE_PART\n";
    section(guard, condition, others, text);
  }

  const std::string& text() const { return text_; }

 private:
  /// Relative compile time of a body: kernels are loops in many dtypes and instruction sets.
  static std::size_t cost(const File& file) {
    return file.body.size() * (file.name.find("/kernels/cpu/") == std::string::npos ? 1 : 3);
  }

  static std::string take(const File& file, std::set<std::string>& others) {
    others.insert(file.others.begin(), file.others.end());
    return "\n// ---- thimble/" + file.name + "\n\n" + file.body;
  }

  void section(const std::string& guard, const std::string& condition, const std::set<std::string>& others,
               const std::string& bodies) {
    text_ += "\n#if " + condition + (condition.empty() ? "" : " && ") + "!defined(" + guard + ")\n#define " + guard;
    text_ += "\n\n";
    for (const std::string& other : others) text_ += "#include <" + other + ">\n";
    text_ += bodies + "\n#endif  // " + guard + "\n";
  }

  const Library& library_;
  std::string text_;
};

std::string single_header(const Library& library, const std::string& version) {
  Writer writer(library);
  const std::string files = "defined(THIMBLE_WITH_FILES)", bodies = "defined(THIMBLE_IMPLEMENTATION)";
  writer.headers("THIMBLE_HPP", "", [](const File& file) { return file.is_public && !file.needs_files; });
  writer.headers("THIMBLE_MODELS_HPP", "(" + files + " || " + bodies + ")",
                 [](const File& file) { return file.is_models && !file.needs_files; });
  writer.headers("THIMBLE_FILES_HPP", files,
                 [](const File& file) { return (file.is_public || file.is_models) && file.needs_files; });
  writer.headers("THIMBLE_INNER_HPP", bodies,
                 [](const File& file) { return !file.is_public && !file.is_models && !file.needs_files; });
  writer.sources("THIMBLE_BODIES_HPP", bodies, false);
  writer.headers("THIMBLE_INNER_FILES_HPP", bodies + " && " + files,
                 [](const File& file) { return !file.is_public && !file.is_models && file.needs_files; });
  writer.sources("THIMBLE_FILES_BODIES_HPP", bodies + " && " + files, true);
  return "// Thimble " + version +
         R"text(: deep learning inside a number of bytes, in one file. Generated from its sources.
// SPDX-License-Identifier: Apache-2.0. Licensed under the Apache License, Version 2.0; distributed on an "AS IS" basis,
// without warranties or conditions of any kind.
//
// Include it wherever it is used; in exactly one .cpp file, first
//   #define THIMBLE_IMPLEMENTATION
// Needs a C++20 compiler and nothing else. Compile with -O2 -ffp-contract=off: results are the same bits under every
// plan only then. That one file takes a compiler minutes, so compile it in eight parts, on all cores, once:
//   seq 8 | xargs -P 8 -I @ g++ -std=c++20 -O2 -ffp-contract=off -DTHIMBLE_PART=@ -c implementation.cpp -o part@.o
//   g++ -std=c++20 -O2 -ffp-contract=off main.cpp part?.o -pthread -o main
// Weights, adapters, tokenizers, data sets in gzip files, plans and runs of named models join where
// THIMBLE_WITH_FILES is defined, in every file that includes this one; they need nlohmann-json, zlib and
// utf8proc (-lz -lutf8proc).
)text" + writer.text();
}

}  // namespace

int main(int argc, char* argv[]) {
  if (argc != 5) {
    std::cerr << "usage: amalgamate VERSION INCLUDE_DIR LIST OUTPUT\n";
    return 2;
  }
  try {
    const Library library(fs::path(argv[2]) / "thimble", argv[3]);
    const std::string text = single_header(library, argv[1]);
    std::ofstream out(argv[4], std::ios::binary);
    out << text;
    out.close();
    if (!out) throw std::runtime_error(std::string(argv[4]) + ": cannot be written");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "amalgamate: " << error.what() << '\n';
    return 1;
  }
}
