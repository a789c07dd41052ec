#pragma once
// The three kinds of picture. Each is 960 px wide, with its legend at the right, and comes in two forms: a file of its
// own and a figure of a page.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/bench/report/experiment.h>

namespace thimble::report {

/// A picture for a page: the <svg> element and, as JSON, what the page's script (web/) shows under the pointer.
struct Figure {
  std::string svg;
  std::string hover_json;
};

/// A line or scatter plot as a standalone SVG document. Throws ValueError as `check` does for its points.
std::string svg_plot(const Plot& plot);
Figure page_figure(const Plot& plot);

/// Stacked horizontal bars as a standalone SVG document.
std::string svg_bars(const Bars& bars);
Figure page_figure(const Bars& bars);

/// Bytes by category over the events of a step, as a standalone SVG document: the peak is marked, the budget (where
/// there is one) is a line. With more events than columns of pixels each column shows its highest event, so the peak is
/// never lost.
std::string svg_stacked_area(const Timeline& timeline);
Figure page_figure(const Timeline& timeline);

/// The event with the most bytes; the first of equals. `timeline` has events.
std::size_t peak_event(const Timeline& timeline) noexcept;

/// A page answers the pointer for so many events; of more, for the highest of each of so many stretches.
inline constexpr std::size_t hover_events_max = 20'000;

/// Texts by number, in order of first use: scripts get each once.
class Texts {
 public:
  std::size_t index(std::string_view text) {
    const auto [found, is_new] = index_.try_emplace(std::string(text), list_.size());
    if (is_new) list_.push_back(found->first);
    return found->second;
  }
  const std::vector<std::string>& list() const noexcept { return list_; }

 private:
  std::map<std::string, std::size_t> index_;
  std::vector<std::string> list_;
};

}  // namespace thimble::report
