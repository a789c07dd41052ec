#pragma once
// A picture under construction, as SVG text.

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/bench/report/palette.h>

namespace thimble::report {

/// Where a picture will be shown. A `file` stands by itself: it brings its background, title, colours (as attributes,
/// which every renderer knows, and as a style sheet for dark screens) and browsers' own hover texts. On a `page` the
/// page's style sheet colours it and a script answers the pointer.
enum class Medium { file, page };

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
  SvgPath& move(double x, double y);
  SvgPath& line(double x, double y);
  SvgPath& horizontal(double x);
  SvgPath& vertical(double y);
  SvgPath& close();
  const std::string& commands() const noexcept { return commands_; }

 private:
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
  /// Elements until `end` are clipped to the rectangle, which shows `units` units from 0 across, and px upwards.
  void begin_window(double left, double top, double right, double bottom, double units);
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

}  // namespace thimble::report
