#include <thimble/bench/report/page.h>

#include <thimble/bench/report/palette.h>
#include <thimble/memory/units.h>

namespace thimble::report {

std::string begin_page(const std::string& title, const std::string& body_class) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>" + title +
                     "</title>\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<style>\n" +
                     palette_css();
  html.append(web_style()).append("</style></head>\n<body");
  return html + (body_class.empty() ? "" : " class=\"" + body_class + "\"") + ">\n";
}

std::string end_page() { return std::string("<script>\n").append(web_script()).append("</script>\n</body></html>\n"); }

std::string figure_card(const Figure& figure, const std::string& title, const std::string& caption,
                        const std::string& attributes) {
  std::string data = figure.hover_json;
  // "<" in a JSON string could end the script element; its escape means the same to a JSON reader.
  for (std::size_t at = 0; (at = data.find('<', at)) != std::string::npos;) data.replace(at, 1, "\\u003c");
  return "<figure class=\"card\" data-kind=\"" + figure.kind + "\"" + attributes + "><h3>" + title + "</h3>" +
         figure.svg + (caption.empty() ? "" : "<figcaption>" + caption + "</figcaption>") +
         "<div class=\"tip\" hidden></div><script type=\"application/json\">" + data + "</script></figure>\n";
}

std::string stat_card(const std::string& name, const std::string& value, const std::string& detail, bool is_words) {
  return "<div class=\"card\"><dt>" + name + "</dt><dd" + (is_words ? " class=\"words\"" : "") + ">" + value + "</dd>" +
         (detail.empty() ? "" : "<small>" + detail + "</small>") + "</div>\n";
}

std::string byte_cell(std::int64_t bytes) {
  return "<td class=\"n\">" + format_grouped(bytes) + "<small>" + format_bytes(bytes) + "</small></td>";
}

}  // namespace thimble::report
