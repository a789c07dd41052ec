// Training steps of a model on a device with a resident batch: time, memory, waits and launches, as JSON.
//
//   gpu_step_benchmark MODEL [--batch N ...] [--device DEVICE] [--hardware NAME] [--budget SIZE] [--steps N] [--tf32]
//                      [--dropout P]
//
// Dropout is off by default, as in bench/torch/gpu.py, which trains the same models in PyTorch.
// `best_ms` is the best of three runs of N steps, divided by N; the host waits once, after the last step. A dry run
// gives the predicted bytes. `waits_per_step` counts the host's waits for the device in one step, `launches_per_step`
// Thimble's own launches in it. `cublaslt_refusals` and `cudnn_refusals` count, over all steps, the operations that
// Thimble's kernels took over because a library refused them. `unbooked_bytes` is the growth of the device's used
// memory from before the arena to the end of the steps, less the arena's committed bytes and the libraries' handles:
// untracked memory of libraries and of the driver, such as code loaded at a kernel's first launch.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/summary.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>

namespace {

using namespace thimble;
using namespace thimble::bench;
using Clock = std::chrono::steady_clock;

struct Options {
  models::Setup setup;
  models::CostOptions costs;
  std::string device = "cuda";
  std::int64_t steps = 10;
  std::size_t budget_bytes = 0;
  bool allows_tf32 = false;
};

/// The device's counters; zeros on the cpu.
struct Counts {
  std::uint64_t waits = 0, launches = 0;
  static Counts of(memory::Device device) {
    if (!device.is_cuda()) return {};
    const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
    return {runtime.synchronization_count(), runtime.launch_count()};
  }
};

void put_libraries(nlohmann::ordered_json& json, const kernels::LibraryUse& use) {
  const auto put = [&](const std::string& name, const kernels::LibraryCounts& counts) {
    json[name + "_calls"] = counts.calls;
    json[name + "_refusals"] = counts.refusals;
    if (!counts.first_refused.empty()) json[name + "_first_refused"] = counts.first_refused;
  };
  put("cublaslt", use.cublaslt);
  put("cudnn", use.cudnn);
}

void wait(memory::Device device) {
  if (device.is_cuda()) kernels::device_runtime(device).synchronize(device);
}

void measure(const Options& options) {
  const models::Setup& setup = options.setup;
  const memory::Device device = parse_device_flag("--device", options.device);
  const nn::MakeRun make = random_run(setup);
  const Tf32Scope products(options.allows_tf32);
  nn::Plan plan;
  if (options.budget_bytes > 0) {
    nn::Planner planner(make, device, plan_costs(setup, options.costs, options.budget_bytes, device),
                        planner_options(setup, device));
    plan = planner.fit(options.budget_bytes);
  } else {
    plan.peak_bytes = nn::profile_training(dry(device), make).peak_bytes;
  }
  memory::Options stack_options;
  stack_options.plans = plan.placement;
  stack_options.arena.capacity_bytes = options.budget_bytes;
  std::optional<memory::DeviceUse> before_arena;
  if (device.is_cuda()) before_arena = memory::device_use(device, 0);
  const memory::Stack stack = memory::make_resource(device, std::move(stack_options));
  const ResourceScope scope(stack.top);
  const auto run = make(device);
  plan.apply(run->options(), device);
  const auto step = [&] {
    std::optional<memory::PlacedArena::Step> placed;
    if (stack.placed) placed.emplace(*stack.placed);
    run->step();
  };
  step(), step();  // warm-up: touches pages, loads libraries
  wait(device);
  const Counts before = Counts::of(device);
  step();
  const Counts after = Counts::of(device);
  wait(device);
  double best_ms = 1e30;
  for (int round = 0; round < 3; ++round) {
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < options.steps; ++i) step();
    wait(device);
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    best_ms = std::min(best_ms, elapsed.count() / static_cast<double>(options.steps));
  }
  const auto model = models::make_model(setup.model, setup.sizes, tensor_options(setup, dry(device)));
  const std::int64_t items = setup.batch * (model->is_text() ? model->options().sequence : 1);
  const memory::Arena::Statistics arena = stack.arena->statistics();
  nlohmann::ordered_json json{{"model", setup.model},
                              {"batch", setup.batch},
                              {"dtype", std::string(to_string(setup.precision.dtype))},
                              {"precision", setup.precision.policy},
                              {"tf32", options.allows_tf32},
                              {"dropout", setup.sizes.dropout},
                              {"parameters", run->parameters()},
                              {"best_ms", best_ms},
                              {"items_per_s", 1e3 * static_cast<double>(items) / best_ms},
                              {"budget_bytes", options.budget_bytes},
                              {"predicted_peak_bytes", plan.peak_bytes},
                              {"measured_peak_bytes", arena.peak_committed_bytes},
                              {"planned_overhead", plan.time_overhead},
                              {"waits_per_step", after.waits - before.waits},
                              {"launches_per_step", after.launches - before.launches}};
  if (device.is_cuda()) {
    const memory::DeviceUse use = memory::device_use(device, arena.committed_bytes);
    json["device_total_bytes"] = use.total_bytes;
    json["device_used_bytes"] = use.used_bytes;
    json["outside_bytes"] = use.outside_bytes;
    json["context_bytes"] = use.context_bytes;
    json["handle_bytes"] = use.handle_bytes;
    json["unbooked_bytes"] = memory::unbooked_bytes(*before_arena, use, arena.committed_bytes);
    put_libraries(json, kernels::device_runtime(device).library_use());
  }
  std::cout << json.dump(2) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = std::make_shared<Options>();
  CLI::App app("Training steps on a device: time, memory, waits, launches");
  add_setup_flags(app, std::shared_ptr<models::Setup>(options, &options->setup));
  add_cost_flags(app, std::shared_ptr<models::CostOptions>(options, &options->costs));
  app.add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  add_size(app, "--budget", options->budget_bytes, "Bytes that the arena may commit (as many as it takes)");
  add_integer(app, "--steps", options->steps, 1, 100'000, "Steps of a timed run, of which there are three (10)");
  app.add_flag("--tf32", options->allows_tf32, "f32 products and convolutions in TF32");
  options->setup.sizes.dropout = 0;
  add_number(app, "--dropout", options->setup.sizes.dropout, 0, 0.99, "Dropout of text models (0)");
  CLI11_PARSE(app, argc, argv);
  try {
    measure(*options);
  } catch (const Error& error) {
    std::fprintf(stderr, "gpu_step_benchmark: %s\n", error.what());
    return 2;
  }
}
