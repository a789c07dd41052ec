#pragma once
// The data of a picture for a page's script (web/): entries under the pointer, which the arrow keys go through as well.
//
// {"kind","frame":[left,top,right,bottom],"count": units across the frame,"high": units up the frame,
//  "reach": px around a box in which the pointer finds its entry,"texts":[...],"entries": their number,
//  columns "from","to","low","size" (an entry's box),"heading","path" (numbers of texts),
//  "rows":[{"name","paint": column of texts,"values": column of bytes, or of texts where "is_text"},...],
//  "spans":[[first entry, end, paint, name, value],...]: a row of each entry in [first, end)}
// A column is a number that all entries have, or the differences from entry to entry, which are mostly short.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/drawing.h>

namespace thimble::report {

class Hover {
 public:
  using Column = std::vector<std::int64_t>;
  struct Entry {
    double from = 0, to = 0, low = 0, size = 0;
    std::string_view heading = {}, path = {};
  };

  Hover(std::string_view kind, const Frame& frame, double count, double high, double reach = 0.5) {
    data_ = {{"kind", kind},
             {"frame", {frame.left, frame.top, frame.right, frame.bottom}},
             {"count", count},
             {"high", high},
             {"reach", reach}};
    data_["rows"] = data_["spans"] = nlohmann::ordered_json::array();
  }

  void add(const Entry& entry) {
    const std::int64_t values[] = {std::llround(entry.from), std::llround(entry.to), std::llround(entry.low),
                                   std::llround(entry.size), text(entry.heading),    text(entry.path)};
    for (std::size_t i = 0; i < std::size(names); ++i) entries_[i].push_back(values[i]);
  }
  std::size_t entries() const noexcept { return entries_[0].size(); }

  void add_row(std::string_view name, const Column& paints, const Column& values, bool is_text = false) {
    data_["rows"].push_back(
        {{"name", name}, {"paint", differences(paints)}, {"values", differences(values)}, {"is_text", is_text}});
  }
  void add_span(std::size_t first, std::size_t end, std::string_view paint, std::string_view name,
                std::string_view value) {
    data_["spans"].push_back({first, end, paint, name, value});
  }
  /// A field that only some kinds of picture have.
  nlohmann::ordered_json& operator[](const char* field) { return data_[field]; }

  /// The number of a text: scripts get each once.
  std::int64_t text(std::string_view text) {
    const auto [found, is_new] = text_numbers_.try_emplace(std::string(text), texts_.size());
    if (is_new) texts_.push_back(found->first);
    return static_cast<std::int64_t>(found->second);
  }

  std::string json() {
    data_["texts"] = texts_;
    data_["entries"] = entries();
    for (std::size_t i = 0; i < std::size(names); ++i) data_[names[i]] = differences(entries_[i]);
    return data_.dump();
  }

  static nlohmann::ordered_json differences(const Column& values) {
    const bool is_constant = std::all_of(values.begin(), values.end(), [&](auto v) { return v == values.front(); });
    if (is_constant && !values.empty()) return values.front();
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < values.size(); ++i) list.push_back(values[i] - (i == 0 ? 0 : values[i - 1]));
    return list;
  }

 private:
  static constexpr const char* names[] = {"from", "to", "low", "size", "heading", "path"};
  nlohmann::ordered_json data_;
  Column entries_[std::size(names)];
  std::map<std::string, std::size_t, std::less<>> text_numbers_;
  std::vector<std::string> texts_;
};

}  // namespace thimble::report
