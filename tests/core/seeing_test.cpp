// Seeing a plan: the trace of a step, its page, and its exports.

#include "support/catch.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/palette.h>
#include <thimble/bench/report/plan_page.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/memory/placement/csv.h>
#include <thimble/memory/units.h>

#include "support/files.h"
#include "support/markup.h"
#include "support/offload_data.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using namespace thimble;
using bench::PlanView;
using bench::StepTrace;
using files_test::contains;
using files_test::TemporaryFolder;
using models::RunOptions;
using nlohmann::json;

RunOptions small_options() {
  RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 4;
  options.setup.sizes.layers = 3;
  options.setup.sizes.heads = 2;
  options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 128;
  return options;
}

// With a budget halfway between the smallest plan and keeping everything; made once.
const PlanView& small_view() {
  static const PlanView view = [] {
    RunOptions options = small_options();
    const models::PlanReport unlimited = models::make_plan(options);
    options.budget_bytes = (unlimited.minimum_bytes + unlimited.keep_everything_bytes) / 2;
    return bench::see_plan(options, models::make_plan(options));
  }();
  return view;
}

// The figures of a kind for the page's script, in the page's order.
std::vector<json> figures_of(const std::string& page, const std::string& kind) {
  const std::string start = "<script type=\"application/json\">";
  std::vector<json> figures;
  for (std::size_t at = 0; (at = page.find(start, at)) != std::string::npos;) {
    at += start.size();
    json figure = json::parse(page.substr(at, page.find("</script>", at) - at));
    if (figure["kind"] == kind) figures.push_back(std::move(figure));
  }
  return figures;
}

std::size_t event_count(const StepTrace& step) { return step.events.size() - step.before; }

}  // namespace

TEST_CASE("seeing: a step's trace stands on its own, at the arena's addresses", "[seeing]") {
  const PlanView& view = small_view();
  REQUIRE(view.steps.size() == 2);
  CHECK(view.steps[0].name == "keep everything");
  REQUIRE(view.report.plan.tape);
  CHECK(view.steps[1].live_peak_bytes < view.steps[0].live_peak_bytes);
  CHECK(event_count(view.steps[1]) > event_count(view.steps[0]));  // some nodes run twice
  for (const StepTrace& step : view.steps) {
    CAPTURE(step.name);
    const std::vector<memory::Trace::Lifetime> blocks = lifetimes(step.events);
    CHECK(step.before > 0);  // parameters
    CHECK(step.dynamic.height_bytes <= step.dynamic.committed_bytes);
    CHECK(step.dynamic.height_bytes >= step.live_peak_bytes);
    CHECK(step.placed.height_bytes >= step.live_peak_bytes);
    std::vector<memory::Buffer> buffers;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      REQUIRE(blocks[i].block == i);
      buffers.push_back({i, blocks[i].lower, blocks[i].upper, blocks[i].bytes, blocks[i].alignment});
    }
    for (const bench::StepLayout* layout : {&step.dynamic, &step.placed}) {
      CHECK_NOTHROW(memory::check_placement(buffers, layout->offsets, layout->height_bytes));
    }
    std::size_t peak = 0;
    for (const memory::CategoryBytes& state : timeline(step.events)) {
      std::size_t sum = 0;
      for (const std::size_t bytes : state) sum += bytes;
      peak = std::max(peak, sum);
    }
    CHECK(peak == step.live_peak_bytes);
  }
}

