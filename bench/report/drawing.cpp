#include <algorithm>
#include <array>
#include <cmath>

#include <thimble/bench/report/drawing.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {

namespace {

constexpr std::string_view fonts =
    "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif";

std::string attribute(std::string_view name, std::string_view value) {
  return std::string(" ").append(name).append("=\"").append(value).append("\"");
}
std::string attribute(std::string_view name, double value) { return attribute(name, coordinate(value)); }

constexpr std::array<const char*, 7> byte_units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

// The index of the largest binary unit that is not above `bytes`.
int byte_unit(double bytes) {
  int unit = 0;
  while (unit + 1 < static_cast<int>(byte_units.size()) && bytes >= std::ldexp(1.0, 10 * (unit + 1))) ++unit;
  return unit;
}

std::string byte_label(double bytes, int unit) {
  if (bytes == 0) return "0";
  return format_trimmed(std::ldexp(bytes, -10 * unit), 6) + " " + byte_units[static_cast<std::size_t>(unit)];
}

std::string label(double value, Unit unit, int decimals) {
  switch (unit) {
    case Unit::bytes:
      return byte_label(value, byte_unit(std::abs(value)));
    case Unit::milliseconds:
      return format_fixed(value, decimals) + " ms";
    case Unit::percent:
      return format_fixed(value * 100, std::max(0, decimals - 2)) + " %";
    case Unit::plain:
      break;
  }
  if (std::abs(value) >= 1e9) return format_trimmed(value * 1e-9, 3) + " G";
  if (std::abs(value) >= 1e6) return format_trimmed(value * 1e-6, 3) + " M";
  return format_fixed(value, decimals);
}

// The smallest 1, 2 or 5 times a power of ten (for bytes: the smallest power of two) that is at least `least`.
double nice_step(double least, Unit unit) {
  if (unit == Unit::bytes) return std::exp2(std::max(0.0, std::ceil(std::log2(least))));
  const double decade = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    // The tolerance keeps 0.2 from becoming 0.5 when the division was rounded up.
    if (factor * decade >= least * (1 - 1e-9)) return factor * decade;
  }
  return 10 * decade;
}

AxisTicks linear_ticks(double low, double high, const Axis& axis, int target) {
  if (axis.from_zero && low > 0) low = 0;
  if (axis.from_zero && high < 0) high = 0;
  if (!(high > low)) high = low + (axis.unit == Unit::bytes ? 1024.0 : std::max(1.0, std::abs(low)));
  const double step = nice_step((high - low) / target, axis.unit);
  const auto first = std::floor(low / step * (1 + 1e-12));
  const auto last = std::ceil(high / step * (1 - 1e-12));
  AxisTicks result{first * step, last * step, Scale::linear, {}};
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  const int unit = byte_unit(std::max(std::abs(result.low), std::abs(result.high)));
  for (double i = first; i <= last; ++i) {
    const double value = i * step;
    result.ticks.push_back(
        {value, axis.unit == Unit::bytes ? byte_label(value, unit) : label(value, axis.unit, decimals)});
  }
  return result;
}

AxisTicks logarithmic_ticks(double low, double high, const Axis& axis, int target) {
  const int first = static_cast<int>(std::floor(std::log2(low) + 1e-9));
  const int last = std::max(first + 1, static_cast<int>(std::ceil(std::log2(high) - 1e-9)));
  int stride = 1;
  while ((last - first) / stride > target) ++stride;
  AxisTicks result{std::exp2(first), std::exp2(last), Scale::log2, {}};
  for (int exponent = first; exponent <= last; exponent += stride) {
    const double value = std::exp2(exponent);
    result.ticks.push_back({value, label(value, axis.unit, std::max(0, -exponent))});
  }
  return result;
}

constexpr double sample_width = 34;
constexpr double widest_text = 206;
constexpr double line_height = 17;
constexpr double entry_gap = 8;

double entry_height(const LegendEntry& entry) {
  const auto lines = wrap_text(entry.name, small_text, widest_text).size() + (entry.detail.empty() ? 0 : 1);
  return static_cast<double>(lines) * line_height + entry_gap;
}

void draw_sample(Svg& svg, double x, double y, const LegendEntry& entry) {
  if (entry.is_area) svg.rectangle(x + 6, y - 7, 14, 14, entry.line, 3);
  if (entry.has_line) svg.line(x, y, x + 26, y, entry.line);
  if (entry.has_marker) draw_marker(svg, entry.marker, x + 13, y, entry.marker_look);
}

