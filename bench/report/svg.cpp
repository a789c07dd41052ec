#include <thimble/bench/report/svg.h>

#include <cmath>
#include <utility>

#include <thimble/bench/report/text.h>

namespace thimble::report {
namespace svg_detail {

constexpr std::string_view fonts =
    "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif";

std::string attribute(std::string_view name, const std::string& value) {
  return std::string(" ").append(name).append("=\"").append(value).append("\"");
}

}  // namespace svg_detail

std::string coordinate(double value) {
  const auto hundredths = std::llround(value * 100);
  const auto magnitude = hundredths < 0 ? -hundredths : hundredths;
  std::string text = hundredths < 0 ? "-" : "";
  text += std::to_string(magnitude / 100);
  const auto rest = magnitude % 100;
  if (rest == 0) return text;
  text += rest < 10 ? ".0" : ".";
  return text += std::to_string(rest % 10 == 0 ? rest / 10 : rest);
}

SvgPath& SvgPath::move(double x, double y) {
  commands_.append("M").append(coordinate(x)).append(" ").append(coordinate(y));
  return *this;
}

SvgPath& SvgPath::line(double x, double y) {
  commands_.append("L").append(coordinate(x)).append(" ").append(coordinate(y));
  return *this;
}

SvgPath& SvgPath::horizontal(double x) {
  commands_.append("H").append(coordinate(x));
  return *this;
}

SvgPath& SvgPath::vertical(double y) {
  commands_.append("V").append(coordinate(y));
  return *this;
}

SvgPath& SvgPath::close() {
  commands_.append("Z");
  return *this;
}

Svg::Svg(Medium medium, double width, double height, std::string title, std::string description)
    : medium_(medium), width_(width), height_(height), title_(std::move(title)), description_(std::move(description)) {
  if (medium_ == Medium::file) rectangle(0, 0, width, height, {.fill = paints::surface});
}

std::string Svg::attributes(const Look& look) {
  using svg_detail::attribute;
  std::string classes;
  std::string result;
  if (look.fill.name.empty()) {
    if (!look.stroke.name.empty()) result += attribute("fill", "none");
  } else {
    use(look.fill);
    classes.append("f-").append(look.fill.name);
    if (medium_ == Medium::file) result += attribute("fill", std::string(look.fill.light));
  }
  if (!look.stroke.name.empty()) {
    use(look.stroke);
    if (!classes.empty()) classes += " ";
    classes.append("s-").append(look.stroke.name);
    if (medium_ == Medium::file) result += attribute("stroke", std::string(look.stroke.light));
    if (look.stroke_width != 1) result += attribute("stroke-width", coordinate(look.stroke_width));
    if (look.keeps_width) result += attribute("vector-effect", "non-scaling-stroke");
    if (!look.dashes.empty()) result += attribute("stroke-dasharray", std::string(look.dashes));
  }
  if (look.opacity != 1) result += attribute("opacity", coordinate(look.opacity));
  return attribute("class", classes) + result;
}

void Svg::element(std::string_view name, const std::string& geometry, const Look& look, std::string_view hover) {
  body_.append("<").append(name).append(geometry).append(attributes(look));
  if (hover.empty() || medium_ == Medium::page) {
    body_ += "/>\n";
  } else {
    body_.append("><title>").append(escape_markup(hover)).append("</title></").append(name).append(">\n");
  }
}

void Svg::line(double x1, double y1, double x2, double y2, const Look& look) {
  using svg_detail::attribute;
  element("line",
          attribute("x1", coordinate(x1)) + attribute("y1", coordinate(y1)) + attribute("x2", coordinate(x2)) +
              attribute("y2", coordinate(y2)),
          look, {});
}

void Svg::rectangle(double x, double y, double width, double height, const Look& look, double radius,
                    std::string_view hover) {
  using svg_detail::attribute;
  std::string geometry = attribute("x", coordinate(x)) + attribute("y", coordinate(y)) +
                         attribute("width", coordinate(width)) + attribute("height", coordinate(height));
  if (radius > 0) geometry += attribute("rx", coordinate(radius));
  element("rect", geometry, look, hover);
}

void Svg::circle(double x, double y, double radius, const Look& look, std::string_view hover) {
  using svg_detail::attribute;
  element("circle",
          attribute("cx", coordinate(x)) + attribute("cy", coordinate(y)) + attribute("r", coordinate(radius)), look,
          hover);
}

void Svg::path(const SvgPath& path, const Look& look, std::string_view hover) {
  element("path", svg_detail::attribute("d", path.commands()), look, hover);
}

void Svg::text(double x, double y, std::string_view text, const TextLook& look) {
  using svg_detail::attribute;
  use(look.fill);
  std::string head = "<text" + attribute("x", coordinate(x)) + attribute("y", coordinate(y));
  std::string classes = std::string("f-").append(look.fill.name);
  if (look.has_halo) {
    use(paints::surface);
    classes.append(" s-").append(paints::surface.name);
    head += " stroke-width=\"4\" stroke-linejoin=\"round\" paint-order=\"stroke\"";
    if (medium_ == Medium::file) head += attribute("stroke", std::string(paints::surface.light));
  }
  head += attribute("class", classes) + attribute("font-size", coordinate(look.size));
  if (look.anchor != "start") head += attribute("text-anchor", std::string(look.anchor));
  if (look.is_bold) head += " font-weight=\"600\"";
  if (medium_ == Medium::file) head += attribute("fill", std::string(look.fill.light));
  body_.append(head).append(">").append(escape_markup(text)).append("</text>\n");
}

void Svg::begin_group(std::string_view attributes) {
  body_.append("<g ").append(attributes).append(">\n");
  open_.push_back("g");
}

void Svg::begin_window(double left, double top, double right, double bottom, double units) {
  using svg_detail::attribute;
  const std::string height = coordinate(bottom - top);
  body_ += "<svg class=\"window\"" + attribute("x", coordinate(left)) + attribute("y", coordinate(top)) +
           attribute("width", coordinate(right - left)) + attribute("height", height) +
           attribute("viewBox", "0 " + coordinate(top) + " " + coordinate(units) + " " + height) +
           " preserveAspectRatio=\"none\">\n";
  open_.push_back("svg");
}

void Svg::end() {
  body_.append("</").append(open_.back()).append(">\n");
  open_.pop_back();
}

void Svg::set_aside(double width, std::string element) {
  width_ = width;
  aside_ = std::move(element);
}

std::string Svg::finish_legend() const {
  const std::string width = coordinate(width_), height = coordinate(height_);
  return "<svg class=\"legend\" width=\"" + width + "\" height=\"" + height + "\" viewBox=\"0 0 " + width + " " +
         height + "\" role=\"img\" aria-label=\"" + escape_markup(title_) + "\" font-family=\"" +
         std::string(svg_detail::fonts) + "\">\n" + body_ + "</svg>\n";
}

std::string Svg::finish() const {
  using svg_detail::attribute;
  const std::string size = coordinate(width_) + " " + coordinate(height_);
  std::string document;
  if (medium_ == Medium::file) document += "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  document += "<svg xmlns=\"http://www.w3.org/2000/svg\"" + attribute("viewBox", "0 0 " + size);
  if (medium_ == Medium::file)
    document += attribute("width", coordinate(width_)) + attribute("height", coordinate(height_));
  document += " role=\"img\"" + attribute("font-family", std::string(svg_detail::fonts));
  if (medium_ == Medium::page) {
    return "<div class=\"drawing\"><div class=\"scroll\">\n" + document +
           attribute("aria-label", escape_markup(title_ + ". " + description_)) + ">\n" + body_ + "</svg>\n</div>" +
           aside_ + "</div>\n";
  }
  document += "><title>" + escape_markup(title_) + "</title><desc>" + escape_markup(description_) + "</desc>\n";
  document += "<style>@media screen and (prefers-color-scheme:dark){";
  for (const auto& [name, dark] : used_) {
    for (const char* kind : {"f-", "s-"}) {
      document.append(".").append(kind).append(name).append(kind[0] == 'f' ? "{fill:" : "{stroke:");
      document.append(dark).append("}");
    }
  }
  return document + "}</style>\n" + body_ + "</svg>\n";
}

}  // namespace thimble::report
