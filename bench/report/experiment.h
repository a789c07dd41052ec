#pragma once
// The findings of an experiment, as plain data: the one input of every table, file, picture and page in this folder.
// All byte figures are exact integers; nothing here knows a tensor.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <thimble/bench/report/palette.h>
#include <thimble/core/tensor/resource.h>

namespace thimble::report {

/// The unit of a number decides how it is written: bytes in binary units, milliseconds, a fraction as percent
/// (0.1 is "10 %"), or a plain number.
enum class Unit : std::uint8_t { plain, bytes, milliseconds, percent };

/// Bytes by memory category, indexed by `Category`.
using CategoryBytes = std::array<std::int64_t, memory::category_count>;

/// Sum over the categories.
inline std::int64_t total(const CategoryBytes& bytes) noexcept {
  std::int64_t sum = 0;
  for (const std::int64_t part : bytes) sum += part;
  return sum;
}

/// The bytes of a ledger or a trace.
inline CategoryBytes report_bytes(const std::array<std::size_t, memory::category_count>& bytes) noexcept {
  CategoryBytes result{};
  for (std::size_t i = 0; i < bytes.size(); ++i) result[i] = static_cast<std::int64_t>(bytes[i]);
  return result;
}

/// One setting of a configuration: {"batch", 32}, {"model", "resnet50"}.
using Setting = std::pair<std::string, std::variant<std::string, std::int64_t, double>>;

/// A further numeric column of an experiment. `name` is its key in JSON and CSV, `title` its heading in tables.
struct Column {
  std::string name;
  std::string title;
  Unit unit = Unit::plain;
  int decimals = 2;  ///< digits after the point in tables (not for bytes; files hold the full value)
};

/// A figure of a run, predicted by a dry run: measured equal, or the row fails.
struct ComparedFigure {
  std::string name;
  std::int64_t predicted = 0, measured = 0;
};

/// One configuration with its three figures. Absent figures are null in JSON, empty in CSV, a dash in tables.
struct Row {
  std::vector<Setting> config;                                  ///< in the order shown
  std::optional<std::int64_t> theory_bytes;                     ///< the closed formula
  std::optional<std::int64_t> predicted_bytes;                  ///< the dry run
  std::optional<std::int64_t> measured_bytes;                   ///< the real run
  std::vector<std::pair<std::string, std::int64_t>> remainder;  ///< named terms of predicted - theory
  std::vector<std::pair<std::string, double>> numbers;          ///< by Column::name; a column may be absent
  std::vector<ComparedFigure> compared = {};                    ///< besides predicted and measured: height, load, ...
  /// Resident bytes of the process from the run's set-up on, as the kernel counts them, and their upper bound: the
  /// prediction and the bytes outside of the arena (memory/process/outside.h). Above the bound the row fails.
  std::optional<std::int64_t> process_peak_bytes = {}, process_promise_bytes = {};
  std::string no_process = {};  ///< why a measured row has none
  std::string lacks = {};       ///< a need of the measurement that this machine does not have
};

/// The bytes that every row may have: their heading in tables, and their key in JSON and CSV.
struct ByteFigure {
  const char *title, *key;
  std::optional<std::int64_t> Row::*bytes;
};
inline constexpr ByteFigure byte_figures[] = {{"theory", "theory_bytes", &Row::theory_bytes},
                                              {"predicted", "predicted_bytes", &Row::predicted_bytes},
                                              {"measured", "measured_bytes", &Row::measured_bytes},
                                              {"process", "process_peak_bytes", &Row::process_peak_bytes},
                                              {"promised", "process_promise_bytes", &Row::process_promise_bytes}};

/// How an axis is spaced. `log2` marks powers of two.
enum class Scale : std::uint8_t { linear, log2 };

struct Axis {
  std::string title;
  Unit unit = Unit::plain;
  Scale scale = Scale::linear;
  bool from_zero = true;  ///< linear only: the axis starts at 0 when no value is negative
};

/// The role of a series decides how it is drawn: theory as a dashed line, predicted as a line, measured as
/// open markers, anything else as a line with filled markers.
enum class Role : std::uint8_t { theory, predicted, measured, other };

struct Point {
  double x = 0;
  double y = 0;
  std::vector<std::pair<std::string, std::string>> details = {};  ///< told under the pointer: names and texts
};

/// A named curve. Series of one non-empty `group` ("resnet50") share a colour; otherwise each has its own, theory
/// without a group is drawn in the text colour.
struct Series {
  std::string name;
  Role role = Role::other;
  std::vector<Point> points;  ///< drawn in this order
  std::string group;
  bool is_staircase = false;  ///< its line keeps a point's y until the next point's x
};

/// A line or scatter plot. `name` becomes part of a file name, `caption` is a sentence below the picture. A budget is a
/// line at so many bytes of x.
struct Plot {
  std::string name;
  std::string title;
  std::string caption;
  Axis x;
  Axis y;
  std::vector<Series> series;
  std::optional<std::int64_t> budget_bytes = {};
};

/// A part of a bar: a category's bytes, or another amount.
struct BarPart {
  std::string name;
  std::int64_t amount = 0;
  Paint paint;
};
struct Bar {
  std::string label;
  std::vector<BarPart> parts;
  std::int64_t from = 0;  ///< where it begins
  std::string note = {};  ///< a few words behind its sum
};
/// The bytes of one configuration by category.
Bar category_bar(const std::string& label, const CategoryBytes& bytes);
/// Parts that add up: each a bar that begins where the one above ends, then the sum. A note per part, or none.
std::vector<Bar> stair(const std::vector<BarPart>& parts, const std::vector<std::string>& notes,
                       const std::string& total_name);

/// Stacked horizontal bars.
struct Bars {
  std::string name;
  std::string title;
  std::string caption;
  std::vector<Bar> bars;
  Unit unit = Unit::bytes;  ///< or plain
  bool is_exact = false;    ///< amounts have all digits, and are in the parts as well
};

/// Live bytes after one event (an allocation or a deallocation), and the module path that caused it ("" when unknown).
struct Event {
  CategoryBytes bytes{};
  std::string path;
};

/// Bytes by category over the events of a step. Timelines of one `step` zoom together.
struct Timeline {
  std::string name;
  std::string title;
  std::string caption;
  std::vector<Event> events;
  std::optional<std::int64_t> budget_bytes;
  std::vector<std::pair<std::string, std::int64_t>> bounds = {};  ///< at most two further lines, by name
  std::int64_t scale_bytes = 0;                                   ///< the axis goes at least as far
  std::string step = {};
  bool begins_before = false;  ///< event 0 is the state before the step
  std::string events_are = "allocation events";
};

/// One experiment. `name` is its key in results.json and the stem of its files: lower-case letters, digits, '-', '_'.
struct Experiment {
  std::string name;
  std::string title;
  std::string question;  ///< one sentence
  std::string theory;    ///< the formula; may hold <sub> <sup> <i> <b> <br> <code>, all else is shown as written
  std::string verdict;   ///< the finding, in a sentence or two
  std::vector<Column> columns;
  std::vector<Row> rows;
  std::vector<Plot> plots;
  std::vector<Bars> bars;
  std::vector<Timeline> timelines;
};

/// Where and when the figures were taken.
struct Environment {
  std::string version;  ///< of the library
  std::string device;   ///< "cpu", "cuda:0 (NVIDIA H200)"
  std::string cpu;      ///< the processor's name
  int threads = 0;
  std::string date;                                          ///< ISO 8601
  std::vector<std::pair<std::string, std::string>> details;  ///< compiler, instruction set, command line, ...
};

/// Everything a page shows.
struct Report {
  std::string title = "Thimble memory report";
  Environment environment;
  std::vector<Experiment> experiments;
};

/// How the measured bytes of a row compare with the predicted ones.
enum class Match : std::uint8_t { unknown, equal, different };

/// `equal` when all that can be compared is; `unknown` when nothing can.
Match match(const Row& row) noexcept;

/// predicted - theory - named remainder terms: 0 when every byte between theory and prediction has a name; nullopt when
/// theory or prediction is absent.
std::optional<std::int64_t> unnamed_bytes(const Row& row) noexcept;

/// Why there is no peak of the process: no_process, or that nothing ran. Empty if there is one or no reason is known.
std::string process_absence(const Row& row);

/// measured - predicted of a row where they differ; empty where another figure does, which is `different_figure`.
std::optional<std::int64_t> difference(const Row& row) noexcept;
/// The first compared figure that differs; empty if there is none.
std::string different_figure(const Row& row);

/// The number of rows, of rows that can be compared, and of rows whose figures are all the same integers.
struct Tally {
  std::size_t rows = 0;
  std::size_t compared = 0;
  std::size_t equal = 0;
  std::size_t with_theory = 0;   ///< rows in which unnamed_bytes is known
  std::size_t named = 0;         ///< rows in which it is 0
  std::size_t ran = 0;           ///< rows that a real run was measured for
  std::size_t with_process = 0;  ///< rows in which process_peak_bytes is known
  std::size_t within = 0;        ///< rows in which it is within the promise
  std::size_t lacking = 0;       ///< rows that were not measured because the machine lacks something
  std::size_t empty = 0;         ///< experiments without a row
};

Tally tally(const Experiment& experiment) noexcept;
Tally tally(const Report& report) noexcept;

/// Whether there are rows, every measured figure is the predicted one, every byte between theory and prediction has a
/// name, and no process took more than was promised.
bool holds(const Tally& tally) noexcept;

/// Keys of the configurations in the order in which they first appear.
std::vector<std::string> config_keys(const Experiment& experiment);

/// Names of the remainder terms in the order in which they first appear.
std::vector<std::string> remainder_names(const Experiment& experiment);

/// The setting of `row` named `key`, or nullptr.
const Setting* find_setting(const Row& row, const std::string& key) noexcept;

/// The number of `row` in the column `name`, or nullopt.
std::optional<double> find_number(const Row& row, const std::string& name) noexcept;

/// Throws ValueError, naming the experiment and the part, when a report cannot be written faithfully: names that are
/// not file names or appear twice, a number without its column, a column named like a built-in key, negative bytes in a
/// picture, points that are not finite or not positive on a logarithmic axis.
void check(const Report& report);
void check(const Experiment& experiment);
void check(const Plot& plot);
void check(const Bars& bars);
void check(const Timeline& timeline);

}  // namespace thimble::report
