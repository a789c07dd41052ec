// NumPy's array printing (numpy.array2string with its default options), for every dtype.

#include <thimble/core/ops/text.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble {
namespace {

constexpr std::int64_t longest_whole = 1000;  // more elements than this are abridged
constexpr int precision = 8;                  // digits after the point
constexpr std::size_t line_width = 75;

// The fewest significant digits that identify a finite number in its dtype, and the exponent of the first.
struct Digits {
  bool is_negative = false;
  std::string digits = "0";
  int exponent = 0;
};

Digits parse_scientific(std::string_view text) {  // "-1.25e+03"
  Digits d;
  d.is_negative = text.front() == '-';
  const std::size_t e = text.find('e');
  d.digits.clear();
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') d.digits += c;
  }
  while (d.digits.size() > 1 && d.digits.back() == '0') d.digits.pop_back();
  const bool has_plus = text[e + 1] == '+';
  std::from_chars(text.data() + e + 1 + has_plus, text.data() + text.size(), d.exponent);
  return d;
}

std::string scientific(double value, int digits) {
  char buffer[64];
  const int n = std::snprintf(buffer, sizeof buffer, "%.*e", digits, value);
  return std::string(buffer, static_cast<std::size_t>(n));
}

double rounded(double value, DType dtype) {
  return visit(dtype, [&]<class T>() { return convert_value<double>(convert_value<T>(value)); });
}

// The fewest digits that the dtype's rounding takes back to `value`.
Digits shortest(double value, DType dtype) {
  for (int digits = 0; digits < 17; ++digits) {
    const std::string text = scientific(value, digits);
    if (rounded(std::strtod(text.c_str(), nullptr), dtype) == value) return parse_scientific(text);
  }
  return parse_scientific(scientific(value, 17));
}

// The fewest digits that identify the value, rounded to at most `precision` after the point.
Digits limited(double value, DType dtype, bool is_exponent_form) {
  Digits d = shortest(value, dtype);
  const int behind = static_cast<int>(d.digits.size()) - 1 - (is_exponent_form ? 0 : d.exponent);
  if (behind <= precision) return d;
  if (is_exponent_form) return parse_scientific(scientific(value, precision));
  return parse_scientific(scientific(value, precision + d.exponent));  // values below 1e-4 use the other form
}

struct Parts {
  std::string whole, fraction, exponent;  // "-1", "25", "+03"
};

Parts fixed_parts(const Digits& d) {
  Parts parts;
  const int n = static_cast<int>(d.digits.size());
  for (int i = 0; i <= std::max(d.exponent, 0); ++i) {
    const int at = d.exponent < 0 ? -1 : i;
    parts.whole += at >= 0 && at < n ? d.digits[static_cast<std::size_t>(at)] : '0';
  }
  for (int i = d.exponent + 1; i < n; ++i) parts.fraction += i < 0 ? '0' : d.digits[static_cast<std::size_t>(i)];
  if (d.is_negative) parts.whole.insert(0, 1, '-');
  return parts;
}

Parts exponent_parts(const Digits& d) {
  Parts parts;
  parts.whole = std::string(d.is_negative ? "-" : "") + d.digits[0];
  parts.fraction = d.digits.substr(1);
  const std::string size = std::to_string(std::abs(d.exponent));
  parts.exponent = (d.exponent < 0 ? "-" : "+") + std::string(size.size() < 2 ? 1 : 0, '0') + size;
  return parts;
}

std::string padded(const std::string& text, std::size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

// Magnitudes from here on have more digits than the dtype can hold (NumPy: ten to its decimal precision, at most 8).
double largest_fixed(DType dtype) { return dtype == DType::f64 ? 1e8 : dtype == DType::f32 ? 1e6 : 1e3; }

bool needs_exponents(const std::vector<double>& values, DType dtype) {
  double largest = 0, smallest = INFINITY;
  for (const double v : values) {
    if (!std::isfinite(v) || v == 0) continue;
    largest = std::max(largest, std::abs(v));
    smallest = std::min(smallest, std::abs(v));
  }
  return largest > 0 &&
         (largest >= largest_fixed(dtype) || smallest < rounded(1e-4, dtype) || largest / smallest > 1000);
}

// The values as texts of one width.
std::vector<std::string> float_words(const std::vector<double>& values, DType dtype) {
  const bool has_exponents = needs_exponents(values, dtype);
  std::vector<Parts> parts(values.size());
  std::size_t whole = 0, fraction = 0, exponent = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    const Digits d = limited(values[i], dtype, has_exponents);
    parts[i] = has_exponents ? exponent_parts(d) : fixed_parts(d);
    whole = std::max(whole, parts[i].whole.size());
    fraction = std::max(fraction, parts[i].fraction.size());
    exponent = std::max(exponent, parts[i].exponent.size());
  }
  std::vector<std::string> words;
  std::size_t width = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    Parts& p = parts[i];
    std::string word = std::isnan(values[i]) ? "nan" : values[i] > 0 ? "inf" : "-inf";
    if (std::isfinite(values[i])) {
      if (has_exponents) p = exponent_parts(parse_scientific(scientific(values[i], static_cast<int>(fraction))));
      p.fraction.resize(fraction, has_exponents ? '0' : ' ');
      word = padded(p.whole, whole) + "." + p.fraction;
      if (has_exponents) {
        word += "e" + p.exponent.substr(0, 1) + std::string(exponent - p.exponent.size(), '0') + p.exponent.substr(1);
      }
    }
    width = std::max(width, word.size());
    words.push_back(std::move(word));
  }
  for (std::string& word : words) word = padded(word, width);
  return words;
}

