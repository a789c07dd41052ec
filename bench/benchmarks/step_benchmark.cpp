// Time and memory of a training step, and a profile by operator:
//
//   step_benchmark MODEL [--batch N ...] [--threads N] [--isa NAME] [--steps N] [--budget SIZE | --growth SIZE]
//                  [--cpu-dot U] [--clip X] [--profile]
//   step_benchmark MODEL [--batch N ...] --beside O1,bf16
//   step_benchmark MODEL [--batch N] [--seq N ...] --dry
//   step_benchmark MODEL [--batch N] [--seq N] [--dtype D] [--steps N] --generate
//
// Reports the best of many steps, because other work on the machine only adds time. Batches are random. `growth` is the
// growth of the process's resident bytes once the model is built (gradients, optimizer state, activations and the
// rest); `arena` is the arena's committed bytes, parameters included. `step_gflop` counts the products of the model,
// `gflops` divides it by the best time. `ceiling_gflops` is the f32 rate of an FMA loop in registers on the same number
// of threads, the better of two measurements before and after the steps; `share` is gflops over it. The share can
// exceed 1: Winograd's convolutions make fewer products than are counted, and bf16 products may beat the f32 ceiling.
//
// --beside alternates steps of several policies in one process, because a busy machine's speed changes from second to
// second. `over` is the median ratio of a step's processor time to the base policy's in the same round, `least` the
// ratio of their best times.
//
// --generate times a decoder's steps: one token per sequence over a cache of --seq positions, half filled by a prompt.
// After each step the same threads read as many bytes as the weights and the used half of the cache hold. `read_gbs` is
// the best reading rate, `allowed` the tokens per second at that rate, `share` the median ratio of the reading's time
// to the step's. A single thread is timed by its own processor time.
//
// --dry computes nothing and prints the bytes a step would need.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/timing/ceiling.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>