TEST_CASE("seeing: the page holds the exact figures, and the data of its pictures add up", "[seeing]") {
  const PlanView& view = small_view();
  const std::string page = report::write_plan_page(view);
  CHECK(markup::problem(page) == "");
  for (std::size_t at = 0; (at = page.find("http://", at)) != std::string::npos; ++at) {
    CHECK(page.compare(at, 26, "http://www.w3.org/2000/svg") == 0);  // a name, not an address
  }
  CHECK_FALSE(contains(page, "https://"));
  CHECK(page == report::write_plan_page(view));
  for (const std::size_t bytes :
       {view.report.budget_bytes, view.report.plan.peak_bytes, view.report.minimum_bytes,
        view.report.keep_everything_bytes, view.steps[0].live_peak_bytes, view.steps[1].live_peak_bytes,
        view.steps[1].dynamic.committed_bytes, view.steps[1].placed.height_bytes}) {
    CHECK(contains(page, format_grouped(bytes)));
  }
  CHECK(contains(page, report::escape_markup(view.report.cost_model)));
  const models::PlanReport& r = view.report;
  const auto words = [&](std::size_t bytes) { return format_bytes(bytes) + " (" + format_grouped(bytes) + " bytes)"; };
  CHECK(contains(page, "<p class=\"lead\">A training step needs " + words(r.plan.peak_bytes) +
                           " and fits the budget of " + words(r.budget_bytes) + ". It takes " +
                           report::format_percent(r.plan.time_overhead) +
                           " more time than keeping everything, which needs " + words(r.keep_everything_bytes) +
                           ". The smallest possible is " + words(r.minimum_bytes) + ".</p>"));

  const std::vector<json> timelines = figures_of(page, "timeline"), maps = figures_of(page, "map");
  REQUIRE(timelines.size() == 2);
  REQUIRE(maps.size() == 2);
  for (const std::vector<json>& both : {timelines, maps}) {  // one scale
    CHECK(both[0]["high"] == both[1]["high"]);
    CHECK(both[0]["frame"][1] == both[1]["frame"][1]);
    CHECK(both[0]["frame"][3] == both[1]["frame"][3]);
  }
  for (std::size_t s = 0; s < 2; ++s) {
    const json& step = timelines[s];
    const json& map = maps[1 - s];  // the planned step comes first
    const StepTrace& trace = view.steps[s];
    CHECK(step["step"] == trace.name);
    CHECK(map["step"] == trace.name);
    CHECK(step["count"] == event_count(trace) + 1);
    CHECK(map["count"] == step["count"]);
    // The last entry is the state after the last event, with the peak on the way.
    const std::vector<std::int64_t> times = markup::column(step, step["from"]);
    REQUIRE(times.size() == event_count(trace) + 1);
    const std::vector<memory::CategoryBytes> states = timeline(trace.events);
    const std::vector<std::int64_t> totals = markup::sum_of_rows(step);
    for (const json& row : step["rows"]) {
      const std::vector<std::int64_t> bytes = markup::column(step, row["values"]);
      const auto category = std::find_if(report::stacking_order.begin(), report::stacking_order.end(),
                                         [&](memory::Category one) { return row["name"] == report::label_of(one); });
      REQUIRE(category != report::stacking_order.end());
      CHECK(bytes.back() == static_cast<std::int64_t>(states.back()[static_cast<std::size_t>(*category)]));
    }
    const auto highest = std::max_element(totals.begin(), totals.end());
    CHECK(*highest == static_cast<std::int64_t>(trace.live_peak_bytes));
    CHECK(contains(page, ">peak " + format_bytes(*highest) + "<"));
    CHECK(contains(page, ">event " + format_grouped(times[static_cast<std::size_t>(highest - totals.begin())])));
    // An entry per block and category that it had.
    const std::vector<memory::Trace::Lifetime> blocks = lifetimes(trace.events);
    const std::vector<std::int64_t> lows = markup::column(map, map["low"]);
    const std::vector<std::int64_t> others = markup::column(map, map["other_low"]);
    const std::vector<std::int64_t> sizes = markup::sum_of_rows(map, "size");
    std::size_t at = 0;
    for (const memory::Trace::Lifetime& block : blocks) {
      const std::size_t first = at;
      for (std::size_t i = std::max(trace.before, block.lower); i < block.upper; ++i) {
        at += trace.events[i].action == memory::Trace::Action::relabel && trace.events[i].block == block.block ? 1 : 0;
      }
      REQUIRE(++at <= lows.size());
      for (std::size_t i = first; i < at; ++i) {
        CHECK(lows[i] == static_cast<std::int64_t>(trace.dynamic.offsets[block.block]));
        CHECK(others[i] == static_cast<std::int64_t>(trace.placed.offsets[block.block]));
        CHECK(sizes[i] == static_cast<std::int64_t>(block.bytes));
      }
    }
    CHECK(at == lows.size());
  }
  REQUIRE(figures_of(page, "schedule").size() == 1);
  const json nodes = figures_of(page, "schedule")[0];
  CHECK(nodes["entries"] == view.report.planner->graph().nodes.size());
  CHECK(nodes["spans"].size() == view.report.segments.size());
  REQUIRE(figures_of(page, "plot").size() == 1);
  const json plans = figures_of(page, "plot")[0];
  CHECK(plans["entries"] > view.plans.size());  // and the one that is shown
  const std::string here = report::format_exact(static_cast<double>(view.report.plan.peak_bytes), report::Unit::bytes);
  CHECK(std::count(plans["texts"].begin(), plans["texts"].end(), "bytes committed " + here) == 1);
  CHECK(std::count(plans["texts"].begin(), plans["texts"].end(), "this plan") == 1);
  CHECK(contains(page, ">budget<"));
  const std::vector<std::int64_t> all_made = markup::sum_of_rows(nodes, "makes"),
                                  all_kept = markup::sum_of_rows(nodes, "keeps");
  const std::vector<std::int64_t> fates = markup::sum_of_rows(nodes, "fate");
  for (std::size_t n = 0; n < all_made.size(); ++n) {
    const std::int64_t made = all_made[n], kept = all_kept[n];
    const std::string fate = nodes["texts"][static_cast<std::size_t>(fates[n])];
    CAPTURE(n, made, kept, fate);
    CHECK(kept <= made);
    const bool is_in_segment = std::any_of(nodes["spans"].begin(), nodes["spans"].end(),
                                           [&](const json& span) { return span[0] <= n && n < span[1]; });
    if (!is_in_segment) {
      CHECK((fate == "kept" || fate == "backward does not need it"));
      CHECK((fate == "kept") == (kept > 0));
    } else {
      CHECK(fate != "backward does not need it");
      if (fate == "kept") CHECK(kept == made);
      if (fate == "dropped, runs again") CHECK(kept == 0);
    }
  }
}

