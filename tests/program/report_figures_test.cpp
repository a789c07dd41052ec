#include "support/catch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/drawing.h>
#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/maps.h>
#include <thimble/bench/report/palette.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>

#include "report_sample.h"
#include "support/markup.h"

using namespace thimble::report;
using thimble::memory::Category;

namespace {

constexpr double gib = 1073741824.0;

// ---- Colour: sRGB to OKLab, and its appearance without one kind of cone. ----

using Colour = std::array<double, 3>;

Colour linear_rgb(std::string_view hex) {
  Colour colour{};
  for (std::size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(std::string(hex.substr(1 + 2 * i, 2)), nullptr, 16) / 255.0;
    colour[i] = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  }
  return colour;
}

using Matrix = std::array<Colour, 3>;

Colour times(const Matrix& m, const Colour& c) {
  Colour result{};
  for (std::size_t i = 0; i < 3; ++i) result[i] = m[i][0] * c[0] + m[i][1] * c[1] + m[i][2] * c[2];
  return result;
}

// Bjoern Ottosson, "A perceptual color space for image processing", 2020.
Colour oklab(Colour rgb) {
  for (double& value : rgb) value = std::clamp(value, 0.0, 1.0);
  Colour lms = times({{{0.4122214708, 0.5363325363, 0.0514459929},
                       {0.2119034982, 0.6806995451, 0.1073969566},
                       {0.0883024619, 0.2817188376, 0.6299787005}}},
                     rgb);
  for (double& value : lms) value = std::cbrt(value);
  return times({{{0.2104542553, 0.7936177850, -0.0040720468},
                 {1.9779984951, -2.4285922050, 0.4505937099},
                 {0.0259040371, 0.7827717662, -0.8086757660}}},
               lms);
}

double distance(const Colour& a, const Colour& b) { return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]); }

double luminance(const Colour& rgb) { return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]; }

double contrast(std::string_view a, std::string_view b) {
  const double x = luminance(linear_rgb(a)) + 0.05, y = luminance(linear_rgb(b)) + 0.05;
  return std::max(x, y) / std::min(x, y);
}

// Normal sight, then Machado, Oliveira, Fernandes 2009, severity 1.0: protanopia, deuteranopia, tritanopia.
const std::vector<Matrix> sights = {
    {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
    {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}},
    {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}},
    {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}}};

double smallest_distance(const std::vector<std::string_view>& colours) {
  double smallest = 1;
  for (const Matrix& sight : sights) {
    for (std::size_t i = 0; i < colours.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        const Colour a = oklab(times(sight, linear_rgb(colours[i])));
        const Colour b = oklab(times(sight, linear_rgb(colours[k])));
        smallest = std::min(smallest, distance(a, b));
      }
    }
  }
  return smallest;
}

std::string joined(const AxisTicks& ticks) {
  std::string text;
  for (const Tick& tick : ticks.ticks) text += (text.empty() ? "" : " | ") + tick.label;
  return text;
}

// Texts of a drawing neither touch nor leave it.
void check_drawing(const std::string& svg) {
  const std::vector<markup::TextBox> boxes = markup::text_boxes(svg);
  const auto [width, height] = markup::view_box(svg);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const markup::TextBox& a = boxes[i];
    INFO(a.text);
    CHECK(a.left >= -0.5);
    CHECK(a.right <= width + 0.5);
    CHECK(a.top >= 0);
    CHECK(a.bottom <= height);
    for (std::size_t k = 0; k < i; ++k) {
      const markup::TextBox& b = boxes[k];
      INFO(b.text);
      const bool is_apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
      CHECK(is_apart);
    }
  }
}

// A page's picture may consist of several drawings, since legends are separate.
void check_layout(const std::string& picture) {
  std::size_t drawings = 0;
  for (std::size_t at = picture.find("<svg"); at != std::string::npos; at = picture.find("<svg", at + 1), ++drawings) {
    check_drawing(picture.substr(at, picture.find("</svg>", at) + 6 - at));
  }
  CHECK(drawings > 0);
}