namespace {

using namespace thimble;
using namespace thimble::bench;

struct Options {
  models::Setup setup;
  std::int64_t steps = 8;
  std::size_t budget_bytes = 0, growth_bytes = 0;
  bool profiles = false, is_dry = false, generates = false;
  std::vector<std::string> beside;  // policies to alternate with the setup's
};

constexpr double ceiling_seconds = 0.15;  // before the steps and again after them

double seconds(clockid_t clock) {
  std::timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

nn::Plan plan_of(const Options& options, std::int64_t parameters) {
  std::size_t budget = options.budget_bytes;
  if (options.growth_bytes > 0) {
    budget = options.growth_bytes + static_cast<std::size_t>(parameters) * size_of(options.setup.precision.dtype);
  }
  if (budget == 0) return {};
  models::CostOptions costs;
  costs.measures = true;
  nn::Planner planner(random_run(options.setup), cpu, plan_costs(options.setup, costs, 0),
                      planner_options(options.setup, cpu));
  return planner.fit(budget);
}

/// Restarts the process's peak of resident bytes from its current value.
void reset_peak_rss() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5\n" << std::flush;
  if (!file) throw Error("step_benchmark: /proc/self/clear_refs cannot be written, so the growth cannot be measured");
}

/// Lowers `least` to `now` node by node. Returns the sum of `now` in seconds.
double keep_least(TapeTimes& least, const TapeTimes& now) {
  double all = 0;
  for (const auto member : {&TapeTimes::forward, &TapeTimes::recompute, &TapeTimes::backward}) {
    if ((least.*member).empty()) least.*member = now.*member;
    for (std::size_t n = 0; n < (now.*member).size(); ++n) {
      (least.*member)[n] = std::min((least.*member)[n], (now.*member)[n]);
      all += (now.*member)[n];
    }
  }
  return all;
}

/// `rest_ms` is a step's time outside its operators.
void print_profile(const TapeGraph& graph, const TapeTimes& times, double step_ms, double rest_ms) {
  std::printf("| operator | calls | forward ms | GB/s | again ms | backward ms | GB/s | Gflop/s | share |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const OperatorTime& t : operator_times(graph, times)) {
    const auto rate = [](double amount, double s) { return s > 0 ? 1e-9 * amount / s : 0; };
    std::printf("| %s | %lld | %.2f | %.1f | %.2f | %.2f | %.1f | %.0f | %.1f %% |\n", t.name.c_str(),
                static_cast<long long>(t.calls), 1e3 * t.forward_s, rate(t.forward_bytes, t.forward_s),
                1e3 * t.recompute_s, 1e3 * t.backward_s, rate(t.backward_bytes, t.backward_s),
                rate(2 * t.multiply_adds, t.forward_s + t.backward_s), 100 * 1e3 * t.seconds() / step_ms);
  }
  std::printf("| optimizer and all between operators | | | | | | | | %.2f ms, %.1f %% |\n", rest_ms,
              100 * rest_ms / step_ms);
}

void predict(const models::Setup& setup) {
  const nn::MemoryProfile profile = nn::profile_training(dry(cpu), random_run(setup));
  std::printf("dry model=%s batch=%lld dtype=%s isa=%s threads=%d parameters=%lld peak_bytes=%zu", setup.model.c_str(),
              static_cast<long long>(setup.batch), std::string(to_string(setup.precision.dtype)).c_str(),
              std::string(to_string(kernels::isa())).c_str(), thread_count(),
              static_cast<long long>(profile.parameters), profile.peak_bytes);
  for (std::size_t i = 0; i < memory::category_count; ++i) {
    std::printf(" %s_bytes=%zu", std::string(to_string(static_cast<memory::Category>(i))).c_str(),
                profile.peak_by_category[i]);
  }
  std::printf("\n");
}

void measure(const Options& options) {
  const models::Setup& setup = options.setup;
  double ceiling = ceiling_gflops(kernels::isa(), thread_count(), ceiling_seconds);
  std::int64_t parameters = 0;
  const TapeGraph graph = nn::record_step(
      cpu, random_run(setup), [&](nn::TrainingRun& run, const TapeGraph&) { parameters = run.parameters(); });
  const nn::Plan plan = plan_of(options, parameters);

  memory::Options stack_options;
  stack_options.plans = plan.placement;
  const memory::Stack stack = memory::make_resource(cpu, std::move(stack_options));
  const ResourceScope scope(stack.top);
  const auto run = random_run(setup)(cpu);
  plan.apply(run->options(), cpu);
  TapeTimes now, least;
  if (options.profiles) run->options().recording.times = &now;
  reset_peak_rss();
  const std::size_t before = process::rss_bytes();
  std::vector<double> wall_ms;
  double cpu_ms = std::numeric_limits<double>::infinity(), rest_ms = cpu_ms;
  for (std::int64_t step = 0; step < options.steps + 2; ++step) {
    const double wall = seconds(CLOCK_MONOTONIC), processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (stack.placed != nullptr) stack.placed->begin_step();
    run->step();
    if (stack.placed != nullptr) stack.placed->end_step();
    if (step < 2) continue;  // warm-up: touches pages for the first time
    wall_ms.push_back(1e3 * (seconds(CLOCK_MONOTONIC) - wall));
    cpu_ms = std::min(cpu_ms, 1e3 * (seconds(CLOCK_PROCESS_CPUTIME_ID) - processor));
    if (options.profiles) rest_ms = std::min(rest_ms, wall_ms.back() - 1e3 * keep_least(least, now));
  }
  const std::size_t after = process::peak_rss_bytes();
  std::sort(wall_ms.begin(), wall_ms.end());
  ceiling = std::max(ceiling, ceiling_gflops(kernels::isa(), thread_count(), ceiling_seconds));
  const double gflop = 2e-9 * multiply_adds(graph), gflops = 1e3 * gflop / wall_ms.front();
  const auto megabytes = [](std::size_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
  std::printf("step model=%s batch=%lld dtype=%s isa=%s threads=%d best_ms=%.2f median_ms=%.2f processor_ms=%.2f ",
              setup.model.c_str(), static_cast<long long>(setup.batch),
              std::string(to_string(setup.precision.dtype)).c_str(), std::string(to_string(kernels::isa())).c_str(),
              thread_count(), wall_ms.front(), wall_ms[wall_ms.size() / 2], cpu_ms);
  std::printf("growth_mib=%.1f arena_mib=%.1f step_gflop=%.4f gflops=%.1f ceiling_gflops=%.1f share=%.3f plan=%s\n",
              megabytes(after - std::min(before, after)), megabytes(stack.arena->statistics().peak_committed_bytes),
              gflop, gflops, ceiling, gflops / ceiling, plan.description.empty() ? "keep-everything" : "budget");
  if (options.profiles) print_profile(graph, least, wall_ms.front(), rest_ms);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void take_turns(const Options& options) {
  std::vector<models::Setup> setups(options.beside.size() + 1, options.setup);
  for (std::size_t i = 1; i < setups.size(); ++i) set_precision(setups[i], options.beside[i - 1]);
  const memory::Stack stack = memory::make_resource(cpu, {});
  const ResourceScope scope(stack.top);
  std::vector<std::vector<double>> times(setups.size()), over(setups.size());
  std::vector<std::unique_ptr<nn::TrainingRun>> runs;
  for (const models::Setup& setup : setups) runs.push_back(random_run(setup)(cpu));
  for (std::int64_t turn = 0; turn < options.steps + 1; ++turn) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const double begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
      runs[i]->step();
      if (turn == 0) continue;
      times[i].push_back(1e3 * (seconds(CLOCK_PROCESS_CPUTIME_ID) - begin));
      over[i].push_back(times[i].back() / times[0].back());
    }
  }
  for (std::size_t i = 0; i < setups.size(); ++i) {
    const double least = *std::min_element(times[i].begin(), times[i].end());
    std::printf("turns model=%s batch=%lld isa=%s threads=%d precision=%s median_ms=%.2f over=%.3f least=%.3f\n",
                setups[i].model.c_str(), static_cast<long long>(setups[i].batch),
                std::string(to_string(kernels::isa())).c_str(), thread_count(),
                setups[i].precision.policy.empty() ? "none" : setups[i].precision.policy.c_str(), median(times[i]),
                median(over[i]), least / *std::min_element(times[0].begin(), times[0].end()));
  }
  while (!runs.empty()) runs.pop_back();  // in reverse: each holds a generator's scope
}

/// Bytes of the weights that a decoding step reads: all except lookup tables.
std::size_t weight_bytes(const models::Decoder& model) {
  std::size_t bytes = 0;
  bool has_head = false;
  for (const nn::NamedTensor& p : model.parameters()) has_head = has_head || p.name == "lm_head.weight";
  for (const nn::NamedTensor& p : model.parameters()) {
    const bool is_looked_up = p.name == "wpe.weight" || (has_head && p.name == "model.embed_tokens.weight");
    if (!is_looked_up) bytes += p.tensor.bytes();
  }
  return bytes;
}

void generate_tokens(const Options& options) {
  const models::Setup& setup = options.setup;
  const auto model = models::make_model(setup.model, setup.sizes, tensor_options(setup, cpu));
  models::Decoder& decoder = models::require_decoder(*model, "--generate");
  model->eval();
  nn::KvCacheSizes sizes = decoder.cache_sizes();
  sizes.batch = setup.batch, sizes.context = model->options().sequence;
  models::Generation generation(decoder, sizes, {0, 0, 1}, setup.seed);
  generation.read_all(
      std::vector<std::int64_t>(static_cast<std::size_t>(std::max<std::int64_t>(1, sizes.context / 2))));
  const std::int64_t steps = std::min(options.steps, sizes.context - generation.cache().length() - 1);
  if (steps < 1) throw ValueError("--seq: " + std::to_string(sizes.context) + "; at least 4 is needed");
  const auto bytes = static_cast<double>(weight_bytes(decoder)) +
                     static_cast<double>(sizes.bytes_per_token() * static_cast<std::size_t>(sizes.batch)) *
                         static_cast<double>(generation.cache().length());
  const int threads = thread_count();
  const std::int64_t part = (static_cast<std::int64_t>(bytes) / 4 / threads + 127) / 128 * 128;
  Lines array = lines(static_cast<std::size_t>(part * threads) * sizeof(float));
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<float> sums(static_cast<std::size_t>(threads));
  double least = INFINITY, least_read = INFINITY;
  std::vector<double> shares;
  for (std::int64_t i = 0; i < steps; ++i) {
    const double begin = seconds(clock);
    generation.read(generation.draw());
    const double middle = seconds(clock);
    parallel_threads(threads, [&](int thread) {
      sums[static_cast<std::size_t>(thread)] = read_sum(kernels::isa(), floats(array) + thread * part, part);
    });
    const double end = seconds(clock);
    if (i == 0) continue;  // warm-up: touches pages and fills caches
    least = std::min(least, middle - begin), least_read = std::min(least_read, end - middle);
    shares.push_back((end - middle) / (middle - begin));
  }
  const double sequences = static_cast<double>(sizes.batch);
  std::printf("generate model=%s batch=%lld dtype=%s cache=%s positions=%lld isa=%s threads=%d ", setup.model.c_str(),
              static_cast<long long>(sizes.batch), std::string(to_string(setup.precision.dtype)).c_str(),
              std::string(to_string(sizes.dtype)).c_str(), static_cast<long long>(generation.cache().length()),
              std::string(to_string(kernels::isa())).c_str(), threads);
  std::printf("read_mib=%.1f best_ms=%.2f tokens_per_s=%.1f read_gbs=%.2f allowed=%.1f share=%.3f\n", bytes / 0x1p20,
              1e3 * least, sequences / least, 1e-9 * bytes / least_read, sequences / least_read, median(shares));
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = std::make_shared<Options>();
  CLI::App app("Time, memory and profile of a training step");
  options->setup.optimizer.clip_norm = 0;
  add_setup_flags(app, std::shared_ptr<models::Setup>(options, &options->setup));
  add_integer(app, "--steps", options->steps, 1, 100'000, "Steps that are timed, after two that are not (8)");
  add_size(app, "--budget", options->budget_bytes, "Bytes that the arena may commit (as many as it takes)");
  add_size(app, "--growth", options->growth_bytes, "Bytes that it may commit beyond the parameters");
  app.add_flag("--profile", options->profiles, "Print the time of every kind of operator");
  app.add_option("--beside", options->beside, "Other policies of --precision, whose steps take turns with these")
      ->type_name("P ...")
      ->delimiter(',');
  app.add_flag("--generate", options->generates, "Steps write tokens over a cache, beside reading as many bytes");
  app.add_flag("--dry", options->is_dry, "Compute nothing; print what a step that keeps everything needs, in bytes");
  try {
    kernels::set_from_environment();
    add_compute_flags(app);
    CLI11_PARSE(app, argc, argv);
    if (options->is_dry && (options->profiles || options->budget_bytes > 0 || options->growth_bytes > 0)) {
      throw ValueError("--dry: not with --profile, --budget or --growth; 'thimble plan' tells what a budget needs");
    }
    const bool has_budget = options->budget_bytes > 0 || options->growth_bytes > 0;
    if (!options->beside.empty() && (options->is_dry || options->profiles || has_budget)) {
      throw ValueError("--beside: not with --dry, --profile, --budget or --growth");
    }
    if (options->generates && (options->is_dry || options->profiles || has_budget || !options->beside.empty())) {
      throw ValueError("--generate: not with --dry, --profile, --budget, --growth or --beside");
    }
    if (options->generates) {
      generate_tokens(*options);
    } else if (options->is_dry) {
      predict(options->setup);
    } else if (!options->beside.empty()) {
      take_turns(*options);
    } else {
      measure(*options);
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "step_benchmark: %s\n", error.what());
    return 2;
  }
}
