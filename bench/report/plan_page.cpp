// The page of a plan: words, exact figures, and the places where the script draws.

#include <thimble/bench/report/plan_page.h>

#include <string>
#include <vector>

#include <thimble/bench/report/page_style.h>
#include <thimble/bench/report/palette.h>
#include <thimble/bench/report/plan_data.h>
#include <thimble/bench/report/plan_panel.h>
#include <thimble/bench/report/plan_script.h>
#include <thimble/bench/report/script_helpers.h>
#include <thimble/bench/report/text.h>
#include <thimble/bench/runs/quantizing.h>
#include <thimble/bench/runs/units.h>
#include <thimble/models/theory.h>
#include <thimble/version.h>

namespace thimble::report {
namespace plan_page_detail {

std::string grouped(std::size_t value) { return format_grouped(static_cast<std::int64_t>(value)); }
std::string readable(std::size_t bytes) { return format_bytes(static_cast<std::int64_t>(bytes)); }
std::string in_words(std::size_t bytes) { return readable(bytes) + " (" + grouped(bytes) + " bytes)"; }

std::string title_of(const bench::PlanView& view) {
  std::string title = view.setup.model + ", batch " + format_grouped(view.report.batch);
  if (view.setup.micro_batches > 1) title += " in " + format_grouped(view.setup.micro_batches) + " micro-batches";
  if (view.setup.fuses_optimizer) title += ", optimizer fused into backward";
  if (view.setup.sizes.head == models::Head::chunked) title += ", chunked head";
  return title;
}

std::string percent(double fraction) { return format_fixed(100 * fraction, 1) + " %"; }

// The figures in one paragraph.
std::string headline(const bench::PlanView& view) {
  const bench::PlanReport& r = view.report;
  const bool is_training = r.planner != nullptr;
  std::string html = "<p class=\"lead\">";
  if (!r.is_feasible) {
    html += "<span class=\"alarm\">No plan fits the budget of " + in_words(r.budget_bytes) +
            ".</span> The smallest one needs " + in_words(r.minimum_bytes) + " and is shown here. ";
  } else {
    html += std::string(is_training ? "A training step" : "A forward") + " needs " + in_words(r.plan.peak_bytes);
    if (r.budget_bytes > 0) html += " and fits the budget of " + in_words(r.budget_bytes);
    html += ". ";
  }
  if (is_training) {
    html += r.plan.tape == nullptr
                ? "Everything that backward reads is kept. "
                : "It takes " + percent(r.plan.time_overhead) + " more time than keeping everything, which needs " +
                      in_words(r.keep_everything_bytes) + ". ";
    if (r.is_feasible) html += "The smallest possible is " + in_words(r.minimum_bytes) + ".";
  }
  return html + "</p>\n";
}

std::string card(const std::string& name, const std::string& value, const std::string& detail) {
  return "<div class=\"card\"><dt>" + name + "</dt><dd>" + value + "</dd><small>" + detail + "</small></div>\n";
}

std::string byte_card(const std::string& name, std::size_t bytes) {
  return card(name, readable(bytes), grouped(bytes) + " bytes");
}

std::string cards(const bench::PlanView& view) {
  const bench::PlanReport& r = view.report;
  std::string html = "<dl class=\"stats\">\n";
  if (r.budget_bytes > 0) html += byte_card("budget", r.budget_bytes);
  html += byte_card("peak (committed)", r.plan.peak_bytes);
  if (r.planner != nullptr) {
    html += byte_card("smallest possible", r.minimum_bytes);
    html += card("more time", percent(r.plan.time_overhead), "than keeping everything");
  }
  html += card("parameters", grouped(static_cast<std::size_t>(r.parameters)), "in " + escape_markup(view.setup.model));
  return html + "</dl>\n<p class=\"muted\">Times by the cost model: " + escape_markup(r.cost_model) + "</p>\n";
}

// ---- Figures ----

std::string chip(const std::string& style, const std::string& name) {
  return "<li><span class=\"swatch\" style=\"" + style + "\"></span>" + name + "</li>";
}

std::string category_chips(const bench::PlanView& view) {
  CategoryBytes most{};
  for (const bench::StepTrace& step : view.steps) {
    for (const auto& state : timeline(step.events)) {
      for (std::size_t i = 0; i < most.size(); ++i) {
        most[i] = std::max(most[i], static_cast<std::int64_t>(state[i]));
      }
    }
  }
  std::string html = "<ul class=\"chips\">";
  for (const Category category : stacking_order) {
    if (most[static_cast<std::size_t>(category)] == 0) continue;
    html += chip("background:var(--" + std::string(paint_of(category).name) + ")", std::string(label_of(category)));
  }
  return html + "</ul>\n";
}

std::string canvas(const std::string& attributes, const std::string& label) {
  return "<canvas tabindex=\"0\" role=\"img\" aria-label=\"" + escape_markup(label) + "\" " + attributes +
         "></canvas>\n";
}

std::string figure(const std::string& id, const std::string& title, const std::string& content,
                   const std::string& caption) {
  return "<figure class=\"card\" id=\"" + id + "\"><h3>" + title + "</h3>\n" + content + "<figcaption>" + caption +
         "</figcaption><div class=\"tip\" hidden></div></figure>\n";
}

std::string timeline_figure(const bench::PlanView& view) {
  std::string content = category_chips(view);
  for (std::size_t i = 0; i < view.steps.size(); ++i) {
    const bench::StepTrace& step = view.steps[i];
    content += "<h4>" + escape_markup(step.name) + "</h4>" +
               canvas("data-panel=\"time\" data-step=\"" + std::to_string(i) + "\"",
                      "live bytes by category over the events of the step '" + step.name + "', at most " +
                          grouped(step.live_peak_bytes) + " bytes");
  }
  std::string caption =
      "Live bytes by category after every allocation and free, at one scale. The lower bound is the load: what "
      "any placement of this step must commit.";
  if (view.theory_bytes) {
    caption +=
        " By the closed forms, the textbook build of this model, which keeps what the literature counts, holds " +
        grouped(static_cast<std::size_t>(*view.theory_bytes)) + " bytes when backward begins.";
  }
  return figure(
      "time", "One steady step, event by event", content,
      caption + " Drag across to look closer, double-click to see all again; the arrow keys go event by event.");
}

std::string map_figure(const bench::PlanView& view) {
  std::string content;
  if (view.steps.size() > 1) {
    content += "<p class=\"choice\" role=\"group\" aria-label=\"step\">";
    for (std::size_t i = view.steps.size(); i-- > 0;) {
      content += "<button type=\"button\" data-step=\"" + std::to_string(i) + "\">" +
                 escape_markup(view.steps[i].name) + "</button>";
    }
    content += "</p>\n";
  }
  content += category_chips(view);
  const char* const names[] = {"placed on demand by the dynamic arena", "placed offline, with all lifetimes known"};
  for (int i = 0; i < 2; ++i) {
    content += std::string("<h4>") + names[i] + "</h4>" +
               canvas("data-panel=\"map\" data-layout=\"" + std::to_string(i) + "\"",
                      std::string("addresses of blocks over the events of a step, ") + names[i]);
  }
  std::string caption =
      "Every block is a rectangle: its lifetime across, its addresses upwards from the arena's base. What is empty "
      "at a moment is free then; what is empty below the height at the moment of the peak is lost to fragmentation.";
  for (const bench::StepTrace& step : view.steps) {
    const LeftOut left = left_out_of_map(step);
    if (left.blocks == 0) continue;
    caption += " Of the step '" + escape_markup(step.name) + "' " + grouped(left.blocks) +
               " small or short-lived blocks of at most " + in_words(left.largest_bytes) + " are not drawn.";
  }
  return figure("map", "Where blocks lie in the arena", content, caption);
}

std::string schedule_figure(const bench::PlanView& view) {
  const std::string chips = "<ul class=\"chips\">" + chip("background:var(--series0)", "kept") +
                            chip("background:var(--series2)", "result kept, extras made again") +
                            chip("background:var(--series1)", "what backward reads kept, result made again") +
                            chip("background:var(--hairline);border:1px solid var(--axis)", "dropped, runs again") +
                            chip("border:1px dotted var(--axis)", "backward does not need it") + "</ul>\n";
  const std::string count = grouped(view.report.planner->graph().nodes.size());
  return figure("schedule", "The schedule: what is kept of every operator",
                chips + canvas("data-panel=\"schedule\"", "bytes kept and dropped of " + count + " operators"),
                "The " + count +
                    " recorded operators in order of execution. Bars are the bytes that each makes for backward; their "
                    "solid part is kept. The bars below are the segments that backward runs again, nested ones further "
                    "down: " +
                    grouped(view.report.segments.size()) + " in all.");
}

std::string curve_figure(const bench::PlanView& view) {
  return figure(
      "curve", "What a budget costs",
      canvas("data-panel=\"curve\"", "time overhead of every plan against its peak bytes"),
      "All " + grouped(view.plans.size()) +
          " plans of this step: none is worse than another in both bytes and time. A budget takes the fastest "
          "plan at its left.");
}

// ---- Exact figures ----

std::string row(const std::string& name, const std::vector<std::size_t>& values) {
  std::string html = "<tr><th scope=\"row\">" + name + "</th>";
  for (const std::size_t bytes : values) {
    html += "<td class=\"n\">" + grouped(bytes) + "<small>" + readable(bytes) + "</small></td>";
  }
  return html + "</tr>\n";
}

std::string exact_figures(const bench::PlanView& view) {
  std::string html =
      "<section id=\"figures\"><h2>In exact bytes</h2><div class=\"card scroll\"><table><thead><tr><th></th>";
  for (const bench::StepTrace& step : view.steps) {
    html += "<th class=\"n\" scope=\"col\">" + escape_markup(step.name) + "</th>";
  }
  html += "</tr></thead><tbody>\n";
  const auto add = [&](const std::string& name, auto&& value) {
    std::vector<std::size_t> values;
    for (const bench::StepTrace& step : view.steps) values.push_back(value(step));
    html += row(name, values);
  };
  using bench::StepTrace;
  add("largest sum of live bytes in a steady step", [](const StepTrace& s) { return s.live_peak_bytes; });
  add("height of its blocks, placed on demand", [](const StepTrace& s) { return s.dynamic.height_bytes; });
  add("committed by the arena, placed on demand", [](const StepTrace& s) { return s.dynamic.committed_bytes; });
  add("height of its blocks, placed offline", [](const StepTrace& s) { return s.placed.height_bytes; });
  add("committed by the arena, placed offline", [](const StepTrace& s) { return s.placed.committed_bytes; });
  html += "<tr><th scope=\"row\">events of the step</th>";
  for (const StepTrace& s : view.steps) html += "<td class=\"n\">" + grouped(s.events.size() - s.before) + "</td>";
  return html + "</tr>\n</tbody></table></div></section>\n";
}

}  // namespace plan_page_detail

std::string write_plan_page(const bench::PlanView& view) {
  using namespace plan_page_detail;
  const std::string title = escape_markup(title_of(view));
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>" + title +
      ": a plan</title>\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<style>\n";
  html += palette_css();
  html.append(page_style).append(plan_style).append("</style></head>\n<body class=\"plan\">\n<main>\n<header>");
  html += "<p class=\"kicker\">Thimble " THIMBLE_VERSION " \xC2\xB7 plan</p><h1>" + title + "</h1>\n" + headline(view) +
          cards(view) +
          "</header>\n<noscript><p>The pictures need JavaScript; the exact figures are below.</p></noscript>\n";
  html += timeline_figure(view) + map_figure(view);
  if (view.report.planner != nullptr) html += schedule_figure(view) + curve_figure(view);
  html += exact_figures(view) + "</main>\n<script type=\"application/json\" id=\"data\">" + plan_data(view);
  html.append("</script>\n<script>")
      .append(script_helpers)
      .append(plan_script_panel)
      .append(plan_script_kinds)
      .append("</script>\n</body></html>\n");
  return html;
}

}  // namespace thimble::report