TEST_CASE("seeing: pages of other plans", "[seeing]") {
  RunOptions options = small_options();
  SECTION("nothing is dropped") {
    const PlanView view = bench::see_plan(options, models::make_plan(options));
    CHECK(view.steps.size() == 1);
    CHECK(contains(report::write_plan_page(view), "Everything that backward reads is kept."));
  }
  SECTION("a chunked head and layers in tiles are beside the same textbook build") {
    options.setup.sizes.head = models::Head::chunked;
    options.setup.sizes.feed_forward = models::FeedForward::tiled;
    const PlanView view = bench::see_plan(options, models::make_plan(options));
    REQUIRE(view.theory_bytes.has_value());
    CHECK(view.theory_bytes == small_view().theory_bytes);
  }
  SECTION("a window has no textbook build") {
    options.setup.sizes.window = 64;
    options.setup.micro_batches = 2;
    const PlanView view = bench::see_plan(options, models::make_plan(options));
    CHECK_FALSE(view.theory_bytes.has_value());
    CHECK(contains(report::write_plan_page(view), " in 2 micro-batches, a window of 64: a plan</title>"));
  }
  SECTION("a forward") {
    const PlanView view = bench::see_plan(options, models::make_plan(options, {.is_inference = true}));
    const std::string page = report::write_plan_page(view);
    CHECK(markup::problem(page) == "");
    CHECK(figures_of(page, "timeline").size() == 1);
    CHECK(figures_of(page, "map").size() == 1);
    CHECK(figures_of(page, "schedule").empty());
    CHECK(figures_of(page, "plot").empty());
  }
  SECTION("tensors in a tier, and when they move") {
    options.setup.offload.to = offload_test::disk_folder();
    if (options.setup.offload.to.empty()) return;
    options.setup.batch = 16, options.setup.sizes = {.sequence = 256};
    options.budget_bytes = models::make_plan(options).keep_everything_bytes * 6 / 10;
    const PlanView view = bench::see_plan(options, models::make_plan(options));
    REQUIRE(view.report.plan.offloaded_bytes > 0);
    const std::string page = report::write_plan_page(view);
    CHECK(contains(page, "Offloaded tensors leave while"));
    std::vector<std::string> expected, shown;
    for (const TapePlan::Spill& s : view.report.plan.tape->spills) {
      expected.push_back(std::to_string(s.node) + ": written during operators " + std::to_string(s.away_after) +
                         "\xE2\x80\x93" + std::to_string(s.gone_after) + ", read from the backward of " +
                         std::to_string(s.back_before) + " on");
    }
    const json schedule = figures_of(page, "schedule")[0];
    for (const json& span : schedule["spans"]) {
      if (span[3] != "offloaded") continue;
      const std::string text = span[4];
      shown.push_back(std::to_string(span[0].get<int>()) + ": " + text.substr(0, text.find(", for")));
    }
    CHECK(shown == expected);
  }
  SECTION("an infeasible budget") {
    options.budget_bytes = 1000;
    const std::string page = report::write_plan_page(bench::see_plan(options, models::make_plan(options)));
    CHECK(markup::problem(page) == "");
    CHECK(contains(page, "No plan fits the budget of 1000 B (1,000 bytes).</span> The smallest one needs "));
  }
}

