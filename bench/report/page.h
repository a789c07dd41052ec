#pragma once
// The elements of a page, which is one file. The build puts its style sheet and script from web/ into the program.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/text.h>

namespace thimble::report {

/// All of web/*.css, and of web/*.js, in the order of their names.
std::string_view web_style() noexcept;
std::string_view web_script() noexcept;

/// From the document's type to <body>, which gets the class. `title` is markup.
std::string begin_page(const std::string& title, const std::string& body_class = "");

/// The script, and the end of the document.
std::string end_page();

/// A card with a picture and the JSON of its Hover. `title` and `caption` are markup. The figure gets `attributes`.
std::string figure_card(const Figure& figure, const std::string& title, const std::string& caption,
                        const std::string& attributes = "");
/// A card with a plot, bars or a timeline, whose title and caption are text.
template <class Picture>
std::string figure_card(const Picture& picture) {
  return figure_card(page_figure(picture), escape_markup(picture.title), escape_markup(picture.caption));
}

/// A card of a <dl class="stats">: all markup; `is_words`: the value is no number.
std::string stat_card(const std::string& name, const std::string& value, const std::string& detail,
                      bool is_words = false);

/// A table's cell: exact bytes, and below them in words.
std::string byte_cell(std::int64_t bytes);

}  // namespace thimble::report
