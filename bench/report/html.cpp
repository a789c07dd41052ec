// report.html: one page that needs nothing beside itself.

#include <set>
#include <string>
#include <vector>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/html_table.h>
#include <thimble/bench/report/page.h>
#include <thimble/bench/report/palette.h>
#include <thimble/bench/report/text.h>
#include <thimble/bench/report/writers.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace html_detail {

std::string count_text(std::size_t count, const char* one, const char* many) {
  return format_grouped(count) + " " + (count == 1 ? one : many);
}

std::string section_link(const Experiment& experiment) {
  return "<a href=\"#" + experiment.name + "\">" + escape_markup(experiment.title) + "</a>";
}

// A check where all compared rows agree, a cross where one differs, a dot where nothing was compared.
std::string status_mark(const Tally& counts) {
  if (counts.compared == 0) return "<span class=\"mark muted\">\xC2\xB7</span>";
  if (counts.equal == counts.compared) return "<span class=\"mark good\">\xE2\x9C\x93</span>";
  return "<span class=\"mark alarm\">\xE2\x9C\x95</span>";
}

std::string navigation(const Report& report) {
  std::string html = "<nav aria-label=\"Experiments\"><b>Experiments</b><ol>\n";
  for (const Experiment& experiment : report.experiments) {
    html += "<li><a href=\"#" + experiment.name + "\">" + status_mark(tally(experiment)) + "<span>" +
            escape_markup(experiment.title) + "</span></a></li>\n";
  }
  return html + "</ol></nav>\n";
}

// ---- The head of the page ----

std::string meter(std::size_t part, std::size_t whole) {
  if (whole == 0) return "";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return "<span class=\"meter\"><i style=\"width:" + format_trimmed(percent, 2) + "%\"></i></span>";
}

std::string stats(const Report& report) {
  const Tally counts = tally(report);
  const Environment& environment = report.environment;
  std::string html = "<dl class=\"stats\">\n";
  html += stat_card("configurations", format_grouped(counts.rows),
                    "in " + count_text(report.experiments.size(), "experiment", "experiments"));
  html += stat_card(
      "measured = predicted",
      counts.compared == 0 ? "\xE2\x80\x93" : format_grouped(counts.equal) + " of " + format_grouped(counts.compared),
      counts.compared == 0 ? "nothing was measured" : meter(counts.equal, counts.compared));
  if (counts.with_theory > 0) {
    html += stat_card("theory explains every byte",
                      format_grouped(counts.named) + " of " + format_grouped(counts.with_theory),
                      meter(counts.named, counts.with_theory));
  }
  std::string machine = escape_markup(environment.cpu);
  if (environment.threads > 0) {
    machine +=
        (machine.empty() ? "" : ", ") + count_text(static_cast<std::size_t>(environment.threads), "thread", "threads");
  }
  html += stat_card("device", escape_markup(environment.device), machine, true);
  return html + "</dl>\n";
}

std::string dateline(const Environment& environment) {
  std::string text = escape_markup(environment.date);
  if (!environment.version.empty()) {
    text += (text.empty() ? "" : " \xC2\xB7 ") + std::string("Thimble ") + escape_markup(environment.version);
  }
  return text.empty() ? text : "<p class=\"kicker\">" + text + "</p>";
}

std::string headline(const Report& report) {
  const Tally counts = tally(report);
  std::string html = "<p class=\"lead\">";
  if (counts.compared == 0) {
    html += "No configuration has both a predicted and a measured peak, so there is nothing to compare yet.";
  } else if (counts.compared == 1 && counts.equal == 1) {
    html += "In the one configuration that was run, the measured peak is the predicted one, to the byte.";
  } else if (counts.equal == counts.compared) {
    html += "In every one of the " + count_text(counts.compared, "configuration", "configurations") +
            " that were run, the measured peak is the predicted one, to the byte.";
  } else {
    html += "In " + format_grouped(counts.equal) + " of the " +
            count_text(counts.compared, "configuration", "configurations") +
            " that were run, the measured peak is the predicted one, to the byte. The others are in ";
    std::string links;
    for (const Experiment& experiment : report.experiments) {
      const Tally part = tally(experiment);
      if (part.equal < part.compared) links += (links.empty() ? "" : ", ") + section_link(experiment);
    }
    html += links + ".";
  }
  return html + "</p>\n";
}

// Labels of the categories that pictures show.
std::set<std::string_view> categories_shown(const Report& report) {
  std::set<std::string_view> shown;
  for (const Experiment& experiment : report.experiments) {
    for (const Bars& bars : experiment.bars) {
      for (const Bar& bar : bars.bars) {
        for (const BarPart& part : bar.parts) {
          if (part.amount > 0) shown.insert(part.name);
        }
      }
    }
    for (const Timeline& timeline : experiment.timelines) {
      for (const Event& event : timeline.events) {
        for (std::size_t i = 0; i < event.bytes.size(); ++i) {
          if (event.bytes[i] > 0) shown.insert(label_of(static_cast<Category>(i)));
        }
      }
    }
  }
  return shown;
}

