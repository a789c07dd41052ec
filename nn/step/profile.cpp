#include <thimble/nn/step/profile.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/process/process.h>
#include <thimble/nn/step/dry_scope.h>

namespace thimble::nn {

namespace {

constexpr std::size_t most_steps = 8;  // limit for the arena's state to repeat

/// Bound for a run on the cpu that started from this base. Data and staging are in the base, or the run has none.
memory::OutsideBytes outside_of(const memory::ProcessBase& base, TrainingRun& run, const MemoryProfile& profile) {
  const StepOptions& options = run.options();
  const int tiers = (options.recording.tier != nullptr ? 1 : 0) + (options.gradient_tier != nullptr ? 1 : 0) +
                    (profile.tier_bytes > 0 ? 1 : 0);
  return memory::outside_bytes(
      base,
      {.threads = thread_count(), .tier_threads = tiers * memory::FileTier::Options().workers, .nodes = profile.nodes});
}

}  // namespace

memory::Options profile_options(memory::Device device) {
  constexpr std::size_t dry_addresses = std::size_t{1} << 50;
  memory::Options options;
  if (device.is_dry) options.arena.reserve_bytes = dry_addresses;
  return options;
}

std::size_t tier_bytes(const optim::Optimizer& optimizer, const StepOptions& options) {
  const std::set<const memory::Tier*> tiers{optimizer.tier().get(), options.gradient_tier.get(),
                                            options.recording.tier.get()};
  std::size_t bytes = 0;
  for (const memory::Tier* tier : tiers) bytes += tier == nullptr ? 0 : tier->statistics().committed_bytes;
  for (const ParameterStore* store : optimizer.parameter_stores()) bytes += store->bytes_elsewhere();
  return bytes;
}

void run_step(TrainingRun& run, const memory::Stack& stack) {
  if (stack.placed == nullptr || run.begins_placed_steps()) return run.step();
  const memory::PlacedArena::Step replay(*stack.placed);
  run.step();
}

void finish_run(TrainingRun& run, const memory::Stack& stack) {
  const auto release_region = [&] {
    if (stack.placed != nullptr) stack.placed->release_region();
  };
  release_region();
  run.finish([&] {
    run_step(run, stack);
    release_region();
  });
}

TapeGraph record_step(memory::Device device, const MakeRun& make,
                      const std::function<void(TrainingRun&, const TapeGraph&)>& look) {
  const DryScope scope(device);
  const std::unique_ptr<TrainingRun> run = make(dry(device));
  TapeGraph graph;
  run->options().recording.graph = &graph;
  run->step();
  if (look) look(*run, graph);
  return graph;
}

MemoryProfile profile_training(memory::Device device, const MakeRun& make, std::size_t steps, bool wants_trace,
                               std::vector<memory::StepPlacement> plans) {
  memory::Options options = profile_options(device);
  options.trace = wants_trace;
  options.plans = std::move(plans);
  const memory::Stack stack = memory::make_resource(device, std::move(options));
  MemoryProfile profile;
  std::optional<memory::ProcessWatch> watch;
  if (device == cpu) watch.emplace();
  {
    const ResourceScope scope(stack.top);
    const std::unique_ptr<TrainingRun> run = make(device);
    profile.parameters = run->parameters();
    run->options().recording.nodes = &profile.nodes;
    if (wants_trace) profile.setup_end = stack.trace->event_count();
    const bool may_go_on = steps > 1 && !wants_trace;
    const auto is_done = [&] {
      return profile.steps >= steps && (profile.is_steady || !may_go_on || profile.steps >= most_steps);
    };
    for (std::uint64_t before = 0; !is_done(); ++profile.steps) {
      const auto start = std::chrono::steady_clock::now();
      run_step(*run, stack);
      if (wants_trace) profile.step_ends.push_back(stack.trace->event_count());
      const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
      if (!device.is_dry) profile.ms_per_step = elapsed.count();
      const std::uint64_t digest = stack.arena->layout_digest();
      profile.is_steady = profile.steps > 0 && digest == before;
      before = digest;
    }
    finish_run(*run, stack);
    run->options().recording.nodes = nullptr;
    profile.tier_bytes = run->tier_bytes();
    if (device == cpu) {
      profile.rss_bytes = process::mapping_rss_bytes(stack.arena->base(), stack.arena->reserved_bytes());
      profile.outside = outside_of(watch->base(), *run, profile);
      profile.process_peak_bytes = watch->peak_bytes();
    }
  }
  const memory::Arena::Statistics statistics = stack.arena->statistics();
  if (stack.placed != nullptr) profile.placed = stack.placed->statistics();
  profile.peak_bytes = statistics.peak_committed_bytes;
  profile.peak_height_bytes = statistics.peak_height_bytes;
  profile.lower_bound_bytes = statistics.peak_allocated_bytes;
  profile.peak_live_bytes = stack.ledger->max_allocated();
  profile.peak_by_category = stack.ledger->peak_by_category();
  if (wants_trace) profile.events = stack.trace->events();
  return profile;
}

memory::PlacementOptions placement_options(memory::Device device) {
  memory::PlacementOptions options;
  options.unit = memory::make_dry_backing(device)->alignment();
  options.seconds = 60;
  options.node_limit = 20'000;
  return options;
}

memory::PlacementOptions placement_options(memory::Device device, std::int64_t micro_batches) {
  memory::PlacementOptions options = placement_options(device);
  options.last_stage = micro_batches > 2 ? memory::PlacementStage::greedy : memory::PlacementStage::improvement;
  return options;
}

std::vector<memory::StepPlacement> plan_steps(const MemoryProfile& profile, const memory::PlacementOptions& given) {
  const std::span<const memory::Trace::Event> events = profile.events;
  memory::PlacementOptions options = given;
  std::vector<memory::StepPlacement> plans;
  std::size_t begin = profile.setup_end;
  for (const std::size_t end : profile.step_ends) {
    const memory::StepPlacement* const before = plans.empty() ? nullptr : &plans.back();
    plans.push_back(memory::make_step_placement(events.subspan(begin, end - begin), options, before));
    // The region is as high as the highest plan, so lower later plans gain nothing.
    options.capacity_bytes = std::max(options.capacity_bytes, plans.back().placement.height);
    begin = end;
  }
  return plans;
}

PlacedProfile profile_placed(memory::Device device, const MakeRun& make, std::int64_t micro_batches) {
  const memory::Device on = dry(device);
  const MemoryProfile dynamic = profile_training(on, make, 2, true);
  PlacedProfile placed;
  placed.placement = plan_steps(dynamic, placement_options(on, micro_batches));
  placed.profile = profile_training(on, make, 2, false, placed.placement);
  if (placed.profile.peak_bytes > dynamic.peak_bytes) placed = {profile_training(on, make), {}};
  placed.profile.lower_bound_bytes = dynamic.lower_bound_bytes;
  return placed;
}

std::vector<memory::StepPlacement> plan_steps(memory::Device device, const MakeRun& make,
                                              const memory::PlacementOptions& options) {
  constexpr std::size_t steps = 2;  // the first, which makes the optimizer's state, and a steady one
  return plan_steps(profile_training(device.is_dry ? device : dry(device), make, steps, true), options);
}

}  // namespace thimble::nn