TEST_CASE("seeing: long steps are thinned, the peak stays", "[seeing]") {
  PlanView view;
  view.setup.model = "a <b> & \"c\"";
  StepTrace step;
  step.name = "long";
  step.before = 0;
  // Twice as many blocks as a page can hold, and a single high event in the middle.
  const std::size_t count = 2 * report::mapped_blocks_max;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = i == count / 2 ? 1'000'000 : 64 + i % 7;
    step.events.push_back({memory::Trace::Action::allocate, memory::Category::activation, 0, 64, i, bytes});
    step.events.push_back({memory::Trace::Action::free, memory::Category::activation, 0, 0, i, bytes});
    step.dynamic.offsets.push_back(0);
    step.placed.offsets.push_back(0);
  }
  step.live_peak_bytes = 1'000'000;
  view.steps.push_back(step);
  const std::string page = report::write_plan_page(view);
  CHECK(markup::problem(page) == "");
  CHECK(page.size() < 1'500'000);
  CHECK(contains(page, format_grouped(report::mapped_blocks_max) + " small or short-lived"));
  const json shown = figures_of(page, "timeline")[0], map = figures_of(page, "map")[0];
  CHECK(shown["entries"] == report::hover_events_max);
  CHECK(contains(page, ">event " + format_grouped(count + 1) + "<"));
  const std::vector<std::int64_t> live = markup::sum_of_rows(shown);
  CHECK(*std::max_element(live.begin(), live.end()) == 1'000'000);
  const std::vector<std::int64_t> bytes = markup::sum_of_rows(map, "size");
  CHECK(bytes.size() == report::mapped_blocks_max);
  CHECK(std::find(bytes.begin(), bytes.end(), 1'000'000) != bytes.end());
}

TEST_CASE("seeing: the trace for Perfetto has a counter per event and slices that nest", "[seeing]") {
  const PlanView& view = small_view();
  const json trace = json::parse(report::write_chrome_trace(view));
  std::map<int, std::size_t> counters;
  std::map<int, std::size_t> peaks;
  std::map<int, std::vector<std::string>> open;
  std::map<int, std::size_t> times;
  for (const json& event : trace["traceEvents"]) {
    const int process = event["pid"];
    if (event["ph"] == "M") continue;
    CHECK(event["ts"].get<std::size_t>() >= times[process]);
    times[process] = event["ts"];
    if (event["ph"] == "C") {
      ++counters[process];
      std::size_t sum = 0;
      for (const auto& [name, bytes] : event["args"].items()) sum += bytes.get<std::size_t>();
      peaks[process] = std::max(peaks[process], sum);
    } else if (event["ph"] == "B") {
      open[process].push_back(event["name"]);
    } else {
      REQUIRE(event["ph"] == "E");
      REQUIRE_FALSE(open[process].empty());
      CHECK(open[process].back() == event["name"]);
      open[process].pop_back();
    }
  }
  for (int process = 1; process <= 2; ++process) {
    const StepTrace& step = view.steps[static_cast<std::size_t>(process - 1)];
    CHECK(counters[process] == event_count(step) + 1);
    CHECK(peaks[process] == step.live_peak_bytes);
    CHECK(open[process].empty());
    CHECK(times[process] == event_count(step) + 1);  // after the last event
  }
}

