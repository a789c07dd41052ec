// thimble train: trains a model in exactly the bytes that the dry run predicted.

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/live.h>
#include <thimble/bench/commands/packing_report.h>
#include <thimble/bench/commands/plan_output.h>
#include <thimble/bench/commands/ranks.h>
#include <thimble/bench/commands/signals.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/files/printable.h>
#include <thimble/dist/mpi.h>
#include <thimble/memory/summary.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/training.h>

namespace thimble::bench {
namespace {

constexpr double any = 1.7976931348623157e308;  // the largest double
constexpr std::int64_t most_steps = 1'000'000'000;

std::string time_text(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  char text[32];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  return text;
}

/// A line rewritten in place on a terminal; elsewhere about ten lines per run.
class ProgressLine {
 public:
  explicit ProgressLine(std::int64_t steps, std::int64_t first_step)
      : is_terminal_(isatty(STDERR_FILENO) != 0),
        steps_(steps),
        every_(std::max<std::int64_t>(1, (steps - first_step) / 10)) {}

  /// From here on draws the run's memory below the line.
  void watch(const memory::Stack& stack, std::size_t budget_bytes) { live_.emplace(stderr, stack, budget_bytes); }
  /// Prints a line that stays.
  void say(const std::string& text) {
    if (live_) return live_->print(text, true);
    std::fprintf(stderr, "%s%s\n", is_terminal_ ? "\r\033[K" : "", text.c_str());
    std::fflush(stderr);
  }

  /// Erases the picture; the lines stay.
  void end_watch() { live_.reset(); }

  void show(const nn::Progress& p) {
    const bool is_last = p.step == steps_;
    if (!is_terminal_ && !is_last && p.step % every_ != 0 && !p.evaluation) return;
    const bool stays = !is_terminal_ || is_last || p.evaluation;
    if (live_) return live_->print(text(p, steps_), stays);
    std::fprintf(stderr, "%s%s%s", is_terminal_ ? "\r\033[K" : "", text(p, steps_).c_str(), stays ? "\n" : "");
    std::fflush(stderr);
  }

 private:
  static std::string text(const nn::Progress& p, std::int64_t steps) {
    char start[200], end[80] = "", accuracy[40] = "";
    std::snprintf(start, sizeof start, "step %lld/%lld  loss %.4f  rate %.3g  now %s  peak %s  %.0f items/s  left %s",
                  static_cast<long long>(p.step), static_cast<long long>(steps), p.loss, p.rate,
                  format_bytes(p.bytes).c_str(), format_bytes(p.peak_bytes).c_str(), p.items_per_s,
                  time_text(p.seconds_left).c_str());
    if (p.evaluation) std::snprintf(end, sizeof end, "  validation loss %.4f", p.evaluation->loss);
    if (p.evaluation && p.evaluation->accuracy) {
      std::snprintf(accuracy, sizeof accuracy, "  accuracy %.4f", *p.evaluation->accuracy);
    }
    return std::string(start) + end + accuracy;
  }

