#include "heap_watch.h"

#if defined(THIMBLE_TEST_WATCHES_HEAP)

#include <malloc.h>

#include <atomic>
#include <cerrno>

#include <thimble/core/launch/launch.h>
#include <thimble/core/threads/parallel.h>

namespace heap_watch {

std::atomic<bool> is_watching{false};
std::atomic<int> offences{0};
std::atomic<std::size_t> largest_offence{0};
std::atomic<long> calls{0};

void watch(std::size_t bytes) noexcept {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (!is_watching.load(std::memory_order_relaxed) || bytes <= allowed_bytes || !thimble::is_any_thread_launching()) {
    return;
  }
  offences.fetch_add(1);
  if (bytes > largest_offence) largest_offence = bytes;
}

long heap_calls() noexcept { return calls; }

Watch::Watch() {
  // The first call that needs threads creates them.
  thimble::parallel_threads(thimble::thread_count(), [](int) {});
  offences = 0;
  largest_offence = 0;
  is_watching = true;
}
Watch::~Watch() { is_watching = false; }
int Watch::count() const noexcept { return offences; }
std::size_t Watch::largest() noexcept { return largest_offence; }

}  // namespace heap_watch

using heap_watch::allowed_bytes;
using heap_watch::watch;

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  watch(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  watch(bytes != 0 && count > allowed_bytes / bytes ? allowed_bytes + 1 : count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, std::size_t bytes) noexcept {
  watch(bytes);
  return __libc_realloc(block, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  watch(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  watch(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) noexcept {
  if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  watch(bytes);
  void* const made = __libc_memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *block = made;
  return 0;
}
}  // extern "C"

#endif
