// A device's memory: what a copy reaches, what pages cost, and what it costs to slide blocks together, by copies and by
// their pages (memory/arena.h).
//
//   gpu_memory_benchmark [DEVICE [MIB]]        (cuda, 1024: of what is moved; a multiple of 64)
//
// Lines are "name unit ms figure GB/s ...". A copy counts what it reads and what it writes; slides and pages count the
// bytes of blocks once. Each is the best of five.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/memory/arena.h>

namespace {

using namespace thimble;
using Clock = std::chrono::steady_clock;

constexpr std::size_t mib = std::size_t{1} << 20;

void wait(Device device) {
  if (device.is_cuda()) kernels::device_runtime(device).synchronize(device);
}

double ms_of(Device device, const std::function<void()>& call) {
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

void copies_and_pages(Device device, std::size_t bytes) {
  const std::unique_ptr<Backing> backing = make_backing(device);
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

/// Every second of these blocks is freed, and the others slide over the holes.
void slide(const char* name, Device device, std::size_t bytes, std::size_t block, std::size_t hole, bool by_pages) {
  double best = 1e30;
  Arena::Statistics figures;
  for (int round = 0; round < 5; ++round) {
    Arena arena(
        make_backing(device),
        {.reserve_bytes = 4 * bytes, .compaction = Arena::Compaction::never, .remap_from_bytes = by_pages ? block : 0});
    std::vector<Block*> stay, go;
    for (std::size_t at = 0; at < bytes; at += block) {
      go.push_back(arena.allocate({.bytes = hole}));
      stay.push_back(arena.allocate({.bytes = block}));
    }
    for (Block* const b : go) arena.deallocate(b, nullptr);
    best = std::min(best, ms_of(device, [&] { arena.compact(); }));
    figures = arena.statistics();
    for (Block* const b : stay) arena.deallocate(b, nullptr);
  }
  char more[96];
  std::snprintf(more, sizeof more, "  copied %zu B, remapped %zu B",
                static_cast<std::size_t>(figures.moved_bytes - figures.remapped_bytes),
                static_cast<std::size_t>(figures.remapped_bytes));
  report(name, bytes, best, more);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const Device device = parse_device(count > 1 ? arguments[1] : "cuda");
    const long long size = count > 2 ? std::atoll(arguments[2]) : 1024;
    if (size < 64 || size % 64 != 0)
      throw ValueError("MIB: " + std::string(arguments[2]) + "; multiples of 64 are allowed");
    const std::size_t bytes = static_cast<std::size_t>(size) * mib;
    copies_and_pages(device, bytes);
    slide("slide_far", device, bytes, 64 * mib, 64 * mib, false);
    slide("slide_near", device, bytes, 64 * mib, mib, false);  // through the bounce
    if (make_backing(device)->can_remap()) slide("slide_pages", device, bytes, 64 * mib, 64 * mib, true);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "gpu_memory_benchmark: %s\n", error.what());
    return 2;
  }
}
