#include <thimble/memory/process/outside.h>

#include <malloc.h>
#include <pthread.h>

#include <algorithm>

#include <thimble/core/numbers/integers.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>

namespace thimble::memory {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

/// Allocations after the base is measured that no other term counts: model and optimizer objects without their tensors,
/// a file being written, streams, texts.
constexpr std::size_t later_bytes = 1 * MiB;
constexpr std::size_t heap_step_bytes = 512 * KiB;
/// Bytes of a thread besides its stack: data and tables, and the first pages (132 KiB in glibc) of a separate heap.
constexpr std::size_t thread_tables_bytes = 32 * KiB, thread_heap_bytes = 160 * KiB;
constinit bool has_one_heap = false;  // set by bound_heap_and_stacks()
/// For threads that do not compute: tiers, signals, progress.
constexpr std::size_t other_stack_bytes = 256 * KiB;
/// A tape takes about 250 bytes per node, the arena's books 64 per block, storages and saved tensors the rest.
/// tests/memory/memory_outside_test.cpp compares it with real steps.
constexpr std::size_t node_bytes = 2 * KiB;
constexpr std::size_t event_bytes = 80, few_events = 8192;  // the first few_events fit into later_bytes

}  // namespace

ProcessBase ProcessBase::measure(std::size_t arena_bytes) {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  ProcessBase base;
  base.code_bytes = process::file_mapped_bytes();
  const std::size_t data = process::data_bytes();
  // More than the machine's memory is reserved and never filled, such as a sanitizer's shadow.
  const bool is_reserved = data > process::physical_bytes();
  const std::size_t writable = std::max(process::anonymous_rss_bytes(), is_reserved ? 0 : data);
  base.writable_bytes = writable - std::min(writable, arena_bytes);
  return base;
}

ProcessWatch::ProcessWatch(std::size_t arena_bytes) : base_(ProcessBase::measure(arena_bytes)) {
  if (!process::reset_peak_rss()) peak_before_ = process::peak_rss_bytes();
}

std::size_t ProcessWatch::peak_bytes() const {
  const std::size_t peak = process::peak_rss_bytes();
  return peak > peak_before_ ? peak : 0;
}

std::vector<std::pair<std::string_view, std::size_t>> OutsideBytes::parts() const {
  return {{"code", code}, {"heap", heap}, {"threads", threads}, {"nodes", nodes}, {"staging", staging}, {"data", data}};
}

OutsideBytes outside_bytes(const ProcessBase& base, const OutsideFacts& facts) {
  OutsideBytes outside;
  outside.code = base.code_bytes;
  const std::size_t held = facts.holds_data ? std::min(base.writable_bytes, facts.data) : 0;
  // Rounded, so that equal runs report equal bytes wherever the kernel puts their pages.
  outside.heap = round_up(base.writable_bytes - held + later_bytes, heap_step_bytes);
  const auto workers = static_cast<std::size_t>(std::max(0, facts.threads - 1));
  const std::size_t beside = thread_tables_bytes + (has_one_heap ? 0 : thread_heap_bytes);
  outside.threads = workers * (worker_stack_bytes + beside) +
                    static_cast<std::size_t>(facts.tier_threads) * (thread_stack_bytes() + beside);
  outside.nodes = facts.nodes * node_bytes + (facts.events - std::min(facts.events, few_events)) * event_bytes;
  outside.staging = facts.staging;
  outside.data = facts.data;
  return outside;
}

std::string to_string(const OutsideBytes& outside) {
  std::string list;
  for (const auto& [name, bytes] : outside.parts()) {
    if (bytes > 0) list += (list.empty() ? "" : ", ") + std::string(name) + " " + human_bytes(bytes);
  }
  return human_bytes(outside.total()) + (list.empty() ? "" : " (" + list + ")");
}

std::size_t thread_stack_bytes() noexcept {
  std::size_t bytes = 8 * MiB;
#if defined(__GLIBC__)
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) == 0) {
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
  }
#endif
  return bytes;
}

void bound_heap_and_stacks() noexcept {
#if defined(__GLIBC__)
  // A threshold that is set stops growing: larger blocks are always mapped separately, and unmapped when freed.
  mallopt(M_MMAP_THRESHOLD, 64 * KiB);
  mallopt(M_TRIM_THRESHOLD, 128 * KiB);
  has_one_heap = mallopt(M_ARENA_MAX, 1) == 1;  // a step's threads allocate nothing on the heap
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  if (pthread_attr_setstacksize(&attributes, other_stack_bytes) == 0) pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
#endif
}

}  // namespace thimble::memory
