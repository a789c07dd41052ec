#include <thimble/nn/profile.h>

#include <chrono>

#include <thimble/core/context.h>
#include <thimble/memory/process.h>

namespace thimble::nn {

MemoryProfile profile_training(Device device, const MakeRun& make, std::size_t steps, bool wants_trace) {
  memory::Options options;
  options.trace = wants_trace;
  const memory::Stack stack = memory::make_resource(device, options);
  MemoryProfile profile;
  profile.steps = steps;
  {
    const ResourceScope scope(stack.top);
    const std::unique_ptr<TrainingRun> run = make(device);
    profile.parameters = run->parameters();
    for (std::size_t i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      run->step();
      const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
      if (!device.is_dry) profile.ms_per_step = elapsed.count();
    }
    run->finish();
    if (device == cpu) {
      profile.rss_bytes = process::mapping_rss_bytes(stack.arena->base(), stack.arena->reserved_bytes());
    }
  }
  const Arena::Statistics statistics = stack.arena->statistics();
  profile.peak_bytes = statistics.peak_committed_bytes;
  profile.lower_bound_bytes = statistics.peak_allocated_bytes;
  profile.peak_live_bytes = stack.ledger->max_allocated();
  profile.peak_by_category = stack.ledger->peak_by_category();
  if (wants_trace) profile.events = stack.trace->events();
  return profile;
}

}  // namespace thimble::nn
