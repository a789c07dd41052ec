#pragma once
// Reports made by hand, to test a command's output.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>

#include "support/catch.h"
#include "support/files.h"

namespace reports_test {

using namespace thimble;
using nlohmann::json;

/// Numbers that no two fields share. All have six digits, so that none is part of another.
class Numbers {
 public:
  std::int64_t next() { return last_ += 1009; }
  std::size_t bytes() { return static_cast<std::size_t>(next()); }
  double real() { return static_cast<double>(next()) + 0.25; }
  memory::CategoryBytes categories() {
    memory::CategoryBytes all{};
    for (std::size_t& each : all) each = bytes();
    return all;
  }
  memory::OutsideBytes outside() { return {bytes(), bytes(), bytes(), bytes(), bytes(), bytes()}; }

 private:
  std::int64_t last_ = 100'000;
};

/// Redirects standard output to a file for a scope.
class Redirected {
 public:
  Redirected() : kept_((std::fflush(stdout), dup(STDOUT_FILENO))), file_(std::fopen((folder_ / "out").c_str(), "w")) {
    dup2(fileno(file_), STDOUT_FILENO);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
  ~Redirected() {
    flush();
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
    std::fclose(file_);
  }
  std::string text() const {
    flush();
    return files_test::read_text_file(folder_ / "out");
  }

 private:
  static void flush() {
    std::cout.flush();
    std::fflush(stdout);
  }
  files_test::TemporaryFolder folder_;
  int kept_;
  FILE* file_;
};

/// The output of `print`.
template <class F>
std::string printed(F&& print) {
  const Redirected out;
  print();
  return out.text();
}

inline json by_category(const memory::CategoryBytes& bytes) {
  return {{"parameter", bytes[0]}, {"gradient", bytes[1]},  {"optimizer", bytes[2]}, {"activation", bytes[3]},
          {"temporary", bytes[4]}, {"workspace", bytes[5]}, {"input", bytes[6]},     {"communication", bytes[7]}};
}

inline json outside_of(const memory::OutsideBytes& o) {
  return {{"code_bytes", o.code},   {"heap_bytes", o.heap},       {"threads_bytes", o.threads},
          {"nodes_bytes", o.nodes}, {"staging_bytes", o.staging}, {"data_bytes", o.data}};
}

/// Compares two documents key by key and names the first difference.
inline void check_same(const std::string& text, const json& expected) {
  const json told = json::parse(text).flatten(), flat = expected.flatten();
  for (const auto& [path, value] : flat.items()) {
    INFO(path);
    CHECK(told.contains(path));
    if (told.contains(path)) CHECK(told[path] == value);
  }
  for (const auto& [path, value] : told.items()) {
    INFO(path << ": " << value << " is not in the report made by hand");
    CHECK(flat.contains(path));
  }
}

/// A table's line of bytes: "name 123,456 120.56 KiB".
inline std::string bytes_line(const std::string& name, std::size_t bytes) {
  return name + " " + format_grouped(bytes) + " " + format_bytes(bytes);
}

/// A line for each category.
inline std::vector<std::string> category_lines(const memory::CategoryBytes& bytes) {
  const char* const names[] = {"parameter", "gradient",  "optimizer", "activation",
                               "temporary", "workspace", "input",     "communication"};
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < bytes.size(); ++i) lines.push_back(bytes_line(names[i], bytes[i]));
  return lines;
}

/// A number with fixed decimals: "12.3".
inline std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

/// "12.3 %" for 0.123.
inline std::string percent(double share) { return report::format_percent(share); }

/// Concatenates lists.
inline std::vector<std::string> joined(std::vector<std::vector<std::string>> lists) {
  std::vector<std::string> all;
  for (const std::vector<std::string>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// Compares a table, with runs of spaces as one, with exactly these lines.
inline void check_lines(const std::string& table, const std::vector<std::string>& expected) {
  std::vector<std::string> lines;
  std::istringstream in(table);
  for (std::string line; std::getline(in, line);) {
    lines.emplace_back();
    std::istringstream words(line);
    for (std::string word; words >> word;) lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  for (std::size_t i = 0; i < std::max(lines.size(), expected.size()); ++i) {
    CHECK((i < lines.size() ? lines[i] : "no line") == (i < expected.size() ? expected[i] : "no line"));
  }
}

inline models::RankPlan rank_plan(Numbers& n, std::vector<int> ranks) {
  models::RankPlan plan;
  plan.ranks = std::move(ranks);
  plan.report.plan.peak_bytes = n.bytes();
  plan.report.plan.peak_by_category = n.categories();
  plan.report.committed = {n.bytes(), n.bytes(), n.bytes()};
  plan.report.keep_everything_bytes = n.bytes();
  return plan;
}

inline json packed_of(const nn::PackedResults& p) {
  return {{"operator", p.name},
          {"dtype", "i8"},
          {"tensors", p.tensors},
          {"bytes", p.bytes},
          {"packed_bytes", p.packed_bytes}};
}

}  // namespace reports_test
