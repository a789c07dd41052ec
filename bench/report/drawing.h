#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/bench/report/experiment.h>
#include <thimble/bench/report/palette.h>

namespace thimble::report {

// ---- A picture under construction, as SVG text.

/// Where a picture will be shown. A `file` stands by itself: it brings its background, title, colours (as attributes,
/// which every renderer knows, and as a style sheet for dark screens) and browsers' own hover texts. On a `page` the
/// page's style sheet colours it and a script answers the pointer.
enum class Medium { file, page };

/// The rectangle between the axes, in px.
struct Frame {
  double left = 0, top = 0, right = 0, bottom = 0;
  double width() const noexcept { return right - left; }
  double height() const noexcept { return bottom - top; }
};

/// Fill and stroke of an element; an empty name means none.
struct Look {
  Paint fill{};
  Paint stroke{};
  double stroke_width = 1;
  std::string_view dashes{};  ///< stroke-dasharray
  double opacity = 1;
  bool keeps_width = false;  ///< of the stroke, in a window
};

struct TextLook {
  Paint fill = paints::ink;
  double size = 12;
  std::string_view anchor = "start";  ///< start, middle, end
  bool is_bold = false;
  bool has_halo = false;  ///< outlined in the surface colour, to be read above lines
};

/// The path commands of a polygon or line, built point by point.
class SvgPath {
 public:
  SvgPath& move(double x, double y) { return add('M', {x, y}); }
  SvgPath& line(double x, double y) { return add('L', {x, y}); }
  SvgPath& horizontal(double x) { return add('H', {x}); }
  SvgPath& vertical(double y) { return add('V', {y}); }
  SvgPath& close() { return add('Z', {}); }
  const std::string& commands() const noexcept { return commands_; }

 private:
  SvgPath& add(char command, std::initializer_list<double> numbers);

  std::string commands_;
};

class Svg {
 public:
  /// `width` and `height` in px. `title` and `description` name the picture for readers that do not see it.
  Svg(Medium medium, double width, double height, std::string title, std::string description);

  Medium medium() const noexcept { return medium_; }

  /// Elements. `hover`, when not empty, is shown by browsers when the pointer rests on the element (files only).
  void line(double x1, double y1, double x2, double y2, const Look& look);
  void rectangle(double x, double y, double width, double height, const Look& look, double radius = 0,
                 std::string_view hover = {});
  void circle(double x, double y, double radius, const Look& look, std::string_view hover = {});
  void path(const SvgPath& path, const Look& look, std::string_view hover = {});
  void text(double x, double y, std::string_view text, const TextLook& look);

  /// Elements until `end` form a group, with attributes as written.
  void begin_group(std::string_view attributes);
  /// Elements until `end` are clipped to the frame, which shows `units` units from 0 across, and px upwards.
  void begin_window(const Frame& frame, double units);
  void end();

  /// In a page: the picture ends `width` px from its left, and this element is beside it, below where that is narrow.
  void set_aside(double width, std::string element);

  /// The whole document (a file) or the elements of a page.
  std::string finish() const;
  /// The element of a legend in a page, which keeps its size.
  std::string finish_legend() const;

 private:
  std::string attributes(const Look& look);
  void element(std::string_view name, const std::string& geometry, const Look& look, std::string_view hover);
  void use(const Paint& paint) { used_.insert({paint.name, paint.dark}); }

  Medium medium_;
  double width_, height_;
  std::string title_, description_, body_, aside_;
  std::vector<std::string_view> open_;
  std::set<std::pair<std::string_view, std::string_view>> used_;  // name and dark colour of every paint
};

/// A coordinate with at most two decimals: "12", "0.25".
std::string coordinate(double value);

// ---- Where marks go on an axis and how a value becomes a position.

struct Tick {
  double value = 0;
  std::string label;
};

/// An axis with its range rounded outwards to marks.
struct AxisTicks {
  double low = 0;
  double high = 1;
  Scale scale = Scale::linear;
  std::vector<Tick> ticks;  ///< ascending, within [low, high]
};

/// Marks for values from `low` to `high` (low <= high, positive on a logarithmic scale), about `target` of them. Steps
/// are 1, 2 or 5 times a power of ten; for bytes a power of two, all labels of an axis in one binary unit ("0.5 GiB");
/// on a logarithmic scale equal numbers of octaves.
AxisTicks make_ticks(double low, double high, const Axis& axis, int target);

/// Maps values linearly (or by logarithm) so that `ticks.low` is at `from` and `ticks.high` at `to`.
class AxisMap {
 public:
  AxisMap(const AxisTicks& ticks, double from, double to);
  double operator()(double value) const noexcept;