std::vector<std::string> integer_words(const Tensor& t) {
  std::vector<std::string> words;
  for (const std::int64_t v : to_host<std::int64_t>(t)) {
    words.push_back(t.dtype() == DType::boolean ? (v != 0 ? "True" : "False") : std::to_string(v));
  }
  // NumPy pads True to the width of False, except a scalar.
  std::size_t width = t.dtype() == DType::boolean && t.rank() > 0 ? 5 : 0;
  for (const std::string& word : words) width = std::max(width, word.size());
  for (std::string& word : words) word = padded(word, width);
  return words;
}

// The shown elements: all, or `edge` at either end of every axis.
Tensor shown(const Tensor& t, std::int64_t edge) {
  Tensor result = t.detach();
  for (int axis = 0; axis < t.rank(); ++axis) {
    const std::int64_t size = t.size(axis);
    if (size <= 2 * edge) continue;
    Shape shape = result.shape();
    shape[axis] = 2 * edge;
    const Tensor picked = Tensor::empty_like(result, shape);
    copy_into(view::slice(picked, axis, 0, edge), view::slice(result, axis, 0, edge));
    copy_into(view::slice(picked, axis, edge, 2 * edge), view::slice(result, axis, size - edge, size));
    result = picked;
  }
  return result;
}

// Lays words out as nested lists. `shape` is the shown shape; cut[axis] tells whether the axis has dots in its middle.
struct TextLayout {
  std::vector<std::string> words;
  Shape shape;
  std::vector<bool> cut;
  std::int64_t edge;
  std::size_t next = 0;

  // The innermost lists break between words.
  std::string row(int axis) {
    const std::size_t limit = line_width - static_cast<std::size_t>(axis) - 1;
    const std::string indent(static_cast<std::size_t>(axis) + 1, ' ');
    std::string text, line = indent;
    const auto add = [&](const std::string& word) {
      if (line.size() + word.size() > limit && line.size() > indent.size()) {
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
        line = indent;
      }
      line += word;
    };
    for (std::int64_t i = 0; i < shape[axis]; ++i) {
      if (cut[static_cast<std::size_t>(axis)] && i == edge) add("..."), line += " ";
      add(words[next++]);
      if (i + 1 < shape[axis]) line += " ";
    }
    return "[" + (text + line).substr(indent.size()) + "]";
  }

  std::string list(int axis) {  // NOLINT(misc-no-recursion): at most max_rank deep
    if (axis == shape.rank()) return words[next++];
    if (axis + 1 == shape.rank()) return row(axis);
    const std::string indent(static_cast<std::size_t>(axis) + 1, ' ');
    const std::string gap(static_cast<std::size_t>(shape.rank() - axis - 1), '\n');
    std::string text = "[";
    for (std::int64_t i = 0; i < shape[axis]; ++i) {
      if (i > 0) text += gap + indent;
      if (cut[static_cast<std::size_t>(axis)] && i == edge) text += "..." + gap + indent;
      text += list(axis + 1);
    }
    return text + "]";
  }
};

}  // namespace

std::string to_text(const Tensor& t, int edge) {
  if (!t.defined()) return describe(t);
  if (edge < 1) throw ValueError("to_text: edge " + std::to_string(edge) + "; expected at least 1");
  if (t.device().is_dry) throw DeviceError("to_text: " + describe(t) + " has no values: a dry device runs no kernels");
  if (t.elements() == 0) return "[]";
  const bool is_cut = t.elements() > longest_whole;
  std::vector<bool> cut;
  for (const std::int64_t size : t.shape()) cut.push_back(is_cut && size > 2 * edge);
  const Tensor part = is_cut ? shown(t, edge) : t.detach();
  const std::vector<std::string> words =
      is_floating(t.dtype()) ? float_words(to_host<double>(part), t.dtype()) : integer_words(part);
  TextLayout layout{words, part.shape(), cut, edge};
  return layout.list(0);
}

}  // namespace thimble
