// Moving every block of a training run changes no bit, and a dry run predicts the moved bytes.

#include <cstdio>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/summary.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/costs.h>

#include "support/catch.h"
#include "support/training_state.h"

namespace {

using thimble::memory::Arena;
using thimble::memory::Device;
namespace memory = thimble::memory;

constexpr int moved_steps = 3;
constexpr std::size_t granule = std::size_t{2} << 20;

/// Never moves a block.
constexpr Arena::Options never{.poison = true, .compaction = Arena::Compaction::never, .tolerated_fragmentation = 1};
/// Moves blocks only where a request would otherwise fail.
constexpr Arena::Options tolerant{.poison = true, .tolerated_fragmentation = 1};

/// Workspaces, and so offsets, depend on the number of threads.
class OneKernelThread {
 public:
  OneKernelThread() : before_(thimble::thread_count()) { thimble::set_thread_count(1); }
  ~OneKernelThread() { thimble::set_thread_count(before_); }
  OneKernelThread(const OneKernelThread&) = delete;
  OneKernelThread& operator=(const OneKernelThread&) = delete;

 private:
  int before_;
};

/// A run in its own arena: its results and the arena's statistics.
struct MovedRun {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> gradients;
  TrainingState state;
  Arena::Statistics figures;
};

MovedRun run_moved(const SmallTraining::Options& options, Device device, const Arena::Options& arena) {
  const memory::Stack stack = memory::make_resource(device, {.arena = arena});
  MovedRun result;
  const thimble::ResourceScope scope(stack.top);
  SmallTraining run(options, device);
  std::vector<thimble::Tensor> losses;
  for (int i = 0; i < moved_steps; ++i) {
    losses.push_back(run.step());
    stack.arena->safe_point();
  }
  result.figures = stack.arena->statistics();
  if (device.is_dry) return result;  // the rest reads values
  for (const thimble::Tensor& loss : losses) result.losses.push_back(thimble::item(loss));
  result.gradients = run.gradients();
  result.state = run.state();
  return result;
}

bool fits(const SmallTraining::Options& options, const Arena::Options& arena) {
  try {
    run_moved(options, dry(thimble::cpu), arena);
    return true;
  } catch (const thimble::OutOfMemory&) {
    return false;
  }
}

/// The arena's statistics for a dry run of two steps; all zero if it does not fit.
Arena::Statistics dry_figures(const thimble::models::Setup& setup, const Arena::Options& arena) {
  const Device device = dry(thimble::cpu);
  const memory::Stack stack = memory::make_resource(device, {.arena = arena});
  const thimble::ResourceScope scope(stack.top);
  try {
    const auto run = thimble::models::zero_batch_run(setup)(device);
    for (int i = 0; i < 2; ++i) run->step();
  } catch (const thimble::OutOfMemory&) {
    return {};
  }
  return stack.arena->statistics();
}

}  // namespace

TEST_CASE("compaction training: moving every block before every allocation changes no bit", "[compaction]") {
  using Options = SmallTraining::Options;
  const OneKernelThread threads;
  const Options rows[] = {{"char-gpt", "adamw", false, 1},
                          {"char-gpt", "adamw", true, 1},
                          {"char-gpt", "momentum", false, 2},
                          {"resnet18", "momentum", false, 1},
                          {"resnet18", "adamw", true, 1}};
  for (const Options& row : rows) {
    INFO(row.model << ", " << row.optimizer << (row.recomputes ? ", recomputed" : "") << ", " << row.micro_batches);
    const Arena::Options moving{.poison = true, .compaction = Arena::Compaction::before_every_allocation};
    const Arena::Options safe{.poison = true, .tolerated_fragmentation = 0};
    const MovedRun plain = run_moved(row, thimble::cpu, never);
    CHECK(plain.figures.moved_blocks == 0);
    for (const Arena::Options& options : {moving, safe}) {
      const MovedRun moved = run_moved(row, thimble::cpu, options);
      CHECK(moved.figures.moved_blocks > 0);
      CHECK(moved.losses == plain.losses);
      CHECK(moved.gradients == plain.gradients);
      CHECK(moved.state == plain.state);
      const MovedRun predicted = run_moved(row, dry(thimble::cpu), options);
      CHECK(predicted.figures == moved.figures);
      CHECK(predicted.figures.moved_bytes == moved.figures.moved_bytes);
    }
    CHECK(run_moved(row, thimble::cpu, moving).figures.moved_blocks > 100);
  }
}

