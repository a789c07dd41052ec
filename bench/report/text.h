#pragma once
// Text that ends up in tables, pictures and pages: numbers, escaping, widths. Independent of the locale.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <thimble/bench/report/experiment.h>

namespace thimble::report {

inline constexpr const char* check_mark = "\xE2\x9C\x93";

/// `decimals` digits after the point, digits before it in groups of three: "1,234.50".
std::string format_fixed(double value, int decimals);
/// "+1,024", "-1,024", "0", with a true minus sign.
std::string signed_bytes(std::int64_t difference);
/// A share as percent: 0.1234 is "12.3 %".
std::string format_percent(double share);
/// Of a bound from above, rounded up: 0.1231 is "12.4 %".
std::string format_most_percent(double share);

/// At most `decimals` digits after the point, no trailing zeros: "1,234.5", "32".
std::string format_trimmed(double value, int decimals);

/// A quantity as shown to people: bytes "4.99 GiB", milliseconds "12.30 ms", percent "11.95 %" for 0.1195, plain
/// "1,234.50"; NaN is "not a number".
std::string format_quantity(double value, Unit unit, int decimals);

/// A quantity without loss, for hover texts: bytes "5,358,000,000 bytes (4.99 GiB)", others with all their digits.
std::string format_exact(double value, Unit unit);

/// The value of a setting: strings as they are, integers without grouping (a batch, a year), reals in shortest form.
std::string format_setting(const Setting& setting);

/// As format_setting, for people: integers of five and more digits in groups of three.
std::string display_setting(const Setting& setting);

/// `text` with & < > " ' replaced by references: safe as content and as an attribute of HTML and XML. Control
/// characters that XML forbids become U+FFFD.
std::string escape_markup(std::string_view text);

/// As escape_markup, but the tags <sub> <sup> <i> <b> <code> (opening and closing, without attributes) and <br> stay.
/// The text closes the tags that it opens.
std::string escape_except_simple_tags(std::string_view text);

/// Columns that `text` takes in a terminal: its code points (no wide or combining characters are expected).
std::size_t display_width(std::string_view text) noexcept;

/// An estimate, on the wide side, of the width of `text` in pixels at `size` px in a system sans-serif font.
double text_width(std::string_view text, double size, bool is_bold = false) noexcept;

/// `text` cut to `width` px with an ellipsis where it is longer.
std::string fit_text(const std::string& text, double size, double width, bool is_bold = false);

/// `text` broken at spaces into at most `lines_max` lines of at most `width` px. Longer text is cut with an
/// ellipsis.
std::vector<std::string> wrap_text(const std::string& text, double size, double width, std::size_t lines_max = 3);

}  // namespace thimble::report