 private:
  bool is_logarithmic_;
  double low_, span_, from_, to_;
};

// ---- Shared by figures: frame, marks, lines at levels, legend.

/// Width of every picture in px.
inline constexpr double figure_width = 960;

/// The shape that tells series apart where colour does not.
enum class Marker : std::uint8_t { circle, square, triangle, diamond, inverted_triangle };
inline constexpr int marker_count = 5;

/// A marker centred at (x, y): filled with the look's fill, outlined with its stroke.
void draw_marker(Svg& svg, Marker marker, double x, double y, const Look& look, std::string_view hover = {});

/// One line of a legend: a swatch (area), or a piece of line with or without a marker.
struct LegendEntry {
  std::string name;
  std::string detail{};  ///< a second line in small type; may be empty
  bool is_area = false;
  bool has_line = false;
  bool has_marker = false;
  Look line{};
  Look marker_look{};
  Marker marker = Marker::circle;
};

/// Width in px that the entries need, sample included: at most 240, longer names are wrapped.
double legend_width(const std::vector<LegendEntry>& entries);

/// Height in px of the entries.
double legend_height(const std::vector<LegendEntry>& entries);

/// Draws at (x, y), right of the drawing. In a page the legend is a picture beside it, and the drawing ends left of x.
void draw_legend(Svg& svg, double x, double y, const std::vector<LegendEntry>& entries);

/// A line across a picture at a number of bytes, which the legend names.
struct Level {
  std::string name;
  std::int64_t bytes = 0;
  Look look{};
};
/// The budget, where there is one, and at most two further lines, by name.
std::vector<Level> make_levels(const std::optional<std::int64_t>& budget_bytes,
                               const std::vector<std::pair<std::string, std::int64_t>>& bounds = {});

/// How far an axis goes that shows `high` bytes: as far as the highest level that is at most twice as much. Only
/// the legend names levels beyond.
double reach(double high, const std::vector<Level>& levels);
/// Appends the levels; `high` is the end of the axis.
void add_levels(std::vector<LegendEntry>& legend, const std::vector<Level>& levels, double high);

/// The lines on an axis, as far as it goes. `is_upright`: bytes grow to the right.
void draw_levels(Svg& svg, const Frame& frame, const AxisTicks& axis, const std::vector<Level>& levels,
                 bool is_upright = false);

/// Entries for categories, from the axis outwards; the outermost comes first, as the eye meets it.
std::vector<LegendEntry> category_legend(const std::vector<memory::Category>& categories);
/// Of the stacking order, the categories for which `has_bytes(index)`.
template <class HasBytes>
std::vector<memory::Category> categories_with(HasBytes has_bytes) {
  std::vector<memory::Category> list;
  for (const memory::Category category : stacking_order) {
    if (has_bytes(static_cast<std::size_t>(category))) list.push_back(category);
  }
  return list;
}

/// Horizontal grid lines with labels at the left of the frame.
void draw_y_axis(Svg& svg, const Frame& frame, const AxisTicks& ticks, const std::string& title);

/// Marks with labels below the frame, a group of class "x-axis", and the title below them. `has_grid`: vertical grid
/// lines.
void draw_x_axis(Svg& svg, const Frame& frame, const AxisTicks& ticks, const std::string& title, bool has_grid);

/// Marks for a horizontal axis of `width` px, as many as have room for their labels.
AxisTicks make_x_ticks(double low, double high, const Axis& axis, double width);

/// Marks for event times from 0 to `count`, with no empty space after the last.
AxisTicks make_event_ticks(std::size_t count, double width);

/// Width in px of the widest label.
double label_width(const AxisTicks& ticks);

/// Where the labels left of the frame begin: the cards of a page have margins.
double left_margin(Medium medium) noexcept;

/// The title of a file; a page writes its own. Returns the height it takes.
double draw_title(Svg& svg, const std::string& title);
double title_height(Medium medium) noexcept;

/// Size of tick labels and legends in px.
inline constexpr double small_text = 12.5;

/// A picture with axes at the left and below, and its legend at the right: the frame that all figures share.
struct Chart {
  struct Form {
    Medium medium = Medium::file;
    std::string title, description;
    std::vector<LegendEntry> legend = {};
    double labels = 0;                        ///< px left of the frame
    double height = 0;                        ///< of the frame, which is at least as high as the legend
    double above = 34, below = 56, room = 0;  ///< px between the frame and the picture's edges, or the legend
    bool is_tight = false;                    ///< the frame stays as high as it is
  };
  explicit Chart(Form form);

  AxisMap to_x() const { return {x, frame.left, frame.right}; }
  AxisMap to_y() const { return {y, frame.bottom, frame.top}; }
  void draw_y(const std::string& title) { draw_y_axis(svg, frame, y, title); }
  void draw_x(const std::string& title, bool has_grid) { draw_x_axis(svg, frame, x, title, has_grid); }
  /// Draws the legend; the whole picture.
  std::string finish();

  Form form;
  Frame frame;
  Svg svg;
  AxisTicks x = {}, y = {};
};

}  // namespace thimble::report
