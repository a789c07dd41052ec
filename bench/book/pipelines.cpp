// Pictures of pipelines: stages downwards, time across.

#include <algorithm>
#include <string>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/bench/report/text.h>

namespace thimble::report {
namespace pipelines_detail {

constexpr double left = 92, row = 22, above = 30, below = 22;

Paint paint_of(dist::Pass pass) { return series_paints[pass == dist::Pass::forward ? 0 : 1]; }

}  // namespace pipelines_detail

double draw_kinds(Svg& svg, double x, double y, const std::vector<std::pair<std::string, Paint>>& kinds) {
  for (const auto& [name, paint] : kinds) {
    svg.rectangle(x, y - 10, 12, 12, {.fill = paint}, 2);
    svg.text(x + 18, y, name, {.size = small_text});
    x += 18 + text_width(name, small_text) + 26;
  }
  return x;
}

std::string svg_pipelines(const std::string& title, const std::string& description,
                          const std::vector<ShownPipeline>& pipelines) {
  using namespace pipelines_detail;
  double longest = 0, height = title_height(Medium::file) + 34;
  const double top = height, right = figure_width - 32;
  for (const ShownPipeline& shown : pipelines) {
    longest = std::max(longest, shown.run.step_s);
    height += above + row * static_cast<double>(shown.run.of_stage.size()) + below;
  }
  Svg svg(Medium::file, figure_width, height + 8, title, description);
  draw_title(svg, title);
  draw_kinds(svg, left, top - 14,
             {{"forward, with the micro-batch's number", paint_of(dist::Pass::forward)},
              {"backward", paint_of(dist::Pass::backward)}});
  svg.text(right, top - 14, "time \xE2\x86\x92", {.fill = paints::muted, .size = small_text, .anchor = "end"});
  const auto to_x = [&](double seconds) { return left + (right - left) * (longest > 0 ? seconds / longest : 0); };
  double y = top;
  for (const ShownPipeline& shown : pipelines) {
    svg.text(
        left, y + 18,
        shown.name + ": time " + format_trimmed(shown.run.step_s, 2) + ", bubble " + format_percent(shown.run.bubble),
        {.size = 13.5, .is_bold = true});
    y += above;
    for (std::size_t s = 0; s < shown.run.of_stage.size(); ++s, y += row) {
      svg.text(left - 10, y + row / 2 + 4, "stage " + std::to_string(s),
               {.fill = paints::muted, .size = small_text, .anchor = "end"});
      for (const dist::TimedAction& timed : shown.run.of_stage[s]) {
        const double x = to_x(timed.begin_s), width = to_x(timed.end_s) - x;
        const bool is_later = timed.action.chunk % 2 != 0;  // chunks take turns in two strengths
        svg.rectangle(x, y, width, row - 3,
                      {.fill = paint_of(timed.action.pass),
                       .stroke = paints::surface,
                       .stroke_width = 0.75,
                       .opacity = is_later ? 0.6 : 1},
                      0, to_string(timed.action));
        const std::string number = std::to_string(timed.action.micro_batch);
        if (text_width(number, small_text) + 2 > width) continue;
        svg.text(x + width / 2, y + row / 2 + 2.5, number,
                 {.fill = paints::surface, .size = small_text, .anchor = "middle"});
      }
    }
    y += below;
  }
  return svg.finish();
}

}  // namespace thimble::report

namespace thimble::bench {

std::string draw_pipelines() {
  constexpr int stages = 4, micro_batches = 8, chunks = 2;
  const dist::PipelineCosts whole{{1}, {2}, 0}, piece{{1.0 / chunks}, {2.0 / chunks}, 0};
  return report::svg_pipelines(
      "Eight micro-batches through four stages",
      "What each stage does when, in three schedules; backward takes twice the time of forward.",
      {{"GPipe", 1, dist::simulate(dist::gpipe(stages, micro_batches), whole)},
       {"1F1B", 1, dist::simulate(dist::one_forward_one_backward(stages, micro_batches), whole)},
       {"interleaved, 2 chunks", chunks, dist::simulate(dist::interleaved(stages, micro_batches, chunks), piece)}});
}

}  // namespace thimble::bench