TEST_CASE("seeing: pickles, byte by byte", "[seeing]") {
  using namespace std::string_literals;
  const nlohmann::ordered_json value = {
      {"a", {0, 255, -1, std::int64_t{1} << 36}}, {"b", nlohmann::ordered_json::array()}, {"c", "a"}};
  CHECK(report::write_pickle(value) ==
        "\x80\x02}(X\x01\0\0\0aq\0](K\0K\xFFJ\xFF\xFF\xFF\xFF\x8A\x08\0\0\0\0\x10\0\0\0e"
        "X\x01\0\0\0bq\x01](eX\x01\0\0\0cq\x02h\0u."s);
  const std::string long_list = report::write_pickle(std::vector<int>(1001, 7));
  CHECK(
      long_list.ends_with("K\x07"
                          "e(K\x07"
                          "e."));
  // The last number of each form, and the first of the next.
  CHECK(report::write_pickle({256, INT32_MAX, std::int64_t{INT32_MAX} + 1, INT32_MIN, std::int64_t{INT32_MIN} - 1}) ==
        "\x80\x02](J\0\1\0\0J\xFF\xFF\xFF\x7F\x8A\x08\0\0\0\x80\0\0\0\0J\0\0\0\x80"
        "\x8A\x08\xFF\xFF\xFF\x7F\xFF\xFF\xFF\xFF"
        "e."s);
  CHECK_THROWS_AS(report::write_pickle(1.5), ValueError);
}

namespace {

/// Reads the pickles of write_pickle.
class Unpickler {
 public:
  explicit Unpickler(std::string bytes) : bytes_(std::move(bytes)) {}
  json value() {
    const char code = bytes_.at(at_++);
    if (code == '}') return filled(json::object(), 'u');
    if (code == ']') return filled(json::array(), 'e');
    if (code == 'K') return number(1);
    if (code == 'J') return static_cast<std::int32_t>(number(4));
    if (code == '\x8A') return number((++at_, 8));
    if (code == 'h' || code == 'j') return texts_.at(number(code == 'h' ? 1 : 4));
    REQUIRE(code == 'X');
    const std::size_t size = number(4);
    texts_.push_back(bytes_.substr(at_, size));
    at_ += size;
    at_ += bytes_.at(at_) == 'q' ? 2 : 5;
    return texts_.back();
  }

 private:
  json filled(json list, char end) {
    for (++at_; true;) {
      if (bytes_.at(at_) == end) {
        ++at_;
        if (end == 'u' || bytes_.at(at_) != '(') return list;
        ++at_;  // another batch
      }
      const json item = value();
      end == 'u' ? void(list[item.get<std::string>()] = value()) : list.push_back(item);
    }
  }
  std::int64_t number(std::size_t bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      number |= std::uint64_t{static_cast<unsigned char>(bytes_.at(at_++))} << 8 * i;
    return static_cast<std::int64_t>(number);
  }
  std::string bytes_;
  std::size_t at_ = 2;  // after the version
  std::vector<std::string> texts_;
};

}  // namespace

TEST_CASE("seeing: the snapshot's blocks and holes fill its segment, as the step ends", "[seeing]") {
  const StepTrace& step = small_view().planned();
  const json snapshot = Unpickler(report::write_snapshot(small_view())).value();
  const json& segment = snapshot["segments"][0];
  std::size_t at = segment["address"], live = 0, live_at_end = 0;
  for (const json& block : segment["blocks"]) {
    CHECK(block["address"] == at);
    at += block["size"].get<std::size_t>();
    if (block["state"] == "active_allocated") live += block["size"].get<std::size_t>();
  }
  CHECK(at == segment["address"].get<std::size_t>() + step.dynamic.committed_bytes);
  const std::vector<memory::CategoryBytes> lives = timeline(step.events);
  for (const std::size_t bytes : lives.back()) live_at_end += bytes;
  REQUIRE((live_at_end > 0 && live_at_end < step.dynamic.committed_bytes));
  CHECK(live == live_at_end);
  CHECK(segment["total_size"] == step.dynamic.committed_bytes);
  for (const char* const key : {"allocated_size", "active_size", "requested_size"}) CHECK(segment[key] == live);
  CHECK(snapshot["device_traces"][0].size() > segment["blocks"].size());
}

