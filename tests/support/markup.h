#pragma once
// Reads XML and HTML for tests: whether tags nest, and the positions of a picture's texts.

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/text.h>

namespace markup {

/// The value of attribute `name` in a tag, or "".
inline std::string attribute(std::string_view tag, const std::string& name) {
  const std::string key = " " + name + "=\"";
  const std::size_t at = tag.find(key);
  if (at == std::string_view::npos) return "";
  const std::size_t begin = at + key.size();
  return std::string(tag.substr(begin, tag.find('"', begin) - begin));
}

/// The attribute of the first tag that starts like `tag`.
inline std::string attribute_after(const std::string& document, const std::string& tag, const std::string& name) {
  const std::size_t at = document.find(tag);
  return at == std::string::npos ? "" : attribute(std::string_view(document).substr(at), name);
}

/// Why `document` is not well-formed, or "". Knows the void elements of HTML and skips the contents of script and
/// style.
inline std::string problem(const std::string& document) {
  static const std::set<std::string> void_elements = {"meta", "br", "link", "img", "hr"};
  std::vector<std::string> open;
  for (std::size_t at = 0; at < document.size();) {
    if (document[at] == '&') {
      const std::size_t end = document.find(';', at);
      if (end == std::string::npos || end > at + 8) return "a bare & in " + document.substr(at, 30);
    }
    if (document[at] == '>') return "a bare > before " + document.substr(at, 30);
    if (document[at] != '<') {
      ++at;
      continue;
    }
    std::size_t end = at;  // the next > outside quotes
    for (bool is_quoted = false; end < document.size() && (is_quoted || document[end] != '>'); ++end) {
      if (document[end] == '"') is_quoted = !is_quoted;
      if (end > at && document[end] == '<') return "a bare < in " + document.substr(at, 60);
    }
    if (end == document.size()) return "a tag without end: " + document.substr(at, 30);
    const std::string tag = document.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.empty() || tag[0] == '?' || tag[0] == '!') continue;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "</" + tag.substr(1) + "> closes nothing";
      open.pop_back();
      continue;
    }
    const std::string name = tag.substr(0, tag.find_first_of(" \n/"));
    if (name.empty() || std::isalpha(static_cast<unsigned char>(name[0])) == 0)
      return "a bare < before " + tag.substr(0, 30);
    if (tag.back() == '/' || void_elements.count(name) != 0) continue;
    open.push_back(name);
    if (name == "script" || name == "style") {
      at = document.find("</" + name, at);
      if (at == std::string::npos) return name + " does not end";
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

/// The box of a text, by the width that the layout assumes.
struct TextBox {
  std::string text;
  double left = 0, right = 0, top = 0, bottom = 0;
};

inline std::vector<TextBox> text_boxes(const std::string& svg) {
  std::vector<TextBox> boxes;
  for (std::size_t at = 0; (at = svg.find("<text", at)) != std::string::npos;) {
    const std::size_t end = svg.find('>', at);
    const std::string tag = svg.substr(at, end - at);
    TextBox box;
    box.text = svg.substr(end + 1, svg.find("</text>", end) - end - 1);
    for (const auto& [reference, character] : {std::pair<const char*, const char*>{"&lt;", "<"},
                                               {"&gt;", ">"},
                                               {"&quot;", "\""},
                                               {"&#39;", "'"},
                                               {"&amp;", "&"}}) {
      for (std::size_t k = 0; (k = box.text.find(reference, k)) != std::string::npos; ++k) {
        box.text.replace(k, std::string_view(reference).size(), character);
      }
    }
    at = end;
    const double x = std::stod(attribute(tag, "x")), y = std::stod(attribute(tag, "y"));
    const double size = std::stod(attribute(tag, "font-size"));
    const double width = thimble::report::text_width(box.text, size, !attribute(tag, "font-weight").empty());
    const std::string anchor = attribute(tag, "text-anchor");
    box.left = x - (anchor == "end" ? width : anchor == "middle" ? width / 2 : 0);
    box.right = box.left + width;
    box.top = y - size * 0.76;  // from the height of capitals to the descenders
    box.bottom = y + size * 0.22;
    if (!box.text.empty()) boxes.push_back(box);
  }
  return boxes;
}

/// Width and height of a picture.
inline std::pair<double, double> view_box(const std::string& svg) {
  const std::string box = attribute_after(svg, "<svg", "viewBox");
  const std::size_t space = box.rfind(' ');
  const std::size_t before = box.rfind(' ', space - 1);
  return {std::stod(box.substr(before + 1)), std::stod(box.substr(space + 1))};
}

/// A column of a page's picture (bench/report/hover.h): one number for all entries, or differences.
inline std::vector<std::int64_t> column(const nlohmann::json& picture, const nlohmann::json& given) {
  std::vector<std::int64_t> values(picture["entries"].get<std::size_t>(), 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        given.is_array() ? given.at(i).get<std::int64_t>() + (i > 0 ? values[i - 1] : 0) : given.get<std::int64_t>();
  }
  return values;
}

/// Sums over the picture's rows of this name, or over all.
inline std::vector<std::int64_t> sum_of_rows(const nlohmann::json& picture, const std::string& name = "") {
  std::vector<std::int64_t> sums(picture["entries"].get<std::size_t>(), 0);
  for (const nlohmann::json& row : picture["rows"]) {
    if (!name.empty() && row["name"] != name) continue;
    const std::vector<std::int64_t> values = column(picture, row["values"]);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  return sums;
}

}  // namespace markup
