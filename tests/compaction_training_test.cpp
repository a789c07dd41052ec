// Moving every block of a training run changes no bit of it, and a dry run knows how many bytes move.

#include <cstdio>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/stack.h>

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

/// Peak of what a dry run commits, 0 when it does not fit.
std::size_t committed(const thimble::bench::Setup& setup, const Arena::Options& arena) {
  const Device device = dry(thimble::cpu);
  const memory::Stack stack = memory::make_resource(device, {.arena = arena});
  const thimble::ResourceScope scope(stack.top);
  try {
    const auto run = thimble::bench::training_run(setup)(device);
    for (int i = 0; i < 2; ++i) run->step();
  } catch (const thimble::OutOfMemory&) {
    return 0;
  }
  return stack.arena->statistics().peak_committed_bytes;
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

TEST_CASE("compaction training: less memory is enough, at the same bits", "[compaction]") {
  // A model whose height is several granules above its load, in the smallest arena that can hold the load.
  thimble::bench::Setup setup;
  setup.model = "char-gpt";
  setup.optimizer = "adamw";
  setup.batch = 4;
  setup.sizes.layers = 2, setup.sizes.width = 128, setup.sizes.heads = 4, setup.sizes.sequence = 64;
  const std::size_t height = committed(setup, {});
  std::size_t smallest = height;
  for (std::size_t capacity = height; capacity > 0; capacity -= std::size_t{2} << 20) {
    if (committed(setup, {.capacity_bytes = capacity}) == 0) break;
    smallest = capacity;
  }
  std::printf("height %zu smallest %zu\n", height, smallest);
}

TEST_CASE("compaction training: figures", "[.benchmark]") {
  for (const char* model : {"resnet50", "resnet18", "gpt2", "char-gpt"}) {
    thimble::bench::Setup setup;
    setup.model = model;
    setup.batch = std::string(model) == "gpt2" ? 4 : 32;
    const std::size_t height = committed(setup, {.compaction = Arena::Compaction::never});
    const memory::Stack stack = memory::make_resource(dry(thimble::cpu));
    {
      const thimble::ResourceScope scope(stack.top);
      const auto run = thimble::bench::training_run(setup)(dry(thimble::cpu));
      for (int i = 0; i < 2; ++i) run->step();
    }
    const std::size_t load = stack.arena->statistics().peak_allocated_bytes;
    std::size_t low = load, high = height;
    while (high - low > std::size_t{2} << 20) {
      const std::size_t middle = low + (high - low) / 2;
      (committed(setup, {.capacity_bytes = middle}) != 0 ? high : low) = middle;
    }
    std::printf("%s: load %s, height %s, smallest with compaction %s\n", model, memory::exact_bytes(load).c_str(),
                memory::exact_bytes(height).c_str(), memory::exact_bytes(high).c_str());
    CHECK(high <= height);
  }
}