TEST_CASE("seeing: Python reads the snapshot and finds the peak", "[seeing]") {
  if (std::getenv("THIMBLE_PYTHON") == nullptr) {
    thimble_test::skip("THIMBLE_PYTHON does not name a Python");
    return;
  }
  const TemporaryFolder folder;
  const PlanView& view = small_view();
  files_test::write_text_file(folder / "snapshot.pickle", report::write_snapshot(view));
  const auto check = [&](std::size_t peak) {
    return files_test::run_oracle("snapshot_check.py",
                                  "'" + (folder / "snapshot.pickle") + "' " + std::to_string(peak) + " 2> /dev/null");
  };
  CHECK(check(view.planned().live_peak_bytes) == 0);
  CHECK(check(view.planned().live_peak_bytes - 1) == 1);
}

TEST_CASE("seeing: the lifetimes are read by the packer", "[seeing]") {
  const StepTrace& step = small_view().planned();
  const memory::PlacementFile file = memory::parse_placement(to_csv(step.events), "x.csv");
  CHECK(file.buffers.size() == lifetimes(step.events).size());
  memory::PlacementOptions options;
  options.unit = 1;
  options.node_limit = 1;
  CHECK(memory::place(file.buffers, options).load == step.live_peak_bytes);
}

TEST_CASE("seeing: the program writes all or nothing", "[seeing]") {
  const TemporaryFolder folder;
  const std::string model = "plan mlp --batch 2 --image 8 --width 8 ";
  const auto help = program_test::run(folder, "plan --help all");
  if (!help) {
    thimble_test::skip("THIMBLE_PROGRAM does not name the program");
    return;
  }
  for (const char* flag : {"--html", "--trace", "--csv", "--snapshot"}) CHECK(contains(help->out, flag));
  const auto train_help = program_test::run(folder, "train --help all");
  CHECK(contains(train_help->out, "--show-memory"));

  const std::size_t before = folder.entries();  // the runs' own output files
  struct Case {
    std::string arguments, reason;
  };
  const std::string here = "'" + folder.path() + "'", there = "'" + (folder / "none/x") + "'";
  for (const Case& c : {Case{"--html " + there, folder / "none/x"}, Case{"--html " + here, folder.path()},
                        Case{"--html '" + (folder / "a") + "' --csv " + there, folder / "none/x"},
                        Case{"--html '" + (folder / "a") + "' --csv '" + (folder / "a") + "'", "which --html writes"},
                        Case{"--snapshot", "--snapshot"}}) {
    CAPTURE(c.arguments);
    const auto bad = program_test::run(folder, model + c.arguments);
    CHECK(bad->status == 2);
    CHECK(contains(bad->error, c.reason));
    CHECK(bad->out.empty());
    CHECK(folder.entries() == before);
  }
  const auto live = program_test::run(folder, "train mlp --data synthetic --steps 1 --show-memory");
  CHECK(live->status == 2);
  CHECK(contains(live->error, "--show-memory: expected a terminal on standard error"));

  const auto good = program_test::run(folder, model + "--budget 1 --html '" + (folder / "p.html") + "' --trace '" +
                                                  (folder / "t.json") + "' --csv '" + (folder / "l.csv") +
                                                  "' --snapshot '" + (folder / "s.pickle") + "'");
  CHECK(good->status == 3);  // infeasible: still shows the smallest plan
  CHECK(folder.entries() == before + 4);
  CHECK(markup::problem(files_test::read_text_file(folder / "p.html")) == "");
  const auto packed = program_test::run(folder, "pack '" + (folder / "l.csv") + "'");
  CHECK(packed->status == 0);
}
