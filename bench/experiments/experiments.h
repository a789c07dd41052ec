#pragma once
// The memory-scaling experiments of `thimble reproduce`. Each is a table: the rows that are run, with theory,
// prediction (dry run) and measurement (real run) side by side, their columns, and plots of them. One runner fills all.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/bench/report/experiment.h>
#include <thimble/core/device.h>
#include <thimble/memory/process/outside.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/step/profile.h>

namespace thimble::bench {

// ---- Process memory of an experiment, measured and predicted, for whole runs and for parts of a step.

/// Process memory of a run or of a part of a step. A dry run fills in arena_bytes only.
struct ProcessBytes {
  std::size_t arena_bytes = 0;   ///< peak committed bytes of the arena
  memory::OutsideBytes outside;  ///< upper bound of the bytes outside the arena; zero on a GPU
  std::size_t peak_bytes = 0;    ///< peak resident bytes since the run was set up; 0 if unknown
};
ProcessBytes process_bytes(const nn::MemoryProfile& profile);
ProcessBytes process_bytes(const models::TrainReport& report);

/// Measures process memory while an experiment runs a part of a step by itself.
class PartWatch {
 public:
  /// Create it before the part's first tensor. Bytes of other arenas count as outside.
  explicit PartWatch(memory::Device device);
  /// The memory of a part that ran in `arena` and recorded `nodes` nodes.
  ProcessBytes bytes(const memory::Arena& arena, std::size_t nodes) const;

 private:
  std::optional<memory::ProcessWatch> watch_;  // empty for a dry part and on a GPU
};

/// Adds the process's measured and predicted bytes to a row; the prediction is the arena's predicted peak plus the
/// bytes outside it. A row of several runs shows the run that came closest to its prediction. If nothing was measured,
/// the row gives the reason.
void add_process(report::Row& row, std::size_t predicted_bytes, const ProcessBytes& measured);

using report::Role;
using report::Scale;
using report::Unit;

struct ExperimentOptions {
  memory::Device device = cpu;  ///< where the measured runs are
  bool is_quick = false;        ///< small sizes: minutes become seconds
  /// Largest predicted peak that is also measured; above it the measured column is empty.
  std::size_t most_measured_bytes = std::size_t{18} << 30;
  std::function<void(const std::string&)> progress = [](const std::string&) {};  ///< called before every run
};

/// The figures of a row (report::Row), given as numbers of any type. A missing figure is unknown.
struct Figures {
  std::optional<std::int64_t> theory = {}, predicted = {}, measured = {};
  std::vector<std::pair<std::string, std::int64_t>> remainder = {};
  std::vector<std::pair<std::string, double>> numbers = {};
  std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> compared = {};  ///< names, predicted and measured
  std::vector<std::pair<std::size_t, ProcessBytes>> processes = {};  ///< of its runs, each behind its predicted peak
  std::string no_process = {}, lacks = {};
};

/// The results of a dry and of a real run.
template <class T>
struct Both {
  T predicted, measured;
};

using Config = std::vector<report::Setting>;

/// The rows of an experiment while it runs.
class Rows {
 public:
  Rows(const ExperimentOptions& o, report::Experiment& e) : options(o), experiment(e) {}

  /// Calls the options' progress with the experiment's name and `text`.
  void say(const std::string& text) const { options.progress(experiment.name + ": " + text); }
  /// Appends a row; with `run`, its settings are the progress before it is run.
  report::Row& add(Config config, const Figures& figures);
  report::Row& add(Config config, const std::function<Figures()>& run);
  /// The results of `run(device)` on the dry device and on the real one.
  template <class Run>
  auto both(Run run) const -> Both<decltype(run(cpu))> {
    return {run(dry(options.device)), run(options.device)};
  }
  /// Sizes of the quick form, or of the full one.
  template <class T>
  T sizes(T quick, T full) const {
    return options.is_quick ? quick : full;
  }