  bool is_terminal_;
  std::int64_t steps_, every_;
  std::optional<LiveView> live_;
};

void add_optimizer_flags(CLI::App& command, const std::shared_ptr<models::RunOptions>& options) {
  models::RunOptions& o = *options;
  add_number(command, "--lr", o.setup.optimizer.rate, 0, any,
             "Learning rate (sgd 0.1; momentum 0.1, mlp and vit 0.01, sharedconv 0.03; adafactor 0.03; others 1e-3, "
             "text 3e-3 (128 / width)^0.75)");
  command
      .add_option_function<std::string>(
          "--schedule", [options](const std::string& text) { options->schedule = text; },
          "Schedule of the rate: constant, cosine, or step: x 0.1 at every third of the steps (cosine)")
      ->type_name("NAME");
  o.schedule = "cosine";
  o.warmup = -1;  // filled in once the number of steps is known
  add_integer(command, "--warmup", o.warmup, 0, most_steps, "Steps of linear warmup (a tenth of --steps)");
  add_number(command, "--min-lr", o.min_rate, 0, any, "Lowest learning rate of a schedule (0)");
  add_number(command, "--weight-decay", o.setup.optimizer.weight_decay, 0, any,
             "Weight decay (sgd, momentum, adam, adafactor: 0, others 0.1)");
  add_number(command, "--beta2", o.setup.optimizer.beta2, 0, 0.9999999,
             "Decay of the second moment (adam, adam8: 0.999, others 0.99)");
  add_number(command, "--dropout", o.setup.sizes.dropout, 0, 0.99, "Dropout of text models (the model's own)");
}

}  // namespace

void add_training_flags(CLI::App& command, const std::shared_ptr<models::RunOptions>& options) {
  models::RunOptions& o = *options;
  add_setup_flags(command, std::shared_ptr<models::Setup>(options, &options->setup));
  add_optimizer_flags(command, options);
  command.add_option("--data", o.data, "Training data: a text, token or image file, a folder of them, or 'synthetic'")
      ->type_name("PATH");
  command
      .add_option_function<std::string>(
          "--device", [options](const std::string& text) { options->device = parse_device_flag("--device", text); },
          "cpu, cuda or cuda:N (cpu)")
      ->type_name("DEVICE");
  command.add_flag("--tf32", o.allows_tf32, "CUDA: compute f32 products, convolutions and attention in TF32");
  add_size(command, "--budget", o.budget_bytes, "Bytes that the arena may commit in training (no limit)");
  add_size(command, "--process-budget", o.process_budget_bytes,
           "Bytes that the whole process may hold: arena, code, heap, threads, data (no limit)");
  add_technique_flags(command, std::shared_ptr<models::Setup>(options, &options->setup), {models::FlagSet::plans});
  add_cost_flags(command, std::shared_ptr<models::CostOptions>(options, &options->costs));
  command.add_option("--plan", o.plan, "Plan to follow, from 'thimble plan --save'")->type_name("FILE");
}

namespace {

void add_run_flags(CLI::App& command, const std::shared_ptr<models::RunOptions>& options) {
  models::RunOptions& o = *options;
  add_training_flags(command, options);
  add_technique_flags(command, std::shared_ptr<models::Setup>(options, &options->setup), {models::FlagSet::ranks});
  command.get_option("--data")->required();
  add_integer(command, "--steps", o.steps, 1, most_steps, "Steps in total, including those of a resumed run (100)");
  command.add_flag("--strict", o.is_strict, "End the run at a step that leaves its plan, instead of counting it");
  command.add_flag("--cuda-graph", o.captures_steps,
                   "CUDA: capture a step as a graph and replay it, with the same bits");
  add_integer(command, "--eval-every", o.eval_every, 0, most_steps,
              "Steps between evaluations; 0: only at the end (0)");
  add_integer(command, "--eval-batches", o.eval_batches, 0, most_steps, "Batches of an evaluation; 0: all (16)");
  add_integer(command, "--sample", o.sample, 0, 1'000'000, "Tokens that a text model writes at the end (0)");
  command.add_option("--save", o.save, "Checkpoint to write at the end")->type_name("FILE");
  add_integer(command, "--save-every", o.save_every, 0, most_steps,
              "Steps between checkpoints; 0: only at the end (0)");
  add_integer(command, "--keep", o.keep, 1, 1'000'000,
              "Checkpoints to keep: the newest, and older ones as SAVE.step-K (1)");
  command.add_option("--save-weights", o.save_weights, "File to write at the end: the parameters in safetensors")
      ->type_name("FILE");
  command.add_option("--save-adapters", o.save_adapters, "With --lora or --adapters: PEFT folder to write at the end")
      ->type_name("FOLDER");
  command.add_option("--resume", o.resume, "Checkpoint to continue from")->type_name("FILE");
  command.add_option("--log", o.log, "Folder for TensorBoard event files")->type_name("FOLDER");
  add_overwrite_flag(command, o.overwrites);
}

/// Warns before the first step about settings that differ from the requested ones or from the resumed run's.
void say_before(models::Engine& engine) {
  if (const std::string warning = precision_warning(engine.options().setup); !warning.empty()) {
    std::fprintf(stderr, "thimble: %s\n", with_flags(warning).c_str());
  }
  if (const auto fp8 = fp8_layers(engine.options().setup, engine.options().device); fp8 && !fp8->fallbacks.empty()) {
    std::fprintf(stderr, "%s", to_lines(*fp8).c_str());
  }
  if (!engine.recipe_change().empty()) {
    std::fprintf(stderr, "thimble: --resume: the recipe is another: %s\n",
                 printable(with_flags(engine.recipe_change())).c_str());
  }
  if (!engine.plan().is_steady) {
    std::fprintf(stderr, "thimble: the arena had not settled after eight dry steps: later ones may need more\n");
  }
}

/// Output besides the run's progress lines.
struct Printed {
  bool as_json, live, gradients;
  std::string trace;  // file
};

/// Writes the ranks' transfers and prints their overlap. Returns false, after an error message, if writing fails.
bool write_trace(const std::vector<RankTransfers>& transfers, const std::string& path, ProgressLine& line) {
  for (std::size_t r = 0; r < transfers.size(); ++r) {
    const Overlap overlap = overlap_of(transfers[r]);
    char text[128];
    std::snprintf(text, sizeof text,
                  "thimble: --trace: rank %zu had something on its way for %.3f s, and waited %.3f s", r,
                  overlap.on_its_way, overlap.waited);
    line.say(text);
  }
  try {
    write_output(path, write_transfers(transfers));
    return true;
  } catch (const FileError& error) {
    line.say("thimble: --trace: " + printable(error.what()));
    return false;
  }
}

/// Trains on one rank; only rank 0 prints. Returns the exit status.
int run_rank(models::RunOptions options, const Printed& printed, dist::Communicator* ranks, RankFailure& failure) {
  options.ranks = ranks;
  if (ranks != nullptr) options.setup.layout.rank = ranks->rank();
  const bool prints = options.setup.layout.rank == 0;
  std::optional<models::Engine> made;
  {
    const PlanningLine planning;
    if (prints) options.progress = [&planning](const std::string& text) { planning.show(text); };
    if (prints) options.other_outputs = {{"--trace", printed.trace, &file_kinds::trace}};
    const std::string traced = printed.trace.empty() ? "not given" : "given";  // tracing is collective
    if (!all_succeed(ranks, failure, [&] { made.emplace(options); })) return 0;
    if (!all_succeed(ranks, failure, [&] { made->require_alike({{"--trace", traced}}); })) return 0;
    if (!all_succeed(ranks, failure, [&] { made->plan(); })) return 0;
  }
  models::Engine& engine = *made;
  if (prints) say_before(engine);
  TrainExtra extra{engine.plan().packed, {}, {}, {}};
  memory::Stack resources;  // the run's
  ProgressLine line(engine.options().steps, engine.first_step());
  std::optional<StopSignals> signals;
  nn::TrainControl control;
  if (prints || dist::find_launch()) {  // one per process
    signals.emplace();
    control.wish = [&signals] { return signals->wish(); };
  }
  if (prints) control.say = [&line](const std::string& text) { line.say("thimble: " + printable(text)); };
  const auto show = [&](const nn::Progress& progress) {
    if (prints) line.show(progress);
  };
  RankTransfers transfers;
  double moment = 0;
  if (!printed.trace.empty()) {
    moment = shared_moment(*ranks);
    ranks->record(&transfers);
  }
  const models::TrainReport report = engine.run(
      show,
      [&](const memory::Stack& stack) {
        resources = stack;
        if (printed.live && prints) line.watch(stack, engine.options().budget_bytes);
      },
      control);
  line.end_watch();
  bool is_traced = true;
  if (!printed.trace.empty()) {
    ranks->record(nullptr);
    const auto all = gather_transfers(*ranks, std::move(transfers), moment);
    if (prints) is_traced = write_trace(all, printed.trace, line);
  }
  if (report.end == nn::TrainEnd::stopped) {
    const int number = signals && signals->stop_signal() != 0 ? signals->stop_signal() : SIGTERM;
    if (prints) line.say("thimble: " + signal_name(number) + ": " + printable(report.end_text));
    return 128 + number;
  }
  if (engine.options().log.empty()) {
    extra.committed = memory::committed_at_peak(resources);
    extra.by_category = resources.ledger->peak_by_category();
  }
  resources = {};
  const bool is_complete = report.end == nn::TrainEnd::complete;
  if (printed.gradients && is_complete)
    extra.gradients = engine.packing_gradients();  // after the run's figures are taken
  if (prints && printed.as_json) {
    print_train_json(engine.options(), extra, report);
  } else if (prints) {
    print_train_table(engine.options(), extra, report);
    if (extra.gradients) std::printf("%s", to_lines(*extra.gradients).c_str());
  }
  std::fflush(stdout);
  const auto say = [&](const std::string& text) {
    if (prints) line.say("thimble: " + text);
  };
  if (!report.is_finite()) {
    say(printable(is_complete ? "the last loss is not finite, and its step was skipped" : report.end_text));
    return not_finite_status;
  }
  if (const std::string differences = report.differences(); !differences.empty()) {
    say(differences + "; the requested files are written");
    return not_predicted_status;
  }
  if (!report.log_error.empty()) {
    say("--log: curves are missing: " + printable(report.log_error));
    return output_lost_status;
  }
  return is_traced ? 0 : output_lost_status;
}

}  // namespace

void add_train(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("train", "Train a model");
  const auto options = std::make_shared<models::RunOptions>();
  add_run_flags(*command, options);
  add_compute_flags(*command);
  const auto is_json = std::make_shared<bool>(false);
  command->add_flag("--json", *is_json, "Print JSON");
  const auto is_live = std::make_shared<bool>(false);
  command->add_flag("--show-memory", *is_live, "Draw the memory under the progress line, on a terminal");
  const auto trace = std::make_shared<std::string>();
  command->add_option("--trace", *trace, "With --ranks: when each rank sent, computed and waited, for Perfetto")
      ->type_name("FILE");
  const auto wants_gradients = std::make_shared<bool>(false);
  command->add_flag("--gradient-report", *wants_gradients,
                    "With --allow-lossy: how far packing turns the gradients of the first batch, by parameter");
  command->callback([command, options, is_json, is_live, trace, wants_gradients] {
    if (*is_live && isatty(STDERR_FILENO) == 0) {
      throw ValueError("--show-memory: expected a terminal on standard error, got a file or a pipe");
    }
    const models::Setup& setup = options->setup;
    const bool has_plan = options->budget_bytes > 0 || options->process_budget_bytes > 0 || !options->plan.empty();
    const bool is_for_plans =
        !setup.offload.to.empty() && !setup.offload.optimizer && !setup.offload.parameters && !setup.offload.gradients;
    if (!has_plan && (is_for_plans || setup.packing.is_allowed)) {
      throw ValueError(std::string(is_for_plans ? "--offload" : "--allow-lossy") +
                       ": expected a budget to plan for, got none; add --budget");
    }
    if (*wants_gradients && setup.layout.ranks > 1) {
      throw ValueError("--gradient-report: expected one rank, got --ranks " + std::to_string(setup.layout.ranks));
    }
    if (*wants_gradients && !setup.packing.is_allowed) {
      throw ValueError("--gradient-report: expected packed tensors, got none; add --budget and --allow-lossy");
    }
    if (options->warmup < 0) options->warmup = options->steps / 10;
    if (!dist::find_launch()) require_shared_batch(*command, setup);  // a launcher sets the number of ranks later
    const Printed printed{*is_json, *is_live, *wants_gradients, *trace};
    const int status = on_ranks(options->setup, options->device, [&](dist::Communicator* ranks, RankFailure& failure) {
      if (ranks == nullptr && !trace->empty()) {
        throw ValueError("--trace: expected several ranks, got one; add --ranks or start the program with mpirun");
      }
      return run_rank(*options, printed, ranks, failure);
    });
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace thimble::bench