namespace thimble::bench {
namespace plan_page_detail {

std::optional<std::int64_t> theory_bytes(const Setup& setup) {
  if (!setup.precision.empty()) return std::nullopt;  // the textbooks have one dtype
  const bool is_text = models::make_model(setup.model, setup.sizes, {dry(cpu), setup.dtype})->is_text();
  const std::string optimizer = optimizer_name(setup, is_text);
  if (optimizer == "adafactor" || optimizer_state(setup, is_text) != DType::f32) return {};  // not in the textbooks
  const std::int64_t moments = optimizer == "sgd" ? 0 : optimizer == "momentum" ? 1 : 2;
  models::ModelOptions textbook = setup.sizes;
  textbook.build = models::Build::textbook;
  textbook.head = models::Head::full;
  return models::make_theory(setup.model, textbook, setup.dtype).held_bytes(moments, setup.batch);
}

}  // namespace plan_page_detail

PlanView see_plan(const PlanOptions& options, const PlanReport& report) {
  PlanView view{report.setup, report, {}, {}, {}};
  if (options.is_inference) {
    view.steps.push_back(trace_step("forward", options.device,
                                    options.is_int8 ? int8_inference_run(view.setup) : inference_run(view.setup)));
    return view;
  }
  const nn::MakeRun& make = report.run;
  view.plans = report.planner->plans();
  for (nn::Plan& plan : view.plans) plan.time_overhead = plan.step_s / report.plain_step_s - 1;
  view.theory_bytes = plan_page_detail::theory_bytes(view.setup);
  if (report.plan.tape) view.steps.push_back(trace_step("keep everything", options.device, make));
  view.steps.push_back(trace_step(report.plan.tape ? "planned" : "keep everything", options.device, make, report.plan));
  return view;
}

}  // namespace thimble::bench
