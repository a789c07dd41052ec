#include <thimble/memory/summary.h>

#include <algorithm>
#include <cstdio>

#include <thimble/memory/offload/pinned_tier.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/units.h>

namespace thimble::memory {

std::string compaction_to_string(const Arena::Statistics& statistics) {
  char ms[128];
  const MoveTime& device = statistics.device_time;
  if (device.ms == 0 && device.unknown_moves == 0) {
    std::snprintf(ms, sizeof ms, "%.2f ms", statistics.compaction_time.ms);
  } else {
    std::snprintf(ms, sizeof ms, "%.2f ms of the host, copies in %.2f ms of the device%s",
                  statistics.compaction_time.ms, device.ms,
                  device.unknown_moves > 0 ? " so far, which is not known to be done" : "");
  }
  return std::to_string(statistics.compaction_count) + " compactions moved " + std::to_string(statistics.moved_blocks) +
         " blocks, " + exact_bytes(statistics.moved_bytes) +
         (statistics.remapped_bytes > 0
              ? " (" + exact_bytes(statistics.remapped_bytes) + " with their pages, " +
                    exact_bytes(statistics.moved_bytes - statistics.remapped_bytes) + " copied)"
              : "") +
         ", in " + ms;
}

std::string to_string(const Arena::Statistics& statistics) {
  char percent[64];
  std::snprintf(percent, sizeof percent, "fragmentation %.1f %% now, %.1f %% at the peak",
                100 * statistics.fragmentation, 100 * statistics.peak_fragmentation);
  return "  arena: " + std::to_string(statistics.live_blocks) + " blocks, allocated " +
         exact_bytes(statistics.allocated_bytes) + ", height " + exact_bytes(statistics.height_bytes) + ", committed " +
         exact_bytes(statistics.committed_bytes) + "\n  arena at the peak: allocated " +
         exact_bytes(statistics.peak_allocated_bytes) + ", height " + exact_bytes(statistics.peak_height_bytes) +
         ", committed " + exact_bytes(statistics.peak_committed_bytes) + " of " +
         exact_bytes(statistics.capacity_bytes) + "\n  " + percent + ", largest free block " +
         exact_bytes(statistics.largest_free_bytes) + "\n  arena: " + compaction_to_string(statistics) + "\n";
}

DeviceUse device_use(Device device, std::size_t arena_bytes) {
  const kernels::DeviceMemory memory = kernels::device_runtime(device).memory(device);
  const std::size_t used = memory.used_bytes();
  const std::size_t outside = used > arena_bytes ? used - arena_bytes : 0;
  return {memory.total_bytes, used, memory.context_bytes, outside, memory.handle_bytes};
}

std::int64_t unbooked_bytes(const DeviceUse& before, const DeviceUse& after, std::size_t arena_bytes) {
  const auto of = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes); };
  const std::int64_t risen = of(after.used_bytes) - of(before.used_bytes);
  return risen - (of(after.handle_bytes) - of(before.handle_bytes)) - of(arena_bytes);
}

std::string to_string(const DeviceUse& use) {
  return "used " + human_bytes(use.used_bytes) + " of " + human_bytes(use.total_bytes) + ", outside of arenas " +
         human_bytes(use.outside_bytes) + ", before the first page " + human_bytes(use.context_bytes);
}

std::string to_string(const kernels::LibraryUse& use) {
  const auto text = [](const char* name, const kernels::LibraryCounts& counts) {
    return std::string(name) + " made " + std::to_string(counts.calls) + " calls and refused " +
           std::to_string(counts.refusals) +
           (counts.first_refused.empty() ? "" : ", the first: " + counts.first_refused);
  };
  return text("cuBLASLt", use.cublaslt) + "; " + text("cuDNN", use.cudnn);
}

std::string summary(Device device) {
  const Stack& stack = default_stack(device);
  const Arena::Statistics statistics = stack.arena->statistics();
  std::string text = stack.ledger->summary() + committed_table(stack) + to_string(statistics);
  if (stack.ledger->max_allocated() == 0) {
    text += "  nothing was taken from the default resource of " + to_string(device) +
            ": a run in an arena of its stack (memory::Stack, nn::Trainer::memory) has its bytes there\n";
  }
  if (!device.is_cuda()) return text;
  const Ledger& pinned = *pinned_ledger(device);
  text += "  offloaded to the host's pinned memory: " + exact_bytes(pinned.bytes()) + ", at the peak " +
          exact_bytes(pinned.max_allocated()) + "\n";
  if (device.is_dry) return text;
  const DeviceUse use = device_use(device, statistics.committed_bytes);
  return text + "  device: " + to_string(use) + "\n  handles of libraries: " + human_bytes(use.handle_bytes) +
         "\n  libraries: " + to_string(kernels::device_runtime(device).library_use()) + "\n";
}

std::size_t max_allocated(Device device) { return default_stack(device).ledger->max_allocated(); }

void reset_peak(Device device) {
  const Stack& stack = default_stack(device);
  stack.arena->trim();
  stack.arena->reset_peak();
  stack.ledger->reset_peak();
  if (device.is_cuda()) pinned_ledger(device)->reset_peak();
}

std::size_t safe_point(Device device) { return default_stack(device).arena->safe_point(); }

std::size_t compact(Device device) { return default_stack(device).arena->compact(); }

Arena::Statistics statistics(Device device) { return default_stack(device).arena->statistics(); }

CommittedParts committed_parts(std::size_t live_bytes, std::size_t height_bytes, std::size_t committed_bytes) noexcept {
  const std::size_t top = std::max(live_bytes, std::min(height_bytes, committed_bytes));
  return {live_bytes, top - live_bytes, std::max(top, committed_bytes) - top};
}

CommittedParts committed_now(const Stack& stack) {
  const Arena::Statistics arena = stack.arena->statistics();
  return committed_parts(stack.ledger->bytes(), arena.height_bytes, arena.committed_bytes);
}

CommittedParts committed_at_peak(const Stack& stack) {
  const Arena::Statistics arena = stack.arena->statistics();
  return committed_parts(stack.ledger->max_allocated(), arena.peak_height_bytes, arena.peak_committed_bytes);
}

std::string committed_table(const Stack& stack) {
  const CommittedParts now = committed_now(stack), peak = committed_at_peak(stack);
  std::string text;
  const auto line = [&](const char* name, std::size_t bytes_now, std::size_t bytes_at_peak) {
    char row[256];
    std::snprintf(row, sizeof row, "  %-32s %32s %32s\n", name, exact_bytes(bytes_now).c_str(),
                  exact_bytes(bytes_at_peak).c_str());
    text += row;
  };
  line("committed: all live bytes", now.live_bytes, peak.live_bytes);
  line("+ holes between blocks", now.hole_bytes, peak.hole_bytes);
  line("+ rounding to granules, free", now.rounding_bytes, peak.rounding_bytes);
  line("= committed", now.total(), peak.total());
  return text;
}

}  // namespace thimble::memory
