// Moving every block of a training run changes no bit of it, and a dry run knows how many bytes move.

#include <cstdio>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/summary.h>

#include "catch.h"
#include "training_state.h"

namespace {

using thimble::Arena;
using thimble::Device;
namespace memory = thimble::memory;

constexpr int moved_steps = 3;

/// A run in an arena of its own: what it computed and what the arena did.
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

/// What a dry run of two steps does; all zero when it does not fit.
Arena::Statistics dry_figures(const thimble::bench::Setup& setup, const Arena::Options& arena) {
  const Device device = dry(thimble::cpu);
  const memory::Stack stack = memory::make_resource(device, {.arena = arena});
  const thimble::ResourceScope scope(stack.top);
  try {
    const auto run = thimble::bench::training_run(setup)(device);
    for (int i = 0; i < 2; ++i) run->step();
  } catch (const thimble::OutOfMemory&) {
    return {};
  }
  return stack.arena->statistics();
}

}  // namespace

TEST_CASE("compaction training: moving every block before every allocation changes no bit", "[compaction]") {
  using Options = SmallTraining::Options;
  const Options rows[] = {{"char-gpt", "adamw", false, 1},
                          {"char-gpt", "adamw", true, 1},
                          {"char-gpt", "momentum", false, 2},
                          {"resnet18", "momentum", false, 1},
                          {"resnet18", "adamw", true, 1}};
  for (const Options& row : rows) {
    INFO(row.model << ", " << row.optimizer << (row.recomputes ? ", recomputed" : "") << ", " << row.micro_batches);
    const Arena::Options still{.poison = true, .compaction = Arena::Compaction::never, .tolerated_fragmentation = 1};
    const Arena::Options moving{.poison = true, .compaction = Arena::Compaction::before_every_allocation};
    const Arena::Options safe{.poison = true, .tolerated_fragmentation = 0};
    const MovedRun plain = run_moved(row, thimble::cpu, still);
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

TEST_CASE("compaction training: a smaller arena is enough, at the same bits", "[compaction]") {
  // Runs whose height is a granule above what their load needs: without compaction they do not fit the smaller arena.
  struct Row {
    SmallTraining::Options run;
    std::size_t capacity;
  };
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const Row rows[] = {{{"char-gpt", "adamw", false, 1, 8, 64, 32}, 4 * MiB},
                      {{"resnet18", "adamw", false, 1, 4, 16, 32}, 16 * MiB}};
  for (const Row& row : rows) {
    INFO(row.run.model);
    const MovedRun roomy = run_moved(row.run, thimble::cpu, {.compaction = Arena::Compaction::never});
    CHECK(roomy.figures.peak_committed_bytes > row.capacity);
    CHECK(roomy.figures.peak_allocated_bytes <= row.capacity);
    for (const Device device : {thimble::cpu, dry(thimble::cpu)}) {
      CHECK_THROWS_AS(
          run_moved(row.run, device, {.capacity_bytes = row.capacity, .compaction = Arena::Compaction::never}),
          thimble::OutOfMemory);
    }
    const Arena::Options tight{.capacity_bytes = row.capacity, .poison = true, .tolerated_fragmentation = 1};
    const MovedRun moved = run_moved(row.run, thimble::cpu, tight);
    CHECK(moved.figures.peak_committed_bytes == row.capacity);
    CHECK(moved.figures.moved_blocks > 0);
    CHECK(moved.losses == roomy.losses);
    CHECK(moved.gradients == roomy.gradients);
    CHECK(moved.state == roomy.state);
    CHECK(run_moved(row.run, dry(thimble::cpu), tight).figures == moved.figures);
  }
}

TEST_CASE("compaction training: figures", "[.benchmark]") {
  struct Row {
    const char* model;
    std::int64_t batch;
  };
  constexpr std::size_t granule = std::size_t{2} << 20;
  for (const Row row :
       {Row{"resnet18", 8}, Row{"resnet18", 32}, Row{"resnet50", 32}, Row{"char-gpt", 32}, Row{"gpt2", 4}}) {
    thimble::bench::Setup setup;
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
    std::printf("%s, batch %d: load %s, committed without compaction %s, smallest arena with it %s (%s in two steps)\n",
                row.model, static_cast<int>(row.batch), memory::human_bytes(roomy.peak_allocated_bytes).c_str(),
                memory::human_bytes(roomy.peak_committed_bytes).c_str(), memory::human_bytes(high * granule).c_str(),
                memory::compaction_to_string(smallest).c_str());
    CHECK(high * granule <= roomy.peak_committed_bytes);
  }
}