  const ExperimentOptions& options;
  report::Experiment& experiment;
};

/// A plot of rows: for each name that `name` gives rows, each of `curves` draws its figure against `x`. `value` knows
/// both figures; an empty `x` counts the rows from 1. Leaves out rows without a name or a figure.
struct PlotOfRows {
  struct Curve {
    std::string y, suffix;
    Role role = Role::other;
  };
  report::Plot plot;  ///< without its series
  std::string x;
  std::vector<Curve> curves;
  std::function<std::optional<std::string>(const report::Row&)> name;
};

struct ExperimentTable {
  std::string name, title, question, theory;  ///< as report::Experiment has them
  std::vector<report::Column> columns;
  std::string (*run)(Rows& rows);  ///< adds the rows; returns the verdict
  std::vector<PlotOfRows> plots = {};
};

report::Experiment run_experiment(const ExperimentTable& table, const ExperimentOptions& options);

/// A number or a numeric setting of a row, "theory" (with the named remainder), "predicted" or "measured"; nullopt if
/// the row has none.
std::optional<double> value(const report::Row& row, const std::string& name);
/// As `value`, of a row that has it. Throws std::bad_optional_access.
double number(const report::Row& row, const std::string& name);
/// A setting of a row as text.
std::string setting(const report::Row& row, const std::string& name);

/// "3 of 5": rows for which `is_counted` holds.
std::string count_rows(const std::vector<report::Row>& rows, const std::function<bool(const report::Row&)>& is_counted);
/// Whether a row was measured as predicted. Its theory and named remainder are the prediction.
bool is_equal(const report::Row& row);
bool is_explained(const report::Row& row);
/// "In 3 of 5 rows theory and the named remainder give every predicted byte."
std::string explained_rows(const report::Experiment& experiment);
/// "predicted == measured in 12 of 12 runs"; with a formula: "theory == predicted in 3 of 3 rows that have a formula".
std::string equal_rows(const report::Experiment& experiment, const std::string& rows = "runs");
std::string equal_theory(const report::Experiment& experiment);

/// All of them, in the order of the report.
const std::vector<ExperimentTable>& all_experiments();

/// The chosen ones, in the order of the report. A name chooses the experiment of that name and all whose names begin
/// with it and a dash ("precision", "checkpoint"); no names, or "all", choose all. Throws ValueError, listing the
/// names, for one that chooses none.
std::vector<const ExperimentTable*> select_experiments(const std::vector<std::string>& names);

// Their runs, in the files of their topics.
std::string run_training(Rows&rows), run_resnet_batch(Rows&rows), run_resnet_branches(Rows&rows),
    run_gpt_layer(Rows&rows), run_gpt_curve(Rows&rows), run_step_peak(Rows&rows), run_prediction(Rows&rows),
    run_techniques(Rows&rows), run_known_schedules(Rows&rows), run_checkpoint_depth(Rows&rows),
    run_checkpoint_sequence(Rows&rows), run_checkpoint_batch(Rows&rows), run_accumulation(Rows&rows),
    run_sharing(Rows&rows), run_rules_of_thumb(Rows&rows), run_long_sequences(Rows&rows), run_llama(Rows&rows),
    run_overhead(Rows&rows), run_monet(Rows&rows), run_hiremate(Rows&rows), run_placement(Rows&rows),
    run_fragmentation(Rows&rows), run_distributed(Rows&rows), run_distributed_parts(Rows&rows),
    run_distributed_layouts(Rows&rows), run_distributed_activations(Rows&rows), run_distributed_zero(Rows&rows),
    run_eight_bits(Rows&rows), run_precision(Rows&rows), run_precision_bytes(Rows&rows), run_precision_state(Rows&rows),
    run_precision_encoder(Rows&rows), run_precision_int8(Rows&rows), run_precision_int8_bytes(Rows&rows);

// The figures behind the verdicts, for tests.

/// Rows of the experiment `techniques` with a technique, by itself or combined, and how many have all figures equal.
struct TechniqueCount {
  std::string name;
  std::size_t rows = 0, equal = 0;
};
/// By technique, in order of appearance. All budgets count as one technique, and so do all micro-batches. Only measured
/// rows count.
std::vector<TechniqueCount> count_by_technique(const std::vector<report::Row>& rows);

/// p where y grows as constant + x^p: log((y3 - y2) / (y2 - y1)) / log(x3 / x2) of the last three points, whose x are a
/// geometric sequence. 0 if y grows by equal amounts (a logarithm), nullopt if it does not grow. Throws ValueError for
/// fewer points or another sequence.
std::optional<double> growth_exponent(std::span<const report::Point> points);

/// The growth nearest to the exponent, "O(1)", "O(log layers)", "O(sqrt(layers))", "O(layers)" or "O(layers^2)", and
/// the exponent.
std::string growth_in_words(std::optional<double> exponent, const std::string& x);

/// A batch with and without checkpointing: live bytes at the peak of a step, and its time.
struct CheckpointedBatch {
  std::int64_t batch = 0;
  double plain_bytes = 0, checkpointed_bytes = 0;
  double plain_ms = 0, checkpointed_ms = 0;
};
/// The smallest batch at which checkpointing saves, the savings, their cost in time, and whether they begin at 16.
/// `batches` rise in size.
std::string checkpoint_batch_verdict(std::span<const CheckpointedBatch> batches);

/// A plan of GPT: its time, and the bytes its layers keep as fractions of two builds that keep everything.
struct CurvePoint {
  double of_textbook = 0, of_fused = 0;
  double time_overhead = 0;
};
/// The fewest bytes kept at +5 % time, and the time of keeping 85 % less than the textbook build.
std::string gpt_curve_verdict(std::span<const CurvePoint> curve);

// ---- How runs of experiments are set up, and their figures.

models::Setup setup_of(const std::string& model, std::int64_t batch, const models::ModelOptions& sizes = {},
                       const std::string& optimizer = {});

/// A transformer over tokens without dropout.
struct TextSizes {
  std::int64_t layers = 2, heads = 2, width = 64, sequence = 32, batch = 8;
};

/// Training of `model` on generated text or images: `steps` steps (`is_quick`: `quick_steps`) at a rate that rises for
/// a tenth of them and falls as a cosine.
models::RunOptions generated_training(const ExperimentOptions& options, const std::string& model,
                                      std::int64_t quick_steps, std::int64_t steps);
models::RunOptions text_training(const ExperimentOptions& options, const std::string& model, const TextSizes& sizes,
                                 std::int64_t quick_steps, std::int64_t steps);

/// Makes the run pack all saved tensors that it can (nn/fit/pack_rules.h) to `saved`; keeps them if it is empty.
void pack_saved(models::Engine& engine, const std::string& saved);

/// The plan of pack_saved for a run; one that keeps everything when `saved` is empty.
nn::Plan packing_plan(const nn::MakeRun& make, memory::Device device, const std::string& saved);

/// `make` whose runs follow the plan.
nn::MakeRun planned_run(const nn::MakeRun& make, const nn::Plan& plan);

/// Forward and backward of the mean of a convnet's outputs, with an update that has no state: "U-Net" on images of
/// 208 x 304, "MobileNet-V2", "DenseNet-121" or "VGG-16" on ones of 224 x 224.
nn::MakeRun run_of_net(const std::string& net, std::int64_t batch);

/// NaN if the run ended before its first evaluation.
double validation_loss(const models::TrainReport& result);

/// Predicted and measured peaks of a run, and its numbers "loss_last" and "validation_loss".
Figures training_figures(const models::TrainReport& result);

/// Trains on ranks that are threads; the report of rank 0.
models::TrainReport run_on_ranks(const models::RunOptions& options);

/// A budget that every rank can keep: the largest of the ranks' smallest budgets.
std::size_t least_budget(models::RunOptions options);

/// Sums over the ranks; each rank's bytes are compared as well.
Figures rank_figures(const models::TrainReport& result, std::int64_t steps);

/// A temporary folder that is removed with this.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// "+15.0", "-3.2".
std::string with_sign(double value, int decimals);

}  // namespace thimble::bench