void draw_entries(Svg& svg, double x, double y, const std::vector<LegendEntry>& entries) {
  for (const LegendEntry& entry : entries) {
    draw_sample(svg, x, y + 8, entry);
    const double text_x = x + sample_width;
    double baseline = y + 12.5;
    for (const std::string& line : wrap_text(entry.name, small_text, widest_text)) {
      svg.text(text_x, baseline, line, {.size = small_text});
      baseline += line_height;
    }
    if (!entry.detail.empty())
      svg.text(text_x, baseline - 1, entry.detail, {.fill = paints::muted, .size = small_text - 1});
    y += entry_height(entry);
  }
}

}  // namespace

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

SvgPath& SvgPath::add(char command, std::initializer_list<double> numbers) {
  commands_ += command;
  for (const double& number : numbers)
    commands_.append(&number == numbers.begin() ? "" : " ").append(coordinate(number));
  return *this;
}

Svg::Svg(Medium medium, double width, double height, std::string title, std::string description)
    : medium_(medium), width_(width), height_(height), title_(std::move(title)), description_(std::move(description)) {
  if (medium_ == Medium::file) rectangle(0, 0, width, height, {.fill = paints::surface});
}

std::string Svg::attributes(const Look& look) {
  std::string classes;
  std::string result;
  if (look.fill.name.empty()) {
    if (!look.stroke.name.empty()) result += attribute("fill", "none");
  } else {
    use(look.fill);
    classes.append("f-").append(look.fill.name);
    if (medium_ == Medium::file) result += attribute("fill", look.fill.light);
  }
  if (!look.stroke.name.empty()) {
    use(look.stroke);
    if (!classes.empty()) classes += " ";
    classes.append("s-").append(look.stroke.name);
    if (medium_ == Medium::file) result += attribute("stroke", look.stroke.light);
    if (look.stroke_width != 1) result += attribute("stroke-width", look.stroke_width);
    if (look.keeps_width) result += attribute("vector-effect", "non-scaling-stroke");
    if (!look.dashes.empty()) result += attribute("stroke-dasharray", look.dashes);
  }
  if (look.opacity != 1) result += attribute("opacity", look.opacity);
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
  element("line", attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) + attribute("y2", y2), look, {});
}

void Svg::rectangle(double x, double y, double width, double height, const Look& look, double radius,
                    std::string_view hover) {
  std::string geometry =
      attribute("x", x) + attribute("y", y) + attribute("width", width) + attribute("height", height);
  if (radius > 0) geometry += attribute("rx", radius);
  element("rect", geometry, look, hover);
}

void Svg::circle(double x, double y, double radius, const Look& look, std::string_view hover) {
  element("circle", attribute("cx", x) + attribute("cy", y) + attribute("r", radius), look, hover);
}

void Svg::path(const SvgPath& path, const Look& look, std::string_view hover) {
  element("path", attribute("d", path.commands()), look, hover);
}

void Svg::text(double x, double y, std::string_view text, const TextLook& look) {
  use(look.fill);
  std::string head = "<text" + attribute("x", x) + attribute("y", y);
  std::string classes = std::string("f-").append(look.fill.name);
  if (look.has_halo) {
    use(paints::surface);
    classes.append(" s-").append(paints::surface.name);
    head += " stroke-width=\"4\" stroke-linejoin=\"round\" paint-order=\"stroke\"";
    if (medium_ == Medium::file) head += attribute("stroke", paints::surface.light);
  }
  head += attribute("class", classes) + attribute("font-size", look.size);
  if (look.anchor != "start") head += attribute("text-anchor", look.anchor);
  if (look.is_bold) head += " font-weight=\"600\"";
  if (medium_ == Medium::file) head += attribute("fill", look.fill.light);
  body_.append(head).append(">").append(escape_markup(text)).append("</text>\n");
}

void Svg::begin_group(std::string_view attributes) {
  body_.append("<g ").append(attributes).append(">\n");
  open_.push_back("g");
}

void Svg::begin_window(const Frame& frame, double units) {
  const std::string height = coordinate(frame.height());
  body_ += "<svg class=\"window\"" + attribute("x", frame.left) + attribute("y", frame.top) +
           attribute("width", frame.width()) + attribute("height", height) +
           attribute("viewBox", "0 " + coordinate(frame.top) + " " + coordinate(units) + " " + height) +
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
         height + "\" role=\"img\" aria-label=\"" + escape_markup(title_) + "\" font-family=\"" + std::string(fonts) +
         "\">\n" + body_ + "</svg>\n";
}

