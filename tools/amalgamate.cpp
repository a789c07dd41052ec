// Writes the single header: all headers of the library in include order, then the bodies of its .cpp files.
//
//   amalgamate VERSION INCLUDE_DIR LIST OUTPUT
//
// LIST names headers and sources, one per line, relative to INCLUDE_DIR/thimble, lower layers first. Rules:
//   - `#pragma once` and `#include <thimble/...>` are dropped: every file stands once, after all that it includes.
//   - Other includes move to the top of their part, once each. An include inside `#if` stays where it is.
//   - Bodies stand under THIMBLE_IMPLEMENTATION. What needs JSON or zlib, header or body, stands under
//     THIMBLE_WITH_FILES: a .cpp that includes them, the header of the same name, and whatever includes that header.
//   - A .cpp that leaves a macro defined is refused: the macro would reach the bodies after it.

#include <cctype>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
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
  std::string name;                   // "core/tensor/shape.h"
  std::vector<std::string> includes;  // of the library, as "core/tensor/shape.h"
  std::set<std::string> others;       // all other includes outside of conditionals
  std::set<std::string> defined;      // macros still defined at the end
  std::string body;                   // without pragma once and hoisted includes
  bool needs_files = false;

  bool is_header() const { return name.ends_with(".h"); }
  std::string stem() const { return name.substr(0, name.rfind('.')); }
};

[[noreturn]] void fail(const std::string& file, std::size_t line, const std::string& why) {
  throw std::runtime_error(file + ":" + std::to_string(line) + ": " + why);
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// ---- Which lines are code

/// Follows block comments, strings and raw strings across lines, so that a directive inside of one is not taken for
/// one.
class Scanner {
 public:
  /// True when the next line starts outside of comments and raw strings.
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

/// `#  include <x>  // why` -> {"include", "<x>"}; {"", ""} when the line is no directive.
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

/// Notes an include and says whether its line is dropped.
bool take_include(File& file, const std::string& what, int depth, std::size_t line) {
  if (!what.starts_with("<")) fail(file.name, line, "include " + what + " is not spelled <thimble/...>");
  const std::string path = what.substr(1, what.size() - 2);
  if (path.starts_with("thimble/")) {
    if (depth > 0) fail(file.name, line, "include " + what + " under a condition cannot be merged");
    file.includes.push_back(path.substr(8));
    return true;
  }
  if (path == "zlib.h" || path.starts_with("nlohmann/")) file.needs_files = true;
  if (file.is_header() && (file.needs_files || path.starts_with("Eigen/"))) {
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
  bool continues = false;  // the line before ended in a backslash
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

  /// Spreads needs_files from sources to their headers and to whatever includes those, until nothing changes.
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

  fs::path root_;
  std::map<std::string, File> files_;
  std::vector<std::string> order_;
  std::set<std::string> open_;
};

// ---- Writing

/// The parts of the output, in order: headers and bodies, without files and with.
class Writer {
 public:
  explicit Writer(const Library& library) : library_(library) {}

  /// The library's headers or bodies, the includes they need from outside first. Includes that an unconditional part
  /// has written are not repeated.
  std::string part(bool headers, bool files) {
    std::set<std::string> others;
    std::string text, bodies;
    for (const std::string& name : library_.order()) {
      const File& file = library_.at(name);
      if (file.is_header() != headers || file.needs_files != files) continue;
      others.insert(file.others.begin(), file.others.end());
      bodies += "\n// ---- thimble/" + name + "\n\n" + file.body;
    }
    for (const std::string& other : others) {
      if (!written_.contains(other)) text += "#include <" + other + ">\n";
    }
    if (!files) written_.merge(others);
    return text + bodies;
  }

 private:
  const Library& library_;
  std::set<std::string> written_;
};

std::string single_header(const Library& library, const std::string& version) {
  Writer writer(library);
  std::string text = "// Thimble " + version;
  text += R"(: deep learning inside a number of bytes, in one file. Generated from its sources.
// SPDX-License-Identifier: Apache-2.0. Licensed under the Apache License, Version 2.0; distributed on an "AS IS" basis,
// without warranties or conditions of any kind.
//
// Include it wherever it is used; in exactly one .cpp file, first
//   #define THIMBLE_IMPLEMENTATION
// Needs C++20 and, in that one file, Eigen 3.4 on the include path. Compile with -ffp-contract=off: results are the
// same bits under every plan only then. The files that need nlohmann-json and zlib join
// where THIMBLE_WITH_FILES is defined, in every file that includes this one.

#ifndef THIMBLE_HPP
#define THIMBLE_HPP

)";
  text += writer.part(true, false) + "\n#endif  // THIMBLE_HPP\n";
  text += "\n#if defined(THIMBLE_WITH_FILES) && !defined(THIMBLE_FILES_HPP)\n#define THIMBLE_FILES_HPP\n\n";
  text += writer.part(true, true) + "\n#endif  // THIMBLE_WITH_FILES\n";
  text += "\n#if defined(THIMBLE_IMPLEMENTATION) && !defined(THIMBLE_IMPLEMENTATION_HPP)\n";
  text += "#define THIMBLE_IMPLEMENTATION_HPP\n\n";
  text += "#ifndef EIGEN_DONT_PARALLELIZE\n#define EIGEN_DONT_PARALLELIZE\n#endif\n\n";
  text += writer.part(false, false) + "\n#endif  // THIMBLE_IMPLEMENTATION\n";
  text += "\n#if defined(THIMBLE_IMPLEMENTATION) && defined(THIMBLE_WITH_FILES) && !defined(THIMBLE_FILES_BODY_HPP)\n";
  text += "#define THIMBLE_FILES_BODY_HPP\n\n";
  return text + writer.part(false, true) + "\n#endif  // THIMBLE_WITH_FILES\n";
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
