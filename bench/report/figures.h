#pragma once
// The three kinds of picture, as files and as figures of a page. Each is 960 px wide, with its legend at the right.

#include <string>

#include <thimble/bench/report/drawing.h>
#include <thimble/bench/report/experiment.h>

namespace thimble::report {

/// A picture: the <svg> element and, in a page, the JSON of its Hover (hover.h).
struct Figure {
  std::string kind, svg, hover_json;
};

/// Lines or points; stacked horizontal bars; bytes by category over the events of a step, with the peak marked and the
/// budget as a line. Of more events than columns of pixels each column shows the highest, so the peak is never lost.
/// Throws ValueError as `check` does.
Figure draw(const Plot& plot, Medium medium);
Figure draw(const Bars& bars, Medium medium);
Figure draw(const Timeline& timeline, Medium medium);

/// A picture as a standalone SVG document.
template <class Picture>
std::string svg_file(const Picture& picture) {
  return draw(picture, Medium::file).svg;
}
template <class Picture>
Figure page_figure(const Picture& picture) {
  return draw(picture, Medium::page);
}

/// The event with the most bytes; the first of equals. `timeline` has events.
std::size_t peak_event(const Timeline& timeline) noexcept;

/// A page describes at most this many events to the pointer; of more, the highest of each of this many intervals.
inline constexpr std::size_t hover_events_max = 20'000;

}  // namespace thimble::report
