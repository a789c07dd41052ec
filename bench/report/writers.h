#pragma once
// An experiment as text: for a terminal, a spreadsheet, a script.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/bench/report/experiment.h>

namespace thimble::report {

/// The rows as an aligned table, one line each, numbers right-aligned: settings, theory, predicted, measured, a mark
/// (a check where predicted == measured, else the difference measured - predicted), the process or why there is none,
/// further columns. Columns without any value are left out. Ends with a newline; the first two lines are the headings
/// and a rule.
std::string to_table(const Experiment& experiment);

/// The rows as CSV (RFC 4180, "\n" line ends): settings, theory_bytes, predicted_bytes, measured_bytes,
/// process_peak_bytes, process_promise_bytes, a column
/// "remainder: NAME" per named term, further columns. Integers and reals without loss, absent values empty.
/// Throws ValueError as `check` does.
std::string write_csv(const Experiment& experiment);

/// results.json: {"title","environment":{"version","device","cpu","threads","date",...},"experiments":[{"name","title",
/// "question","theory","verdict","rows":[{"config":{...},"theory_bytes","predicted_bytes","measured_bytes",
/// "process_peak_bytes","process_promise_bytes","no_process","compared":{NAME:{"predicted","measured"}},"lacks",
/// "remainder":{NAME: bytes},COLUMN: number,...}]}]}. Absent values and numbers that are not finite are null; a column
/// appears in every row. Ends with a newline. Throws ValueError as `check` does.
std::string write_json(const Report& report);

/// report.html: one self-contained page with every experiment's figures and rows. Throws ValueError as `check` does.
std::string write_html(const Report& report);

/// Writes report.html, results.json, NAME.csv per experiment and NAME-FIGURE.svg per figure into `folder`, which is
/// made when missing; each file whole or not at all. Returns the paths, report.html first. Throws ValueError (before
/// anything is written) and FileError.
std::vector<std::string> write_report(const Report& report, const std::string& folder);

}  // namespace thimble::report