std::string reading_guide(const Report& report) {
  std::string html = R"(<div class="card"><h3>How to read this page</h3>
<dl class="terms">
<div><dt>theory</dt><dd>The closed formula, evaluated for the configuration. What it leaves out is listed term by term.</dd></div>
<div><dt>predicted</dt><dd>The peak of a dry run: the same code with every allocation and no arithmetic, before the first step.</dd></div>
<div><dt>measured</dt><dd>The peak of the real run: what the arena had to commit.</dd></div>
</dl>
)";
  const std::set<std::string_view> shown = categories_shown(report);
  if (!shown.empty()) {
    html += "<ul class=\"chips\">";
    for (const Category category : stacking_order) {
      if (shown.count(label_of(category)) == 0) continue;
      html += "<li><span class=\"swatch\" style=\"background:var(--" + std::string(paint_of(category).name) +
              ")\"></span>" + std::string(label_of(category)) + "</li>";
    }
    html += "</ul>";
  }
  return html + "</div>\n";
}

std::string overview(const Report& report) {
  std::string html =
      "<div class=\"card scroll\"><table class=\"overview\"><thead><tr><th scope=\"col\">experiment</th>"
      "<th scope=\"col\">question</th><th class=\"n\" scope=\"col\">measured = predicted</th></tr></thead><tbody>\n";
  for (const Experiment& experiment : report.experiments) {
    const Tally counts = tally(experiment);
    const std::string result = counts.compared == 0 ? "<span class=\"muted\">not measured</span>"
                                                    : format_grouped(counts.equal) + " of " +
                                                          format_grouped(counts.compared) + " " + status_mark(counts);
    html += "<tr><td>" + section_link(experiment) + "</td><td>" + escape_markup(experiment.question) +
            "</td><td class=\"n\">" + result + "</td></tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

// ---- An experiment ----

template <class Picture>
std::string figure(const std::string& kind, const Picture& picture) {
  const Figure drawn = page_figure(picture);
  return figure_card(kind, escape_markup(picture.title), drawn.svg, drawn.hover_json, escape_markup(picture.caption));
}

std::string findings(const Experiment& experiment) {
  const Tally counts = tally(experiment);
  std::string status;
  if (counts.compared > 0) {
    status = "<p class=\"status\">" + status_mark(counts) + " measured = predicted in " + format_grouped(counts.equal) +
             " of " + count_text(counts.compared, "configuration", "configurations") + "</p>";
  }
  std::string html;
  if (!experiment.theory.empty()) {
    html += "<div class=\"card\"><p class=\"kicker\">Theory</p><p class=\"formula\">" +
            escape_except_simple_tags(experiment.theory) + "</p></div>\n";
  }
  if (!experiment.verdict.empty() || !status.empty()) {
    html += "<div class=\"card\"><p class=\"kicker\">Finding</p><p>" + escape_markup(experiment.verdict) + "</p>" +
            status + "</div>\n";
  }
  return html.empty() ? html : "<div class=\"findings\">\n" + html + "</div>\n";
}

std::string section(const Experiment& experiment) {
  std::string html = "<section id=\"" + experiment.name + "\"><h2>" + escape_markup(experiment.title) + "</h2>\n";
  if (!experiment.question.empty()) html += "<p class=\"lead\">" + escape_markup(experiment.question) + "</p>\n";
  html += findings(experiment);
  for (const Plot& plot : experiment.plots) html += figure("plot", plot);
  for (const Bars& bars : experiment.bars) html += figure("bars", bars);
  for (const Timeline& timeline : experiment.timelines) html += figure("timeline", timeline);
  if (!experiment.rows.empty()) html += "<div class=\"card\">" + html_table(experiment) + "</div>\n";
  return html + "</section>\n";
}

std::string facts(const Environment& environment) {
  std::string html =
      "<section id=\"Environment\"><h2>Where these figures come from</h2><div class=\"card\"><table class=\"facts\">";
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) {
      html += "<tr><th scope=\"row\">" + escape_markup(name) + "</th><td>" + escape_markup(value) + "</td></tr>\n";
    }
  };
  add("Thimble", environment.version);
  add("device", environment.device);
  add("processor", environment.cpu);
  add("threads", environment.threads > 0 ? std::to_string(environment.threads) : "");
  add("date", environment.date);
  for (const auto& [name, value] : environment.details) add(name, value);
  return html + "</table></div></section>\n";
}

}  // namespace html_detail

std::string write_html(const Report& report) {
  using namespace html_detail;
  check(report);
  std::string html = begin_page(escape_markup(report.title)) + navigation(report);
  html += "<main>\n<header>" + dateline(report.environment) + "<h1>" + escape_markup(report.title) + "</h1>\n" +
          headline(report) + stats(report) + "</header>\n" + reading_guide(report) + overview(report);
  for (const Experiment& experiment : report.experiments) html += section(experiment);
  return html + facts(report.environment) + "</main>\n" + end_page();
}

}  // namespace thimble::report
