// The page of a plan: words, pictures, exact figures.

#include <thimble/bench/report/plan_page.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <thimble/bench/report/page.h>
#include <thimble/bench/report/plan_figures.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/units.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/version.h>

namespace thimble::bench {

namespace {

/// Notes where blocks lie, numbered as memory::Trace numbers them.
class Addresses final : public memory::Decorator {
 public:
  explicit Addresses(std::shared_ptr<memory::Resource> upstream) : memory::Decorator(std::move(upstream)) {}

  /// Begins again with the blocks that live now, as Trace::restart does.
  void restart() {
    std::vector<std::pair<std::size_t, const memory::Block*>> live;
    for (const auto& [block, id] : live_) live.emplace_back(id, block);
    std::sort(live.begin(), live.end());
    live_.clear();
    noted_.clear();
    for (const auto& [id, block] : live) note(block);
  }
  StepLayout layout(const memory::Arena& arena) const {
    StepLayout layout;
    for (const auto& [address, bytes] : noted_) {
      layout.offsets.push_back(static_cast<std::size_t>(address - arena.base()));
      layout.height_bytes = std::max(layout.height_bytes, layout.offsets.back() + bytes);
    }
    return layout;
  }

 private:
  void note(const memory::Block* block) {
    live_.emplace(block, noted_.size());
    noted_.emplace_back(block->address, block->bytes);
  }
  memory::Block* do_allocate(const memory::Request& request) override {
    memory::Block* const block = upstream_allocate(request);
    note(block);
    return block;
  }
  void do_deallocate(memory::Block* block, memory::Stream stream) noexcept override {
    live_.erase(block);
    upstream_deallocate(block, stream);
  }
  void do_relabel(memory::Block* block, memory::Category category) noexcept override {
    upstream_relabel(block, category);
  }

  std::unordered_map<const memory::Block*, std::size_t> live_;
  std::vector<std::pair<const std::byte*, std::size_t>> noted_;  // address and bytes, by id
};

/// Runs two steps, placed by `plans`, and copies the second one into `trace`. Returns where its blocks lie.
StepLayout run_steps(memory::Device on, const nn::MakeRun& make, std::vector<memory::StepPlacement> plans,
                     StepTrace& trace) {
  memory::Options options = nn::profile_options(on);
  options.trace = true;
  options.plans = std::move(plans);
  const memory::Stack stack = memory::make_resource(on, std::move(options));
  const auto addresses = std::make_shared<Addresses>(stack.top);
  StepLayout layout;
  {
    const ResourceScope scope(addresses);
    const std::unique_ptr<nn::TrainingRun> run = make(on);
    nn::run_step(*run, stack);
    stack.trace->restart();
    addresses->restart();
    trace.before = stack.trace->event_count();
    nn::run_step(*run, stack);
    trace.events = stack.trace->events();
    layout = addresses->layout(*stack.arena);
    nn::finish_run(*run, stack);
  }
  layout.committed_bytes = stack.arena->statistics().peak_committed_bytes;
  return layout;
}

}  // namespace

StepTrace trace_step(const std::string& name, memory::Device device, const nn::MakeRun& make, const nn::Plan& plan) {
  const nn::MakeRun planned = [&](memory::Device on) {
    std::unique_ptr<nn::TrainingRun> run = make(on);
    plan.apply(run->options(), on);
    return run;
  };
  const memory::Device on = dry(device);
  StepTrace trace;
  trace.name = name;
  trace.placed = run_steps(on, planned, plan.placement.empty() ? nn::plan_steps(on, planned) : plan.placement, trace);
  const std::vector<memory::Trace::Event> events = std::exchange(trace.events, {});
  trace.dynamic = run_steps(on, planned, {}, trace);
  if (trace.events != events) throw Error("trace_step: " + name + " makes other requests when it is placed");
  std::size_t live = 0;
  for (const memory::Trace::Event& event : trace.events) {
    if (event.action == memory::Trace::Action::allocate) live += event.bytes;
    if (event.action == memory::Trace::Action::free) live -= event.bytes;
    trace.live_peak_bytes = std::max(trace.live_peak_bytes, live);
  }
  return trace;
}

std::string techniques_in_words(const models::PlanReport& report) {
  const models::Setup& setup = report.setup;
  std::string words;
  if (report.micro_batches > 1) words += " in " + std::to_string(report.micro_batches) + " micro-batches";
  for (const models::Technique& technique : models::techniques()) {
    if (technique.words != nullptr && technique.is_on(setup)) words += technique.words(setup);
  }
  return words;
}

}  // namespace thimble::bench

