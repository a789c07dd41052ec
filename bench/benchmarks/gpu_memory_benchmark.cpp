// Rates of a device's memory: copies, page commits, and compaction, which slides blocks together by copying them or by
// remapping their pages (memory/arena/arena.h). Compaction runs on a prepared layout, in a trace of requests that
// leaves holes, and in training steps in the smallest arena that fits them.
//
//   gpu_memory_benchmark [DEVICE [MIB]]        (cuda, 1024; MiB to move, a multiple of 64)
//
// Lines are "name MiB ms GB/s ...". A copy counts bytes read plus bytes written; slides and pages count a block's bytes
// once. Each is the best of five. The trace and the steps run once: their time is wall time with a wait at the end,
// followed by compaction's time on the host and on the device. A line of steps also has the time of the same steps in
// an arena that moves nothing.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>

namespace {

using namespace thimble;
using Clock = std::chrono::steady_clock;

constexpr std::size_t mib = std::size_t{1} << 20;

void wait(memory::Device device) {
  if (device.is_cuda() && !device.is_dry) kernels::device_runtime(device).synchronize(device);
}

double ms_of(memory::Device device, const std::function<void()>& call) {
  wait(device);
  const Clock::time_point start = Clock::now();
  call();
  wait(device);
  const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
  return elapsed.count();
}

void report(const char* name, std::size_t bytes, double ms, const char* more = "") {
  std::printf("%-18s %6zu MiB %10.4f ms %9.1f GB/s%s\n", name, bytes / mib, ms, 1e-6 * static_cast<double>(bytes) / ms,
              more);
}

std::string moves_text(const memory::Arena::Statistics& figures) {
  char text[160];
  std::snprintf(text, sizeof text, "  compactions %zu, copied %zu B, remapped %zu B, host %.4f ms, device %.4f ms",
                static_cast<std::size_t>(figures.compaction_count),
                static_cast<std::size_t>(figures.moved_bytes - figures.remapped_bytes),
                static_cast<std::size_t>(figures.remapped_bytes), figures.compaction_time.ms, figures.device_time.ms);
  return text;
}

void copies_and_pages(memory::Device device, std::size_t bytes) {
  const std::unique_ptr<memory::Backing> backing = memory::make_backing(device);
  if (backing->reserve(2 * bytes) == nullptr) throw DeviceError("gpu_memory_benchmark: no addresses");
  double commit = 1e30, decommit = 1e30, copy = 1e30, fill = 1e30;
  for (int i = 0; i < 5; ++i) {
    commit = std::min(commit, ms_of(device, [&] {
                        const std::errc error = backing->commit(0, 2 * bytes);
                        if (error != std::errc{}) throw DeviceError("commit: " + backing->refusal_text(error));
                      }));
    fill = std::min(fill, ms_of(device, [&] { backing->fill(0, 2 * bytes, std::byte{1}, nullptr); }));
    copy = std::min(copy, ms_of(device, [&] { backing->move(0, bytes, bytes, nullptr); }));
    decommit = std::min(decommit, ms_of(device, [&] { backing->decommit(0, 2 * bytes); }));
  }
  report("copy", 2 * bytes, copy);
  report("fill", 2 * bytes, fill);
  report("commit", 2 * bytes, commit);
  report("decommit", 2 * bytes, decommit);
}

/// Frees every second block, so that the others slide over the holes.
void slide(const char* name, memory::Device device, std::size_t bytes, std::size_t block, std::size_t hole,
           bool by_pages) {
  double best = 1e30;
  memory::Arena::Statistics figures;
  for (int round = 0; round < 5; ++round) {
    memory::Arena arena(memory::make_backing(device), {.reserve_bytes = 4 * bytes,
                                                       .compaction = memory::Arena::Compaction::never,
                                                       .remap_from_bytes = by_pages ? block : 0});
    std::vector<memory::Block*> stay, go;
    for (std::size_t at = 0; at < bytes; at += block) {
      go.push_back(arena.allocate({.bytes = hole}));
      stay.push_back(arena.allocate({.bytes = block}));
    }
    for (memory::Block* const b : go) arena.deallocate(b, nullptr);
    const double ms = ms_of(device, [&] { arena.compact(); });
    if (ms < best) figures = arena.statistics();
    best = std::min(best, ms);
    for (memory::Block* const b : stay) arena.deallocate(b, nullptr);
  }
  report(name, bytes, best, moves_text(figures).c_str());
}

/// Allocates and frees blocks of all sizes near the capacity: requests find the bytes free but in no one hole.
void trace(memory::Device device, std::size_t bytes) {
  memory::Arena arena(memory::make_backing(device), {.capacity_bytes = bytes});
  std::mt19937 random(11);
  const auto draw = [&](std::size_t below) { return static_cast<std::size_t>(random()) % below; };
  std::vector<memory::Block*> live;
  const auto free_one = [&] {
    const std::size_t which = draw(live.size());
    arena.deallocate(live[which], nullptr);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
  };
  const double ms = ms_of(device, [&] {
    for (int i = 0; i < 1000; ++i) {
      if (i % 100 == 99) arena.safe_point();
      const std::size_t whole = bytes / 8 >> draw(10), wanted = whole / 2 + draw(whole / 2);
      while (arena.statistics().allocated_bytes + wanted > bytes / 16 * 15) free_one();
      try {
        live.push_back(arena.allocate({.bytes = wanted}));
      } catch (const OutOfMemory&) {  // alignment took the rest
        if (!live.empty()) free_one();
      }
    }
  });
  const memory::Arena::Statistics figures = arena.statistics();
  report("trace", figures.moved_bytes, ms, moves_text(figures).c_str());
  while (!live.empty()) free_one();
}

constexpr int training_steps = 3;

/// The arena's statistics after training steps, and their milliseconds; both are zero if the arena is too small.
std::pair<memory::Arena::Statistics, double> train(const models::Setup& setup, memory::Device device,
                                                   const memory::Arena::Options& arena) {
  const memory::Stack stack = memory::make_resource(device, {.arena = arena});
  const ResourceScope scope(stack.top);
  try {
    const auto run = models::random_run(setup)(device);
    run->step();  // warm-up: loads libraries, makes optimizer state
    const double ms = ms_of(device, [&] {
      for (int i = 0; i < training_steps; ++i) run->step();
    });
    return {stack.arena->statistics(), ms};
  } catch (const OutOfMemory&) {
    return {};
  }
}

/// Trains in the smallest arena that suffices with compaction; dry runs find it by bisection.
void training(memory::Device device, const char* model, std::int64_t batch) {
  models::Setup setup;
  setup.model = model;
  setup.batch = batch;
  const memory::Arena::Options roomy{.compaction = memory::Arena::Compaction::never};
  const memory::Arena::Statistics all = train(setup, dry(device), roomy).first;
  const std::size_t granule = std::size_t{2} << 20;
  std::size_t low = all.peak_allocated_bytes / granule, high = all.peak_committed_bytes / granule;
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    const bool is_enough = train(setup, dry(device), {.capacity_bytes = middle * granule}).first.allocation_count > 0;
    (is_enough ? high : low) = middle;
  }
  const double ms_roomy = train(setup, device, roomy).second;
  const auto [figures, ms] = train(setup, device, {.capacity_bytes = high * granule});
  char more[128];
  std::snprintf(more, sizeof more, ", in %zu MiB instead of %zu; %.4f ms there", high * granule / mib,
                all.peak_committed_bytes / mib, ms_roomy);
  report((std::string("train_") + model).c_str(), figures.moved_bytes, ms, (moves_text(figures) + more).c_str());
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const memory::Device device = parse_device(count > 1 ? arguments[1] : "cuda");
    const long long size = count > 2 ? std::atoll(arguments[2]) : 1024;
    if (size < 64 || size % 64 != 0)
      throw ValueError("MIB: " + std::string(arguments[2]) + "; expected multiples of 64");
    const std::size_t bytes = static_cast<std::size_t>(size) * mib;
    copies_and_pages(device, bytes);
    slide("slide_far", device, bytes, 64 * mib, 64 * mib, false);
    slide("slide_near", device, bytes, 64 * mib, mib, false);  // overlaps: goes through the bounce buffer
    if (memory::make_backing(device)->can_remap()) slide("slide_pages", device, bytes, 64 * mib, 64 * mib, true);
    trace(device, bytes);
    const std::int64_t batch = std::max<std::int64_t>(2, 32 * size / 1024);
    for (const char* const model : {"char-gpt", "resnet18"}) training(device, model, batch);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "gpu_memory_benchmark: %s\n", error.what());
    return 2;
  }
}