CategoryBytes only_activations(double bytes) {
  CategoryBytes result{};
  report_sample::part(result, Category::activation) = static_cast<std::int64_t>(bytes);
  return result;
}

// `count` events whose peak is at `peak`.
Timeline spike(std::size_t count, std::size_t peak, const std::string& path) {
  Timeline timeline{.name = "spike", .title = "A spike", .caption = "", .events = {}, .budget_bytes = {}};
  for (std::size_t i = 0; i < count; ++i)
    timeline.events.push_back({only_activations(i == peak ? gib : gib / 4), path});
  return timeline;
}

}  // namespace

TEST_CASE("report: categories differ for every kind of colour vision", "[report]") {
  std::vector<std::string_view> light, dark;
  std::set<std::string_view> names;
  for (const Category category : stacking_order) {
    light.push_back(paint_of(category).light);
    dark.push_back(paint_of(category).dark);
    names.insert(paint_of(category).name);
  }
  CHECK(names.size() == thimble::memory::category_count);  // the order holds every category once
  CHECK(smallest_distance(light) > 0.105);
  CHECK(smallest_distance(dark) > 0.09);
  std::vector<std::string_view> light_series, dark_series;
  for (const Paint& paint : series_paints) {
    light_series.push_back(paint.light);
    dark_series.push_back(paint.dark);
    CHECK(contrast(paint.light, paints::surface.light) >= 3);  // WCAG 2.1, 1.4.11
    CHECK(contrast(paint.dark, paints::surface.dark) >= 3);
  }
  CHECK(smallest_distance(light_series) > 0.14);
  CHECK(smallest_distance(dark_series) > 0.14);
  for (const Paint& text : {paints::ink, paints::muted, paints::good, paints::alarm, paints::accent}) {
    INFO(text.name);
    CHECK(contrast(text.light, paints::surface.light) >= 4.5);  // WCAG 2.1, 1.4.3
    CHECK(contrast(text.dark, paints::surface.dark) >= 4.5);
  }
}

TEST_CASE("report: axes are marked at round numbers", "[report]") {
  struct RowOfTicks {
    double low, high;
    Unit unit;
    Scale scale;
    int target;
    const char* labels;
  };
  const std::vector<RowOfTicks> rows = {
      {0, 14.7 * gib, Unit::bytes, Scale::linear, 6, "0 | 4 GiB | 8 GiB | 12 GiB | 16 GiB"},
      {0, 1.1 * gib, Unit::bytes, Scale::linear, 6, "0 | 0.25 GiB | 0.5 GiB | 0.75 GiB | 1 GiB | 1.25 GiB"},
      {0, 0, Unit::bytes, Scale::linear, 4, "0 | 0.25 KiB | 0.5 KiB | 0.75 KiB | 1 KiB"},
      {0, 3, Unit::bytes, Scale::linear, 6, "0 | 1 B | 2 B | 3 B"},
      {24e6, 10.8e9, Unit::bytes, Scale::log2, 6, "16 MiB | 64 MiB | 256 MiB | 1 GiB | 4 GiB | 16 GiB"},
      {1, 128, Unit::plain, Scale::log2, 9, "1 | 2 | 4 | 8 | 16 | 32 | 64 | 128"},
      {0.25, 2, Unit::plain, Scale::log2, 9, "0.25 | 0.5 | 1 | 2"},
      {0, 0.31, Unit::percent, Scale::linear, 6, "0 % | 10 % | 20 % | 30 % | 40 %"},
      {0, 0.003, Unit::percent, Scale::linear, 6, "0.00 % | 0.05 % | 0.10 % | 0.15 % | 0.20 % | 0.25 % | 0.30 %"},
      {0, 1.0, Unit::milliseconds, Scale::linear, 5, "0.0 ms | 0.2 ms | 0.4 ms | 0.6 ms | 0.8 ms | 1.0 ms"},
      {-3, 4, Unit::plain, Scale::linear, 4, "-4 | -2 | 0 | 2 | 4"},
      {128, 2048, Unit::plain, Scale::linear, 6, "0 | 500 | 1,000 | 1,500 | 2,000 | 2,500"},
      {7, 7, Unit::plain, Scale::log2, 6, "4 | 8"},
  };
  for (const RowOfTicks& row : rows) {
    INFO(row.labels);
    const AxisTicks ticks =
        make_ticks(row.low, row.high, {.title = "", .unit = row.unit, .scale = row.scale}, row.target);
    CHECK(joined(ticks) == row.labels);
    CHECK(ticks.low <= row.low);
    CHECK(ticks.high >= row.high);
    const AxisMap map(ticks, 100, 500);
    CHECK(map(ticks.low) == Approx(100));
    CHECK(map(ticks.high) == Approx(500));
  }
}