std::string Svg::finish() const {
  const std::string size = coordinate(width_) + " " + coordinate(height_);
  std::string document;
  if (medium_ == Medium::file) document += "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  document += "<svg xmlns=\"http://www.w3.org/2000/svg\"" + attribute("viewBox", "0 0 " + size);
  if (medium_ == Medium::file) document += attribute("width", width_) + attribute("height", height_);
  document += " role=\"img\"" + attribute("font-family", fonts);
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

AxisTicks make_ticks(double low, double high, const Axis& axis, int target) {
  if (axis.scale == Scale::linear) return linear_ticks(low, high, axis, target);
  return logarithmic_ticks(low, high, axis, target);
}

AxisMap::AxisMap(const AxisTicks& ticks, double from, double to)
    : is_logarithmic_(ticks.scale != Scale::linear),
      low_(is_logarithmic_ ? std::log2(ticks.low) : ticks.low),
      span_((is_logarithmic_ ? std::log2(ticks.high) : ticks.high) - low_),
      from_(from),
      to_(to) {}

double AxisMap::operator()(double value) const noexcept {
  const double at = ((is_logarithmic_ ? std::log2(value) : value) - low_) / span_;
  return from_ + (to_ - from_) * at;
}

void draw_marker(Svg& svg, Marker marker, double x, double y, const Look& look, std::string_view hover) {
  constexpr double radius = 4.5;
  SvgPath path;
  switch (marker) {
    case Marker::circle:
      svg.circle(x, y, radius, look, hover);
      return;
    case Marker::square:
      path.move(x - 4, y - 4).horizontal(x + 4).vertical(y + 4).horizontal(x - 4).close();
      break;
    case Marker::triangle:
      path.move(x, y - 5.5).line(x + 5, y + 3.5).line(x - 5, y + 3.5).close();
      break;
    case Marker::diamond:
      path.move(x, y - 5.5).line(x + 5.5, y).line(x, y + 5.5).line(x - 5.5, y).close();
      break;
    case Marker::inverted_triangle:
      path.move(x, y + 5.5).line(x + 5, y - 3.5).line(x - 5, y - 3.5).close();
      break;
  }
  svg.path(path, look, hover);
}

std::vector<Level> make_levels(const std::optional<std::int64_t>& budget_bytes,
                               const std::vector<std::pair<std::string, std::int64_t>>& bounds) {
  std::vector<Level> levels;
  const auto add = [&](const std::string& name, std::int64_t bytes, const Paint& paint, std::string_view dashes) {
    levels.push_back({name, bytes, {.stroke = paint, .stroke_width = 1.5, .dashes = dashes}});
  };
  if (budget_bytes) add("budget", *budget_bytes, paints::alarm, "7 5");
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    add(bounds[i].first, bounds[i].second, i == 0 ? paints::ink : paints::muted, i == 0 ? "2 3" : "1 4");
  }
  return levels;
}

double reach(double high, const std::vector<Level>& levels) {
  double far = high;
  for (const Level& level : levels) {
    const auto bytes = static_cast<double>(level.bytes);
    if (bytes <= 2 * high) far = std::max(far, bytes);
  }
  return far;
}

void add_levels(std::vector<LegendEntry>& legend, const std::vector<Level>& levels, double high) {
  for (const Level& level : levels) {
    const bool is_shown = static_cast<double>(level.bytes) <= high;
    legend.push_back({.name = level.name,
                      .detail = format_bytes(level.bytes) + (is_shown ? "" : ", beyond the axis"),
                      .has_line = true,
                      .line = level.look});
  }
}

void draw_levels(Svg& svg, const Frame& frame, const AxisTicks& axis, const std::vector<Level>& levels,
                 bool is_upright) {
  const AxisMap map(axis, is_upright ? frame.left : frame.bottom, is_upright ? frame.right : frame.top);
  for (const Level& level : levels) {
    const auto bytes = static_cast<double>(level.bytes);
    if (bytes < axis.low || bytes > axis.high) continue;
    if (is_upright) {
      svg.line(map(bytes), frame.top, map(bytes), frame.bottom, level.look);
    } else {
      svg.line(frame.left, map(bytes), frame.right, map(bytes), level.look);
    }
  }
}

std::vector<LegendEntry> category_legend(const std::vector<memory::Category>& categories) {
  std::vector<LegendEntry> legend;
  for (auto category = categories.rbegin(); category != categories.rend(); ++category) {
    legend.push_back(
        {.name = std::string(label_of(*category)), .is_area = true, .line = {.fill = paint_of(*category)}});
  }
  return legend;
}

double legend_width(const std::vector<LegendEntry>& entries) {
  double width = 0;
  for (const LegendEntry& entry : entries) {
    for (const std::string& line : wrap_text(entry.name, small_text, widest_text)) {
      width = std::max(width, text_width(line, small_text));
    }
    width = std::max(width, text_width(entry.detail, small_text - 1));
  }
  return width + sample_width;
}

