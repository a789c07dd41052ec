#include <thimble/memory/policies/committed.h>

#include <algorithm>
#include <cstdio>

#include <thimble/memory/units.h>

namespace thimble::memory {

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