TEST_CASE("report: pictures are well-formed, inside their frame and without overlaps", "[report]") {
  std::vector<std::string> pictures;
  const auto add_report = [&](const Report& report) {
    for (const Experiment& experiment : report.experiments) {
      for (const Plot& plot : experiment.plots)
        pictures.insert(pictures.end(), {svg_file(plot), page_figure(plot).svg});
      for (const Bars& bars : experiment.bars) pictures.insert(pictures.end(), {svg_file(bars), page_figure(bars).svg});
      for (const Timeline& timeline : experiment.timelines) {
        pictures.insert(pictures.end(), {svg_file(timeline), page_figure(timeline).svg});
      }
    }
  };
  add_report(report_sample::sample_report());

  // Corner cases: nothing to show, one point, long names, hostile names, budgets near and far, peaks at both ends.
  Plot empty{.name = "empty", .title = "", .caption = "", .x = {}, .y = {}, .series = {}};
  pictures.push_back(svg_file(empty));
  Plot names = empty;
  names.title = std::string(300, 'W') + " <b>&amp;\"'";
  names.x.title = "x < y";
  for (int i = 0; i < 14; ++i) {
    names.series.push_back(
        {"a series with a rather long name, number " + std::to_string(i) + std::string(i == 3 ? 80 : 0, 'm'),
         static_cast<Role>(i % 4),
         {{static_cast<double>(i), -1.0 * i}},
         ""});
  }
  pictures.push_back(svg_file(names));
  for (const std::size_t count : std::vector<std::size_t>{1, 2, 500, 3000}) {
    for (const std::size_t peak : {std::size_t{0}, count / 3, count / 2, count - 1}) {
      for (const double budget : {0.0, gib / 2, gib, 1.01 * gib, 1.2 * gib, 100 * gib}) {
        Timeline timeline =
            spike(count, peak, "a.very.long.path.of.modules.that.goes.on.and.on.and.on.block17.conv3.weight.gradient");
        if (budget > 0) timeline.budget_bytes = static_cast<std::int64_t>(budget);
        pictures.push_back(svg_file(timeline));
      }
    }
  }
  Bars bars{.name = "bars", .title = "Bars", .caption = "", .bars = {category_bar("zero", {})}};
  pictures.push_back(svg_file(bars));
  for (const double size : {1.0, gib / 3, 1023.99 * gib})
    bars.bars.push_back(category_bar(std::string(200, 'w'), only_activations(size)));
  pictures.push_back(svg_file(bars));
  for (const Unit unit : {Unit::bytes, Unit::plain}) {
    const std::vector<BarPart> parts{
        {"small", 1, paints::ink}, {"none", 0, paints::ink}, {"large", 999'999, paints::axis}};
    Bars exact{.name = "exact", .title = "Exact", .caption = "", .bars = {}, .unit = unit, .is_exact = true};
    exact.bars = stair(parts, {"a note"}, "the sum");
    pictures.push_back(svg_file(exact));
    exact.bars = {{"parts", parts}, {"half", {{"large", 500'000, paints::axis}}}};
    pictures.push_back(svg_file(exact));
  }

  for (const std::string& picture : pictures) {
    const std::string problem = markup::problem(picture);
    INFO(picture.substr(0, 400));
    CHECK(problem.empty());
    CHECK(picture.find("nan") == std::string::npos);
    CHECK(picture.find("inf\"") == std::string::npos);
    check_layout(picture);
  }
}

TEST_CASE("report: a file brings its colours, a page gives them", "[report]") {
  const Experiment experiment = report_sample::timeline_experiment();
  const Timeline& timeline = experiment.timelines[0];
  const std::string file = svg_file(timeline);
  const std::string on_page = page_figure(timeline).svg;
  for (const Category category : {Category::parameter, Category::activation, Category::workspace}) {
    const Paint& paint = paint_of(category);
    const std::string light = std::string("fill=\"").append(paint.light), dark = std::string(":").append(paint.dark);
    const std::string name = std::string("class=\"f-").append(paint.name);
    CHECK(file.find(light) != std::string::npos);
    CHECK(file.find(dark) != std::string::npos);
    CHECK(on_page.find(name) != std::string::npos);
    CHECK(on_page.find(light) == std::string::npos);
  }
  CHECK(file.find("prefers-color-scheme:dark") != std::string::npos);
  CHECK(file.rfind("<?xml", 0) == 0);
  CHECK(on_page.find("<?xml") == std::string::npos);
  CHECK(palette_css().find("--activation:#349077") != std::string::npos);
  CHECK(file == svg_file(timeline));  // equal data gives equal bytes
}

TEST_CASE("report: the peak is marked and survives fewer columns than events", "[report]") {
  for (const std::size_t count : std::vector<std::size_t>{10, 5'000, 50'000}) {
    const std::size_t peak = count / 3;
    const Timeline timeline = spike(count, peak, "net.fc");
    CHECK(peak_event(timeline) == peak);
    const std::string svg = svg_file(timeline);
    CHECK(svg.find(">peak 1.00 GiB<") != std::string::npos);
    CHECK(svg.find(">event " + format_fixed(static_cast<double>(peak), 0) + " \xC2\xB7 net.fc<") != std::string::npos);
    // The outline reaches the height of the marker.
    const std::string marker = markup::attribute_after(svg, "<circle", "cy");
    CHECK(svg.find("V" + marker) != std::string::npos);
    CHECK(svg.size() < 40'000);
  }
}

TEST_CASE("report: the pointer is told the exact bytes of every event", "[report]") {
  const Experiment experiment = report_sample::timeline_experiment();
  const Timeline& timeline = experiment.timelines[0];
  const auto data = nlohmann::json::parse(page_figure(timeline).hover_json);
  CHECK(data["kind"] == "timeline");
  CHECK(data["count"] == timeline.events.size());
  REQUIRE(timeline.events.size() > 1'900);
  REQUIRE(data["entries"] == timeline.events.size());
  const std::vector<std::int64_t> paths = markup::column(data, data["path"]);
  const std::vector<std::int64_t> sums = markup::sum_of_rows(data);
  bool is_equal = true;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    is_equal = is_equal && sums[i] == total(timeline.events[i].bytes) &&
               data["texts"][static_cast<std::size_t>(paths[i])] == timeline.events[i].path;
  }
  CHECK(is_equal);

  const Timeline large = spike(hover_events_max * 3, 12'345, "");
  const auto reduced = nlohmann::json::parse(page_figure(large).hover_json);
  const std::vector<std::int64_t> events = markup::column(reduced, reduced["from"]);
  CHECK(events.size() == hover_events_max);
  CHECK(std::count(events.begin(), events.end(), 12'345) == 1);

  const Experiment resnet = report_sample::resnet_batch();
  const auto plot = nlohmann::json::parse(page_figure(resnet.plots[0]).hover_json);
  CHECK(plot["entries"] == 46);
  const auto is_of_the_point = [&](const nlohmann::json& span) {
    return span[3] == resnet.plots[0].series[3].name && span[4] == "2,697,723,904 bytes (2.51 GiB)";
  };
  const auto found = std::find_if(plot["spans"].begin(), plot["spans"].end(), is_of_the_point);
  REQUIRE(found != plot["spans"].end());
  const auto heading = static_cast<std::size_t>(markup::column(plot, plot["heading"])[(*found)[0]]);
  CHECK(plot["texts"][heading].get<std::string>().ends_with(" 32"));
  const auto bars = nlohmann::json::parse(page_figure(report_sample::gpt_layer().bars[0]).hover_json);
  CHECK(bars["entries"] == 6);
  const auto is_of_the_first = [](const nlohmann::json& span) { return span[0] == 0 && span[1] == 1; };
  CHECK(std::count_if(bars["spans"].begin(), bars["spans"].end(), is_of_the_first) == 8);  // 7 parts and their sum
}

TEST_CASE("report: blocks of a map, to half a pixel", "[report]") {
  const Frame frame{.left = 40, .top = 10, .right = 140, .bottom = 90};  // 10 event times and 2 addresses per pixel
  const Paint red{"red", "#f00", "#f00"}, blue{"blue", "#00f", "#00f"};
  Svg svg(Medium::file, 200, 100, "", "");
  const AxisTicks x{.low = 0, .high = 1000, .ticks = {}}, y{.low = 0, .high = 160, .ticks = {}};
  const std::vector<MapBlock> blocks = {{{{100, red}, {400, blue}}, 700, 20, 60, "a"},
                                        {{{800, red}}, 804, 0, 0.5},   // at least half a pixel
                                        {{{900, blue}}, 930, 40, 40},  // edged, as both sides exceed 3 pixels
                                        {{{840, red}}, 871, 100, 6},
                                        {{{840, red}}, 871, 110, 7}};
  draw_map(svg, frame, x, y, {"", blocks, {}});
  const std::string drawn = svg.finish();
  INFO(drawn);
  for (const std::string path :
       {"M100 80H400V50H100ZM800 90H805V89.5H800ZM840 40H871V37H840ZM840 35H871V31.5H840Z",
        "M400 80H700V50H400ZM900 70H930V50H900Z", "M100 80H700V50H100ZM840 35H871V31.5H840Z"}) {
    CHECK(drawn.find("d=\"" + path + "\"") != std::string::npos);
  }
  CHECK(drawn.find("viewBox=\"0 10 1000 80\"") != std::string::npos);
  CHECK(drawn.find("<rect x=\"72.16\" y=\"56\" width=\"15.69\" height=\"18\"") != std::string::npos);
  CHECK(drawn.find("x=\"80\" y=\"69.5\"") != std::string::npos);
}

TEST_CASE("report: pictures refuse what they cannot show", "[report]") {
  const auto plot_of = [](Point point, Scale scale) {
    Plot plot{.name = "p", .title = "", .caption = "", .x = {}, .y = {}, .series = {{"s", Role::other, {point}, ""}}};
    plot.y.scale = scale;
    return plot;
  };
  CHECK_NOTHROW(svg_file(plot_of({1, 1}, Scale::log2)));
  CHECK_THROWS_AS(svg_file(plot_of({1, 0}, Scale::log2)), thimble::ValueError);
  CHECK_THROWS_AS(svg_file(plot_of({1, -1}, Scale::log2)), thimble::ValueError);
  CHECK_THROWS_AS(svg_file(plot_of({std::nan(""), 1}, Scale::linear)), thimble::ValueError);
  CHECK_THROWS_AS(svg_file(plot_of({1, std::numeric_limits<double>::infinity()}, Scale::linear)), thimble::ValueError);
  Timeline timeline = spike(10, 3, "");
  timeline = spike(0, 0, "");
  CHECK_THROWS_AS(svg_file(timeline), thimble::ValueError);
  timeline = spike(3, 0, "");
  timeline.events[1].bytes[0] = -1;
  CHECK_THROWS_AS(svg_file(timeline), thimble::ValueError);
  CHECK_THROWS_AS(svg_file(Bars{.name = "b", .title = "", .caption = "", .bars = {}}), thimble::ValueError);
}
