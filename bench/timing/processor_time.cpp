#include <thimble/bench/timing/processor_time.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/process.h>

namespace thimble::bench {
namespace processor_time_detail {

constexpr int warm_up = 2;  // the first steps make the state and take pages for the first time

/// A run with the arena that it lives in.
struct Lane {
  memory::Stack stack;
  std::unique_ptr<nn::TrainingRun> run;
  double least_ms = std::numeric_limits<double>::infinity();

  std::int64_t skipped() const {
    const optim::GradScaler* const scaler = run->options().scaler;
    return scaler == nullptr ? 0 : scaler->state().skipped_steps;
  }
  void step(bool counts) {
    const ResourceScope scope(stack.top);
    const std::int64_t before = skipped();
    const double start = process::processor_ms();
    run->step();
    const double ms = process::processor_ms() - start;
    if (counts && skipped() == before) least_ms = std::min(least_ms, ms);
  }
};

/// Runs hold scopes of this thread: the last made goes first.
struct Lanes {
  std::vector<Lane> list;
  ~Lanes() {
    while (!list.empty()) list.pop_back();
  }
};

}  // namespace processor_time_detail

OneThread::OneThread() : before_(thread_count()) { set_thread_count(1); }

OneThread::~OneThread() { set_thread_count(before_); }

std::vector<double> step_processor_ms(memory::Device device, const std::vector<nn::MakeRun>& makes, int rounds) {
  using namespace processor_time_detail;
  if (rounds < 1) {
    throw ValueError("step_processor_ms: " + std::to_string(rounds) + " rounds; expected at least 1");
  }
  const OneThread alone;
  Lanes lanes;
  lanes.list.reserve(makes.size());
  for (const nn::MakeRun& make : makes) {
    Lane& lane = lanes.list.emplace_back();
    lane.stack = memory::make_resource(device);
    const ResourceScope scope(lane.stack.top);
    lane.run = make(device);
  }
  for (int round = -warm_up; round < rounds; ++round) {
    for (Lane& lane : lanes.list) lane.step(round >= 0);
  }
  std::vector<double> least;
  for (const Lane& lane : lanes.list) {
    if (lane.least_ms == std::numeric_limits<double>::infinity()) {
      throw ValueError("step_processor_ms: run " + std::to_string(least.size()) + " skipped each of its " +
                       std::to_string(rounds) + " steps; expected more rounds");
    }
    least.push_back(lane.least_ms);
  }
  return least;
}

}  // namespace thimble::bench