namespace thimble::report {
namespace {

std::string in_words(std::size_t bytes) { return format_bytes(bytes) + " (" + format_grouped(bytes) + " bytes)"; }

std::string title_of(const bench::PlanView& view) {
  return view.setup.model + ", batch " + format_grouped(view.report.batch) + bench::techniques_in_words(view.report);
}

// The figures in one paragraph.
std::string headline(const bench::PlanView& view) {
  const models::PlanReport& r = view.report;
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
                : "It takes " + format_percent(r.plan.time_overhead) +
                      " more time than keeping everything, which needs " + in_words(r.keep_everything_bytes) + ". ";
    if (r.is_feasible) html += "The smallest possible is " + in_words(r.minimum_bytes) + ".";
  }
  return html + "</p>\n";
}

std::string byte_card(const std::string& name, std::size_t bytes) {
  return stat_card(name, format_bytes(bytes), format_grouped(bytes) + " bytes");
}

std::string cards(const bench::PlanView& view) {
  const models::PlanReport& r = view.report;
  std::string html = "<dl class=\"stats\">\n";
  if (r.budget_bytes > 0) html += byte_card("budget", r.budget_bytes);
  html += byte_card("peak (committed)", r.plan.peak_bytes);
  if (r.planner != nullptr) {
    html += byte_card("smallest possible", r.minimum_bytes);
    html += stat_card("more time", format_percent(r.plan.time_overhead), "than keeping everything");
  }
  html += stat_card("parameters", format_grouped(r.parameters), "in " + escape_markup(view.setup.model));
  return html + "</dl>\n<p class=\"muted\">Times by the cost model: " + escape_markup(r.cost_model) + "</p>\n";
}

// ---- Figures ----

const char* const keys = " Drag across to look closer, double-click to see all again; the arrow keys go ";

std::string timeline_figure(const bench::PlanView& view, const bench::StepTrace& step) {
  std::string caption =
      "Live bytes by category after every allocation and free, at one scale for all steps. The lower bound is the "
      "load: what any placement of this step must commit.";
  if (view.theory_bytes && step.name == "keep everything") {
    caption +=
        " By the closed forms, the textbook build of this model, which keeps what the literature counts, holds " +
        format_grouped(*view.theory_bytes) + " bytes when backward begins.";
  }
  return figure_card(page_figure(step_timeline(view, step)),
                     "One steady step, event by event: " + escape_markup(step.name),
                     caption + keys + "event by event.");
}

// A figure per step, of which a button each shows one: at first the planned one.
std::string map_figures(const bench::PlanView& view) {
  std::string buttons, figures;
  for (std::size_t i = view.steps.size(); i-- > 0;) {
    const bench::StepTrace& step = view.steps[i];
    const bool is_planned = &step == &view.planned();
    const std::string name = escape_markup(step.name), id = "map" + std::to_string(i);
    buttons += "<button type=\"button\" data-figure=\"" + id + "\" aria-pressed=\"" + (is_planned ? "true" : "false") +
               "\">" + name + "</button>";
    std::string caption =
        "Every block is a rectangle: its lifetime across, its addresses upwards from the arena's base. What is empty "
        "at a moment is free then; what is empty below the height at the moment of the peak is lost to fragmentation.";
    const LeftOut left = left_out_of_map(step);
    if (left.blocks > 0) {
      caption += " " + format_grouped(left.blocks) + " small or short-lived blocks of at most " +
                 in_words(left.largest_bytes) + " are not drawn.";
    }
    figures += figure_card(step_map(view, step), "Where blocks lie in the arena: " + name,
                           caption + keys + "block by block.", " id=\"" + id + "\"" + (is_planned ? "" : " hidden"));
  }
  if (view.steps.size() == 1) return figures;
  return "<p class=\"choice\" role=\"group\" aria-label=\"step of the maps\">Step of the map below " + buttons +
         "</p>\n" + figures;
}

/// Explains the rows of transfers, if the plan has any.
std::string transfer_text(const models::PlanReport& report) {
  if (!report.plan.tape || !report.plan.tape->offloads()) return "";
  return " Offloaded tensors leave while the operators of the row of writes run, and come back while the backward of "
         "those in the row of reads does, from right to left: " +
         in_words(report.plan.offloaded_bytes) + " in all.";
}

std::string plan_figures(const bench::PlanView& view) {
  return figure_card(schedule_figure(view), "The schedule: what is kept of every operator",
                     "The " + format_grouped(view.report.planner->graph().nodes.size()) +
                         " recorded operators in order of execution. Bars are the bytes that each makes for backward; "
                         "their solid part is kept. The bars below are the segments that backward runs again, nested "
                         "ones further down: " +
                         format_grouped(view.report.segments.size()) + " in all." + transfer_text(view.report)) +
         figure_card(plans_plot(view));
}

// ---- Exact figures ----

std::string table_row(const std::string& name, const std::vector<std::size_t>& values) {
  std::string html = "<tr><th scope=\"row\">" + name + "</th>";
  for (const std::size_t bytes : values) html += byte_cell(static_cast<std::int64_t>(bytes));
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
    html += table_row(name, values);
  };
  using bench::StepTrace;
  add("largest sum of live bytes in a steady step", [](const StepTrace& s) { return s.live_peak_bytes; });
  add("height of its blocks, placed on demand", [](const StepTrace& s) { return s.dynamic.height_bytes; });
  add("committed by the arena, placed on demand", [](const StepTrace& s) { return s.dynamic.committed_bytes; });
  add("height of its blocks, placed offline", [](const StepTrace& s) { return s.placed.height_bytes; });
  add("committed by the arena, placed offline", [](const StepTrace& s) { return s.placed.committed_bytes; });
  html += "<tr><th scope=\"row\">events of the step</th>";
  for (const StepTrace& s : view.steps)
    html += "<td class=\"n\">" + format_grouped(s.events.size() - s.before) + "</td>";
  return html + "</tr>\n</tbody></table></div></section>\n";
}

}  // namespace