TEST_CASE("compaction training: a smaller arena is enough, at the same bits", "[compaction][slow]") {
  const OneKernelThread threads;
  for (const char* model : {"char-gpt", "resnet18"}) {
    INFO(model);
    // Searches for sizes at which one granule less fails without compaction; they depend on kernels' workspaces.
    SmallTraining::Options run;
    std::size_t capacity = 0;
    for (const std::int64_t samples : {4, 8, 6, 12, 16, 10, 24, 32}) {
      for (const auto& [width, length] : {std::pair{64, 32}, {64, 64}, {16, 16}, {16, 32}, {32, 32}, {16, 64}}) {
        run = {model, "adamw", false, 1, samples, width, length};
        const std::size_t committed = run_moved(run, dry(thimble::cpu), never).figures.peak_committed_bytes;
        Arena::Options less = tolerant;
        less.capacity_bytes = committed - granule;
        if (less.capacity_bytes == 0 || !fits(run, less)) continue;
        capacity = less.capacity_bytes;
        break;
      }
      if (capacity > 0) break;
    }
    REQUIRE(capacity > 0);
    const MovedRun roomy = run_moved(run, thimble::cpu, never);
    CHECK(roomy.figures.peak_committed_bytes == capacity + granule);
    Arena::Options tight = never;
    tight.capacity_bytes = capacity;
    for (const Device device : {thimble::cpu, dry(thimble::cpu)}) {
      CHECK_THROWS_AS(run_moved(run, device, tight), thimble::OutOfMemory);
    }
    tight = tolerant;
    tight.capacity_bytes = capacity;
    const MovedRun moved = run_moved(run, thimble::cpu, tight);
    CHECK(moved.figures.peak_committed_bytes == capacity);
    CHECK(moved.figures.moved_blocks > 0);
    CHECK(moved.losses == roomy.losses);
    CHECK(moved.gradients == roomy.gradients);
    CHECK(moved.state == roomy.state);
    CHECK(run_moved(run, dry(thimble::cpu), tight).figures == moved.figures);
  }
}

TEST_CASE("compaction training: figures", "[.benchmark]") {
  struct Row {
    const char* model;
    std::int64_t batch;
  };
  for (const Row row :
       {Row{"resnet18", 8}, Row{"resnet18", 32}, Row{"resnet50", 32}, Row{"char-gpt", 32}, Row{"gpt2", 4}}) {
    thimble::models::Setup setup;
    setup.model = row.model;
    setup.batch = row.batch;
    const Arena::Statistics roomy = dry_figures(setup, {.compaction = Arena::Compaction::never});
    Arena::Statistics smallest = roomy;
    std::size_t low = roomy.peak_allocated_bytes / granule, high = roomy.peak_committed_bytes / granule;
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      const Arena::Statistics tried = dry_figures(setup, {.capacity_bytes = middle * granule});
      if (tried.allocation_count != 0) smallest = tried;
      (tried.allocation_count != 0 ? high : low) = middle;
    }
    std::printf(
        "%s, batch %d: load %s, committed without compaction %s, smallest arena with it %s (in two steps %d "
        "compactions move %s)\n",
        row.model, static_cast<int>(row.batch), memory::human_bytes(roomy.peak_allocated_bytes).c_str(),
        memory::human_bytes(roomy.peak_committed_bytes).c_str(), memory::human_bytes(high * granule).c_str(),
        static_cast<int>(smallest.compaction_count), memory::human_bytes(smallest.moved_bytes).c_str());
    CHECK(high * granule <= roomy.peak_committed_bytes);
  }
}
