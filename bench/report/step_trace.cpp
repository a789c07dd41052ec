#include <thimble/bench/report/step_trace.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/stack.h>

namespace thimble::bench {
namespace step_trace_detail {

/// Events [first, end) of a run.
struct Window {
  std::size_t first = 0, end = 0;
};

/// What one replay of a run told.
struct Replay {
  std::unordered_map<std::uint64_t, std::size_t> offsets;  // of blocks that live in the window, by the run's ids
  std::size_t height_bytes = 0;                            // end of the highest of them
  std::size_t committed_bytes = 0;
};

/// Asks a fresh arena for everything that the run asked for, in the same order, steps and all.
class Replayer {
 public:
  Replayer(memory::Device device, std::vector<StepPlacement> plans) : stack_(make_stack(device, std::move(plans))) {}
  ~Replayer() {
    for (const auto& [id, block] : live_) stack_.top->deallocate(block, nullptr);
  }
  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;

  Replay run(const nn::MemoryProfile& profile, Window window) {
    std::size_t step = 0;
    for (std::size_t time = 0; time < profile.events.size(); ++time) {
      if (stack_.placed != nullptr && step <= profile.step_ends.size()) {
        // The first step begins with the setup's end, every other one where the one before it ends.
        const std::size_t begin = step == 0 ? profile.setup_end : profile.step_ends[step - 1];
        if (time == begin) {
          if (step < profile.step_ends.size()) {
            stack_.placed->begin_step();
          } else {
            stack_.placed->end_step();
            stack_.placed->release_region();  // as profile_training does before what comes after the steps
          }
          ++step;
        }
      }
      if (time == window.first) {
        for (const auto& [id, block] : live_) note(id, *block);
      }
      one(profile.events[time], window.first <= time && time < window.end);
    }
    replay_.committed_bytes = stack_.arena->statistics().peak_committed_bytes;
    return std::move(replay_);
  }

 private:
  static memory::Stack make_stack(memory::Device device, std::vector<StepPlacement> plans) {
    memory::Options options = nn::profile_options(device);
    options.plans = std::move(plans);
    return memory::make_resource(device, std::move(options));
  }
  void one(const memory::Trace::Event& event, bool is_noted) {
    switch (event.action) {
      case memory::Trace::Action::allocate: {
        memory::Block* const block =
            stack_.top->allocate({event.bytes, event.alignment, event.category, event.path, nullptr});
        live_.emplace(event.block, block);
        if (is_noted) note(event.block, *block);
        break;
      }
      case memory::Trace::Action::free: {
        const auto found = live_.find(event.block);
        stack_.top->deallocate(found->second, nullptr);
        live_.erase(found);
        break;
      }
      case memory::Trace::Action::relabel:
        stack_.top->relabel(live_.at(event.block), event.category);
        break;
    }
  }
  void note(std::uint64_t id, const memory::Block& block) {
    const auto offset = static_cast<std::size_t>(block.address - stack_.arena->base());
    replay_.offsets[id] = offset;
    replay_.height_bytes = std::max(replay_.height_bytes, offset + block.bytes);
  }

  memory::Stack stack_;
  std::unordered_map<std::uint64_t, memory::Block*> live_;
  Replay replay_;
};

/// The window as a trace of its own: ids count from 0, oldest first. `ids` receives the run's ids.
std::vector<memory::Trace::Event> cut_out(const std::vector<memory::Trace::Event>& events, Window window,
                                          std::vector<std::uint64_t>& ids) {
  std::vector<memory::Trace::Event> live;  // as allocations, by the run's ids: at.second is the index
  std::unordered_map<std::uint64_t, std::size_t> at;
  for (std::size_t time = 0; time < window.first; ++time) {
    const memory::Trace::Event& event = events[time];
    if (event.action == memory::Trace::Action::allocate) {
      at.emplace(event.block, live.size());
      live.push_back(event);
    } else if (event.action == memory::Trace::Action::relabel) {
      live[at.at(event.block)].category = event.category;
    } else {
      at.erase(event.block);
    }
  }
  std::vector<memory::Trace::Event> cut;
  std::unordered_map<std::uint64_t, std::uint64_t> id_of;
  const auto add = [&](memory::Trace::Event event) {
    if (event.action == memory::Trace::Action::allocate) {
      id_of.emplace(event.block, ids.size());
      ids.push_back(event.block);
    }
    event.block = id_of.at(event.block);
    cut.push_back(event);
  };
  for (const memory::Trace::Event& event : live) {
    if (at.count(event.block) != 0) add(event);
  }
  for (std::size_t time = window.first; time < window.end; ++time) add(events[time]);
  return cut;
}

StepLayout layout_of(const Replay& replay, const std::vector<std::uint64_t>& ids) {
  StepLayout layout;
  layout.height_bytes = replay.height_bytes;
  layout.committed_bytes = replay.committed_bytes;
  layout.offsets.reserve(ids.size());
  for (const std::uint64_t id : ids) layout.offsets.push_back(replay.offsets.at(id));
  return layout;
}

}  // namespace step_trace_detail

StepTrace trace_step(const std::string& name, memory::Device device, const nn::MakeRun& make, const nn::Plan& plan) {
  using namespace step_trace_detail;
  const nn::MakeRun planned = [&](memory::Device on) {
    std::unique_ptr<nn::TrainingRun> run = make(on);
    plan.apply(run->options(), on);
    return run;
  };
  const memory::Device on = dry(device);
  nn::MemoryProfile profile = nn::profile_training(on, planned, 2, true);
  const Window window{profile.step_ends[0], profile.step_ends[1]};
  StepTrace trace;
  trace.name = name;
  std::vector<std::uint64_t> ids;
  trace.events = cut_out(profile.events, window, ids);
  trace.before = trace.events.size() - (window.end - window.first);
  std::size_t live = 0;
  for (const memory::Trace::Event& event : trace.events) {
    if (event.action == memory::Trace::Action::allocate) live += event.bytes;
    if (event.action == memory::Trace::Action::free) live -= event.bytes;
    trace.live_peak_bytes = std::max(trace.live_peak_bytes, live);
  }
  trace.dynamic = layout_of(Replayer(on, {}).run(profile, window), ids);
  if (trace.dynamic.committed_bytes != profile.peak_bytes) {
    throw Error("trace_step: the replay of " + name + " committed " + std::to_string(trace.dynamic.committed_bytes) +
                " bytes, the run " + std::to_string(profile.peak_bytes));
  }
  std::vector<StepPlacement> placement = plan.placement;
  if (placement.empty()) placement = nn::plan_steps(profile, nn::placement_options(on));
  trace.placed = layout_of(Replayer(on, std::move(placement)).run(profile, window), ids);
  return trace;
}

}  // namespace thimble::bench
