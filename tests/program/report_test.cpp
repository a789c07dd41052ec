#include "support/catch.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/text.h>
#include <thimble/bench/report/writers.h>
#include <thimble/core/error.h>
#include <thimble/memory/units.h>

#include "report_sample.h"
#include "support/files.h"
#include "support/markup.h"

using namespace thimble::report;

namespace {

namespace fs = std::filesystem;

// Three rows: equal, different by +1,024, not measured.
Experiment small_experiment() {
  Experiment experiment;
  experiment.name = "small";
  experiment.title = "Small";
  experiment.question = "Does it fit?";
  experiment.theory = "4 n<sup>2</sup>";
  experiment.verdict = "Mostly.";
  experiment.columns = {{"ms", "time", Unit::milliseconds, 1}, {"gain", "gain, \"relative\"", Unit::percent, 2}};
  Row row;
  row.config = {{"model", std::string("mlp, \"wide\"")}, {"n", std::int64_t{100'000}}, {"rate", 0.1}};
  row.theory_bytes = 1'000'000;
  row.predicted_bytes = 1'048'576;
  row.measured_bytes = 1'048'576;
  row.remainder = {{"padding", 48'000}, {"labels", 576}};
  row.numbers = {{"ms", 1234.56}, {"gain", 0.1195}};
  row.compared = {{"height", 1000, 1000}};
  experiment.rows.push_back(row);
  row.compared.clear();
  row.config = {{"model", std::string("mlp")}, {"n", std::int64_t{7}}};
  row.measured_bytes = 1'049'600;
  row.remainder = {{"padding", 48'000}};
  row.numbers = {{"ms", std::numeric_limits<double>::quiet_NaN()}};
  experiment.rows.push_back(row);
  row.measured_bytes.reset();
  row.theory_bytes.reset();
  row.remainder.clear();
  row.numbers.clear();
  row.lacks = "a disk";
  experiment.rows.push_back(row);
  return experiment;
}

Report report_of(const Experiment& experiment) {
  Report report;
  report.environment = {
      .version = "0.1.0", .device = "cpu", .cpu = "x", .threads = 2, .date = "2025-11-20", .details = {}};
  report.experiments = {experiment};
  return report;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

}  // namespace

TEST_CASE("report: rows are compared and counted", "[report]") {
  const Experiment experiment = small_experiment();
  CHECK(match(experiment.rows[0]) == Match::equal);
  CHECK(match(experiment.rows[1]) == Match::different);
  CHECK(match(experiment.rows[2]) == Match::unknown);
  CHECK(unnamed_bytes(experiment.rows[0]) == 0);
  CHECK(unnamed_bytes(experiment.rows[1]) == 576);
  CHECK_FALSE(unnamed_bytes(experiment.rows[2]).has_value());
  const Tally counts = tally(report_of(experiment));
  CHECK(counts.rows == 3);
  CHECK(counts.compared == 2);
  CHECK(counts.equal == 1);
  CHECK(counts.with_theory == 2);
  CHECK(counts.named == 1);
}

TEST_CASE("report: the terminal table is aligned", "[report]") {
  const Experiment experiment = small_experiment();
  const std::string table = to_table(experiment);
  CHECK(occurrences(table, "1.00 MiB (1,048,576)") == 4);
  CHECK(occurrences(table, "\xE2\x9C\x93") == 2);  // the heading and the only equal row
  std::set<std::size_t> widths;
  std::size_t begin = 0;
  for (std::size_t end; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
    widths.insert(display_width(table.substr(begin, end - begin)));
  }
  CHECK(widths.size() == 1);  // every line is as wide as the rule
  CHECK(table.find("mlp, \"wide\"  100,000   0.1  ") != std::string::npos);
  CHECK(table.find("mlp                7     \xE2\x80\x93  ") != std::string::npos);
  CHECK(table.find(" +1,024  ") != std::string::npos);
  CHECK(table.find("1,234.6 ms           11.95 %\n") != std::string::npos);
  CHECK(table.find("not a number") != std::string::npos);

  Experiment bare;
  bare.name = "bare";
  CHECK(to_table(bare) == "\n\n");
  bare.rows.resize(1);
  bare.rows[0].config = {{"n", std::int64_t{-12'345}}};
  bare.rows[0].predicted_bytes = bare.rows[0].measured_bytes = -5;  // the table omits columns without values
  const std::string r = "\xE2\x94\x80", mark = "\xE2\x9C\x93";
  const std::string three = r + r + r, seven = three + three + r, nine = three + three + three;
  CHECK(to_table(bare) == "      n  predicted   measured  " + mark + "\n" + seven + "  " + nine + "  " + nine + "  " +
                              r + "\n-12,345  -5 B (-5)  -5 B (-5)  " + mark + "\n");
}

TEST_CASE("report: the process stands beside its promise", "[report]") {
  Experiment experiment = small_experiment();
  experiment.rows[0].process_peak_bytes = 2'000'000;
  experiment.rows[0].process_promise_bytes = 2'097'152;
  experiment.rows[1].measured_bytes = experiment.rows[1].predicted_bytes;
  experiment.rows[1].compared = {{"height", 7, 8}};
  const std::string table = to_table(experiment);
  CHECK(table.find("  process  ") != std::string::npos);
  CHECK(table.find("  promised  ") != std::string::npos);
  CHECK(table.find("\xE2\x80\x93 nothing ran") != std::string::npos);
  CHECK(table.find("1.91 MiB (2,000,000)  2.00 MiB (2,097,152)") != std::string::npos);
  CHECK(table.find("height") != std::string::npos);  // a differing figure shows, though the peaks are equal
  CHECK(write_csv(experiment).find(",1048576,1048576,2000000,2097152,48000,") != std::string::npos);
  const auto row = nlohmann::json::parse(write_json(report_of(experiment)))["experiments"][0]["rows"][0];
  CHECK(row["process_peak_bytes"] == 2'000'000);
  CHECK(row["process_promise_bytes"] == 2'097'152);
  const std::string html = write_html(report_of(experiment));
  CHECK(html.find("promised") != std::string::npos);
  CHECK(html.find("nothing ran") != std::string::npos);
  CHECK(markup::problem(html).empty());
  experiment.rows[1].no_process = "no <kernel>";
  CHECK(to_table(experiment).find("\xE2\x80\x93 no <kernel>") != std::string::npos);
  CHECK(write_html(report_of(experiment)).find("no &lt;kernel&gt;") != std::string::npos);
  CHECK(nlohmann::json::parse(write_json(report_of(experiment)))["experiments"][0]["rows"][1]["no_process"] ==
        "no <kernel>");
}

TEST_CASE("report: CSV keeps every value", "[report]") {
  CHECK(write_csv(small_experiment()) ==
        "model,n,rate,theory_bytes,predicted_bytes,measured_bytes,process_peak_bytes,"
        "process_promise_bytes,remainder: padding,remainder: labels,ms,gain\n"
        "\"mlp, \"\"wide\"\"\",100000,0.1,1000000,1048576,1048576,,,48000,576,1234.56,0.1195\n"
        "mlp,7,,1000000,1048576,1049600,,,48000,,nan,\n"
        "mlp,7,,,1048576,,,,,,,\n");
}

TEST_CASE("report: a line break in a setting stays in its field", "[report]") {
  Experiment experiment;
  experiment.name = "lines";
  Row row;
  row.config = {{"a", std::string("x\ny")}, {"b", std::string("x\ry")}, {"c", std::string("x y")}};
  row.process_peak_bytes = row.process_promise_bytes = 5;
  experiment.rows.push_back(row);
  CHECK(write_csv(experiment).find("\n\"x\ny\",\"x\ry\",x y,") != std::string::npos);
  CHECK(tally(report_of(experiment)).within == 1);  // exactly its promise
}

TEST_CASE("report: results.json has the keys that scripts depend on", "[report]") {
  const std::string text = write_json(report_of(small_experiment()));
  const auto json = nlohmann::json::parse(text);
  CHECK(json["environment"] ==
        nlohmann::json::parse(R"({"version":"0.1.0","device":"cpu","cpu":"x","threads":2,"date":"2025-11-20"})"));
  REQUIRE(json["experiments"].size() == 1);
  const auto& experiment = json["experiments"][0];
  CHECK(experiment["name"] == "small");
  CHECK(experiment["title"] == "Small");
  CHECK(experiment["question"] == "Does it fit?");
  CHECK(experiment["theory"] == "4 n<sup>2</sup>");
  CHECK(experiment["verdict"] == "Mostly.");
  REQUIRE(experiment["rows"].size() == 3);
  CHECK(experiment["rows"][0] ==
        nlohmann::json::parse(
            R"({"config":{"model":"mlp, \"wide\"","n":100000,"rate":0.1},"theory_bytes":1000000,
    "predicted_bytes":1048576,"measured_bytes":1048576,"process_peak_bytes":null,"process_promise_bytes":null,
    "compared":{"height":{"predicted":1000,"measured":1000}},"remainder":{"padding":48000,"labels":576},"ms":1234.56,"gain":0.1195})"));
  CHECK(experiment["rows"][0]["config"]["n"].is_number_integer());
  CHECK(experiment["rows"][2] == nlohmann::json::parse(R"({"config":{"model":"mlp","n":7},"theory_bytes":null,
    "predicted_bytes":1048576,"measured_bytes":null,"process_peak_bytes":null,"process_promise_bytes":null,
    "no_process":"nothing ran","lacks":"a disk","remainder":{},"ms":null,"gain":null})"));
  CHECK(experiment["rows"][1]["ms"].is_null());                    // JSON has no NaN
  CHECK(text.find("\"config\"") < text.find("\"theory_bytes\""));  // keys keep the reader's order
  CHECK(text.back() == '\n');
}

TEST_CASE("report: the page is whole by itself", "[report]") {
  const std::string html = write_html(report_sample::sample_report());
  CHECK(markup::problem(html).empty());
  CHECK(html.rfind("<!DOCTYPE html>", 0) == 0);
  CHECK(html.size() < 400'000);
  for (const char* outside : {"src=", "@import", "url(", "<link", "fetch(", "https://"}) {
    INFO(outside);
    CHECK(html.find(outside) == std::string::npos);
  }
  // The only addresses are XML namespaces.
  CHECK(occurrences(html, "http://") == occurrences(html, "http://www.w3.org/2000/svg"));
  std::set<std::string> ids;
  for (std::size_t at = 0; (at = html.find(" id=\"", at)) != std::string::npos; ++at) {
    CHECK(ids.insert(markup::attribute(std::string_view(html).substr(at), "id")).second);  // unique
  }
  for (std::size_t at = 0; (at = html.find(" href=\"#", at)) != std::string::npos; ++at) {
    CHECK(ids.count(markup::attribute(std::string_view(html).substr(at), "href").substr(1)) == 1);
  }
  for (const char* part :
       {"29 of 31", "32 of 32", "prefers-color-scheme:dark", "@media print", "+64", "2025-11-20", "<nav",
        "In all rows: ", "predicted<br>", "resnet50.layer3.19.conv3", "AMD EPYC 9R14",
        "<td><a href=\"#gpt-layer\">GPT: bytes of one layer</a></td>", "</u> <span class=\"good\">"}) {
    INFO(part);
    CHECK(html.find(part) != std::string::npos);
  }
  CHECK(occurrences(html, "<figure") == 5);
  CHECK(occurrences(html, "\xE2\x9C\x93 equal") == 45);  // 29 measured, 16 theories without remainder
  CHECK(html == write_html(report_sample::sample_report()));
}

TEST_CASE("report: the page says what was found", "[report]") {
  struct Case {
    std::function<void(Experiment&)> change;
    const char* sentence;
    const char* mark;  // all marks are this
  };
  const std::vector<Case> cases = {
      {[](Experiment&) {}, "In 1 of the 2 configurations that were run", "alarm"},
      {[](Experiment& e) { e.rows[1].measured_bytes = e.rows[1].predicted_bytes; },
       "In every one of the 2 configurations", "good"},
      {[](Experiment& e) { e.rows.resize(1); }, "In the one configuration that was run", "good"},
      {[](Experiment& e) { e.rows.erase(e.rows.begin(), e.rows.begin() + 2); }, "nothing to compare yet", "muted"},
      {[](Experiment& e) { e.rows.clear(); }, "there is nothing to compare yet", "muted"},
  };
  for (const Case& one : cases) {
    Experiment experiment = small_experiment();
    one.change(experiment);
    const std::string html = write_html(report_of(experiment));
    INFO(one.sentence);
    CHECK(html.find(one.sentence) != std::string::npos);
    const std::size_t marks = occurrences(html, "<span class=\"mark ");
    CHECK(marks > 0);
    CHECK(occurrences(html, std::string("<span class=\"mark ") + one.mark + "\">") == marks);
    CHECK(markup::problem(html).empty());
  }
  const std::string html = write_html(report_of(small_experiment()));
  CHECK(html.find("<b>+576</b> not named") != std::string::npos);
  CHECK(html.find("<b>+48,000</b> padding") != std::string::npos);
  CHECK(html.find("+1,024</span><small>+0.10 %</small>") != std::string::npos);
  CHECK(html.find("4 n<sup>2</sup>") != std::string::npos);
  CHECK(write_html(Report{}).find("nothing to compare yet") != std::string::npos);
}

TEST_CASE("report: hostile text stays text", "[report]") {
  const std::string hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&";
  Experiment experiment = report_sample::timeline_experiment();
  experiment.title = experiment.question = experiment.theory = experiment.verdict = hostile;
  experiment.rows[0].config = {{hostile, hostile}};
  experiment.rows[0].theory_bytes = 1;
  experiment.rows[0].remainder = {{hostile, 1}};
  experiment.columns = {{hostile + "2", hostile, Unit::plain, 0}};
  experiment.timelines[0].title = experiment.timelines[0].caption = hostile;
  for (Event& event : experiment.timelines[0].events) event.path = hostile;
  Report report = report_of(experiment);
  report.title = report.environment.cpu = report.environment.device = hostile;
  report.environment.details = {{hostile, hostile}};
  const std::string html = write_html(report);
  CHECK(html.find("<script>alert") == std::string::npos);
  CHECK(html.find("<img") == std::string::npos);
  CHECK(markup::problem(html).empty());
  CHECK(nlohmann::json::parse(write_json(report))["experiments"][0]["title"] == hostile);

  struct Case {
    const char* text;
    const char* html;
  };
  const std::vector<Case> cases = {{"s<sub>i</sub> < 2<sup>n</sup>", "s<sub>i</sub> &lt; 2<sup>n</sup>"},
                                   {"a<br>b<br/>", "a<br>b&lt;br/&gt;"},
                                   {"<i onclick=x>y", "&lt;i onclick=x&gt;y"},
                                   {"<I>y</I>", "&lt;I&gt;y&lt;/I&gt;"},
                                   {"a & b \xCE\xA3", "a &amp; b \xCE\xA3"}};
  for (const Case& one : cases) CHECK(escape_except_simple_tags(one.text) == one.html);
  CHECK(escape_markup(std::string("a\x01\0b", 4)) ==
        "a\xEF\xBF\xBD\xEF\xBF\xBD"
        "b");
}

TEST_CASE("report: bytes that are no UTF-8 are replaced in results.json", "[report]") {
  Report report = report_of(small_experiment());
  report.environment.cpu = "a\xC3(";
  CHECK(nlohmann::json::parse(write_json(report))["environment"]["cpu"] == "a\xEF\xBF\xBD(");
}

TEST_CASE("report: numbers are written the same everywhere", "[report]") {
  struct Case {
    std::string got, want;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Case> cases = {
      {format_fixed(1234567.891, 2), "1,234,567.89"},
      {format_most_percent(0.0121), "1.3 %"},
      {format_most_percent(0.012), "1.2 %"},
      {format_fixed(-1234.5, 0), "-1,234"},
      {format_fixed(-0.001, 2), "0.00"},
      {format_fixed(999.999, 2), "1,000.00"},
      {format_trimmed(1500.50, 3), "1,500.5"},
      {format_trimmed(20, 3), "20"},
      {thimble::format_real(0.1), "0.1"},
      {thimble::format_real(1e300), "1e+300"},
      {thimble::format_real(-std::numeric_limits<double>::quiet_NaN()), "nan"},
      {thimble::format_real(-std::numeric_limits<double>::infinity()), "-inf"},
      {format_quantity(0.1195, Unit::percent, 2), "11.95 %"},
      {format_quantity(5.358e9, Unit::bytes, 0), "4.99 GiB"},
      {format_quantity(1e300, Unit::bytes, 0), "1e+300 B"},
      {format_quantity(nan, Unit::milliseconds, 2), "not a number"},
      {format_exact(5.358e9, Unit::bytes), "5,358,000,000 bytes (4.99 GiB)"},
      {format_exact(1, Unit::bytes), "1 byte (1 B)"},
      {format_exact(0.1195, Unit::percent), "11.95 %"},
      {format_exact(0.123456789, Unit::percent), "12.345679 %"},
      {signed_bytes(0), "0"},
      {signed_bytes(1234), "+1,234"},
      {signed_bytes(-1),
       "\xE2\x88\x92"
       "1"},
      {format_exact(12.5, Unit::milliseconds), "12.5 ms"},
  };
  for (const Case& one : cases) CHECK(one.got == one.want);
}

TEST_CASE("report: what cannot be written faithfully is refused", "[report]") {
  struct Case {
    std::function<void(Report&)> change;
    const char* why;
  };
  const std::vector<Case> cases = {
      {[](Report& r) { r.experiments[0].name = "../etc"; }, "is not a name"},
      {[](Report& r) { r.experiments[0].name = ""; }, "is not a name"},
      {[](Report& r) { r.experiments[0].name = "Small"; }, "is not a name"},
      {[](Report& r) { r.experiments.push_back(r.experiments[0]); }, "\"small\" appears twice"},
      {[](Report& r) { r.experiments[0].columns[0].name = "config"; }, "cannot be called \"config\""},
      {[](Report& r) { r.experiments[0].columns[1].name = "ms"; }, "\"ms\" appears twice"},
      {[](Report& r) { r.experiments[0].columns[1].decimals = 400; }, "decimals must be 0 to 15, got 400"},
      {[](Report& r) { r.experiments[0].rows[0].numbers[0].first = "s"; }, "row 0: the number \"s\" has no column"},
      {[](Report& r) { r.experiments[0].rows[1].config[1].first = "model"; },
       "row 1: the setting \"model\" appears twice"},
      {[](Report& r) { r.experiments[0].rows[1].config[1].first = "ms"; }, "which is a column"},
      {[](Report& r) { r.experiments[0].rows[0].remainder[1].first = "padding"; }, "\"padding\" appears twice"},
      {[](Report& r) {
         r.environment.details = {{"cpu", "y"}};
       },
       "\"cpu\" appears twice"},
      {[](Report& r) {
         r.experiments[0].plots = {Plot{.name = "a b", .title = "", .caption = "", .x = {}, .y = {}, .series = {}}};
       },
       "\"a b\" is not a name"},
  };
  for (const Case& one : cases) {
    Report report = report_of(small_experiment());
    one.change(report);
    INFO(one.why);
    for (const auto& writer :
         std::vector<std::function<void()>>{[&] { write_json(report); }, [&] { write_html(report); }}) {
      std::string message = "no ValueError";
      try {
        writer();
      } catch (const thimble::ValueError& error) {
        message = error.what();
      }
      INFO(message);
      CHECK(message.find(one.why) != std::string::npos);
    }
  }
}

TEST_CASE("report: a folder receives every file", "[report]") {
  std::string pattern = (fs::temp_directory_path() / "thimble-report-XXXXXX").string();
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  const fs::path folder = fs::path(pattern) / "deep" / "report";
  const Report report = report_sample::sample_report();
  for (int time = 0; time < 2; ++time) {  // the second run replaces the first
    const std::vector<std::string> paths = write_report(report, folder.string());
    std::set<std::string> names, found;
    for (const std::string& path : paths) names.insert(fs::path(path).filename().string());
    for (const auto& entry : fs::directory_iterator(folder)) found.insert(entry.path().filename().string());
    CHECK(paths[0] == (folder / "report.html").string());
    CHECK(names == std::set<std::string>{"report.html", "results.json", "resnet-batch.csv", "resnet-batch-batch.svg",
                                         "gpt-layer.csv", "gpt-layer-sequence.svg", "gpt-layer-step.svg",
                                         "timeline.csv", "timeline-step.svg", "budget.csv", "budget-frontier.svg"});
    CHECK(found == names);
    CHECK(files_test::read_text_file(folder / "results.json") == write_json(report));
    CHECK(files_test::read_text_file(folder / "report.html") == write_html(report));
  }
  Report bad = report;
  bad.experiments[3].name = "not a name";
  CHECK_THROWS_AS(write_report(bad, (fs::path(pattern) / "never").string()), thimble::ValueError);
  CHECK_FALSE(fs::exists(fs::path(pattern) / "never"));
  CHECK_THROWS_AS(write_report(report, (folder / "report.html").string()), thimble::FileError);
  fs::remove_all(pattern);
}