std::string write_plan_page(const bench::PlanView& view) {
  const std::string title = escape_markup(title_of(view));
  std::string html = begin_page(title + ": a plan", "plan") + "<main>\n<header>";
  html += "<p class=\"kicker\">Thimble " THIMBLE_VERSION " \xC2\xB7 plan</p><h1>" + title + "</h1>\n" + headline(view) +
          cards(view) + "</header>\n";
  for (const bench::StepTrace& step : view.steps) html += timeline_figure(view, step);
  html += map_figures(view);
  if (view.report.planner != nullptr) html += plan_figures(view);
  return html + exact_figures(view) + "</main>\n" + end_page();
}

}  // namespace thimble::report

namespace thimble::bench {
namespace {

std::optional<std::int64_t> theory_bytes(const models::Setup& setup) {
  // The textbooks have one dtype, and attention to all tokens.
  if (!setup.precision.policy.empty() || setup.sizes.window > 0) return std::nullopt;
  const bool is_text = models::make_model(setup.model, setup.sizes, {dry(cpu), setup.precision.dtype})->is_text();
  const std::string optimizer = optimizer_name(setup, is_text);
  if (!models::is_elementwise(optimizer) || optimizer_state(setup, is_text) != DType::f32)
    return {};  // not in the textbooks
  const std::int64_t moments = optimizer == "sgd" ? 0 : optimizer == "momentum" ? 1 : 2;
  models::ModelOptions textbook = setup.sizes;
  textbook.build = models::Build::textbook;
  textbook.head = models::Head::full;
  textbook.feed_forward = models::FeedForward::full;
  return models::make_theory(setup.model, textbook, setup.precision.dtype).held_bytes(moments, setup.batch);
}

}  // namespace

PlanView see_plan(const models::RunOptions& options, const models::PlanReport& report) {
  PlanView view{report.setup, report, {}, {}, {}};
  if (report.request.is_inference) {
    view.steps.push_back(
        trace_step("forward", options.device,
                   report.request.is_int8 ? int8_inference_run(view.setup) : inference_run(view.setup)));
    return view;
  }
  const nn::MakeRun& make = report.run;
  view.plans = report.planner->plans();
  for (nn::Plan& plan : view.plans) plan.time_overhead = plan.step_s / report.plain_step_s - 1;
  view.theory_bytes = theory_bytes(view.setup);
  if (report.plan.tape) view.steps.push_back(trace_step("keep everything", options.device, make));
  view.steps.push_back(trace_step(report.plan.tape ? "planned" : "keep everything", options.device, make, report.plan));
  return view;
}

}  // namespace thimble::bench
