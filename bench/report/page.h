#pragma once
// What pages are made of. A page is one file: its style sheet and its script are those of web/, which the build puts
// into the program.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace thimble::report {

/// All of web/*.css, and of web/*.js, in the order of their names.
std::string_view web_style() noexcept;
std::string_view web_script() noexcept;

/// From the document's type to <body>, which gets the class. `title` is markup.
std::string begin_page(const std::string& title, const std::string& body_class = "");

/// The script, and the end of the document.
std::string end_page();

/// A card with pictures and what the script shows of them. `title`, `content`, which holds the pictures, and `caption`
/// are markup, `attributes` those of the figure.
std::string figure_card(const std::string& kind, const std::string& title, const std::string& content,
                        const std::string& hover_json, const std::string& caption, const std::string& attributes = "");

/// A card of a <dl class="stats">: all markup; `is_words`: the value is no number.
std::string stat_card(const std::string& name, const std::string& value, const std::string& detail,
                      bool is_words = false);

/// A table's cell: exact bytes, and below them in words.
std::string byte_cell(std::int64_t bytes);

}  // namespace thimble::report