double legend_height(const std::vector<LegendEntry>& entries) {
  double height = 0;
  for (const LegendEntry& entry : entries) height += entry_height(entry);
  return height;
}

void draw_legend(Svg& svg, double x, double y, const std::vector<LegendEntry>& entries) {
  if (svg.medium() == Medium::file || entries.empty()) return draw_entries(svg, x, y, entries);
  const double width = legend_width(entries), height = legend_height(entries);
  Svg legend(Medium::page, width, height, "legend", "what colours and lines are");
  draw_entries(legend, 0, 0, entries);
  svg.set_aside(x - 4, legend.finish_legend());
}

void draw_y_axis(Svg& svg, const Frame& frame, const AxisTicks& ticks, const std::string& title) {
  const AxisMap map(ticks, frame.bottom, frame.top);
  for (const Tick& tick : ticks.ticks) {
    const double y = map(tick.value);
    const bool is_zero_line = tick.value == 0 && ticks.low < 0;
    svg.line(frame.left, y, frame.right, y, {.stroke = is_zero_line ? paints::axis : paints::hairline});
    svg.text(frame.left - 10, y + 4.5, tick.label, {.fill = paints::muted, .size = small_text, .anchor = "end"});
  }
  svg.text(left_margin(svg.medium()), frame.top - 16, title, {.fill = paints::muted, .size = small_text});
}

void draw_x_axis(Svg& svg, const Frame& frame, const AxisTicks& ticks, const std::string& title, bool has_grid) {
  const AxisMap map(ticks, frame.left, frame.right);
  svg.begin_group("class=\"x-axis\"");
  for (const Tick& tick : ticks.ticks) {
    const double x = map(tick.value);
    if (has_grid) svg.line(x, frame.top, x, frame.bottom, {.stroke = paints::hairline});
    svg.line(x, frame.bottom, x, frame.bottom + 5, {.stroke = paints::axis});
    svg.text(x, frame.bottom + 20, tick.label, {.fill = paints::muted, .size = small_text, .anchor = "middle"});
  }
  svg.end();
  svg.line(frame.left, frame.bottom, frame.right, frame.bottom, {.stroke = paints::axis});
  svg.text((frame.left + frame.right) / 2, frame.bottom + 42, title,
           {.fill = paints::muted, .size = small_text, .anchor = "middle"});
}

AxisTicks make_x_ticks(double low, double high, const Axis& axis, double width) {
  for (int target = 9; target > 1; --target) {
    AxisTicks ticks = make_ticks(low, high, axis, target);
    double taken = 0;
    for (const Tick& tick : ticks.ticks) taken += text_width(tick.label, small_text) + 18;
    if (taken <= width) return ticks;
  }
  return make_ticks(low, high, axis, 1);
}

AxisTicks make_event_ticks(std::size_t count, double width) {
  const auto last = static_cast<double>(count);
  AxisTicks ticks = make_x_ticks(0, last, {.title = ""}, width);
  ticks.high = last;
  while (ticks.ticks.back().value > last) ticks.ticks.pop_back();
  return ticks;
}

double label_width(const AxisTicks& ticks) {
  double width = 0;
  for (const Tick& tick : ticks.ticks) width = std::max(width, text_width(tick.label, small_text));
  return width;
}

double left_margin(Medium medium) noexcept { return medium == Medium::file ? 16 : 0; }

double title_height(Medium medium) noexcept { return medium == Medium::file ? 44 : 0; }

double draw_title(Svg& svg, const std::string& title) {
  if (svg.medium() == Medium::page) return 0;
  svg.text(16, 30, fit_text(title, 17, figure_width - 40, true), {.size = 17, .is_bold = true});
  return title_height(svg.medium());
}

namespace {

Frame frame_of(const Chart::Form& form) {
  const double legend = form.legend.empty() ? 0 : legend_width(form.legend) + 28;
  const double top = title_height(form.medium) + form.above;
  const double height = form.is_tight ? form.height : std::max(form.height, legend_height(form.legend));
  return {left_margin(form.medium) + form.labels, top, figure_width - 24 - form.room - legend, top + height};
}

}  // namespace

Chart::Chart(Form given)
    : form(std::move(given)),
      frame(frame_of(form)),
      svg(form.medium, figure_width,
          std::max(frame.bottom + form.below, form.is_tight ? frame.top + legend_height(form.legend) + 8 : 0),
          form.title, form.description) {
  draw_title(svg, form.title);
}

std::string Chart::finish() {
  draw_legend(svg, frame.right + form.room + 28, frame.top - (form.is_tight ? 0 : 4), form.legend);
  return svg.finish();
}

}  // namespace thimble::report
