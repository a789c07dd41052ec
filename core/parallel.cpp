#include <thimble/core/parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include <thimble/core/error.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace thimble {
namespace parallel_detail {

int machine_threads() noexcept {
#if defined(_OPENMP)
  const int processors = omp_get_num_procs();                                  // honours the process's affinity mask
  const int hardware = static_cast<int>(std::thread::hardware_concurrency());  // 0: unknown
  const int cores = std::max(1, hardware > 0 ? std::min(processors, hardware) : processors);
  return std::getenv("OMP_NUM_THREADS") ? std::max(1, omp_get_max_threads()) : cores;
#else
  return 1;
#endif
}

std::atomic<int>& chosen_threads() noexcept {
  static std::atomic<int> threads{machine_threads()};
  return threads;
}

bool is_inside_parallel_region() noexcept {
#if defined(_OPENMP)
  return omp_in_parallel() != 0;
#else
  return false;
#endif
}

}  // namespace parallel_detail

int thread_count() noexcept { return parallel_detail::chosen_threads().load(std::memory_order_relaxed); }

void set_thread_count(int threads) {
  if (threads < 1) {
    throw ValueError("set_thread_count: " + std::to_string(threads) + " threads, allowed are 1 and more");
  }
  parallel_detail::chosen_threads().store(threads, std::memory_order_relaxed);
}

void parallel_for(std::int64_t count, std::int64_t grain, FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t grains = (count - 1) / grain + 1;
  const int threads = static_cast<int>(std::min<std::int64_t>(thread_count(), grains));
  if (threads == 1 || parallel_detail::is_inside_parallel_region()) {
    body(0, count);
    return;
  }
  // Each thread gets one contiguous run of whole grains, so that neighbouring blocks stay in one cache.
  parallel_threads(threads, [&](int thread) {
    const std::int64_t share = grains / threads;
    const std::int64_t extra = grains % threads;
    const std::int64_t first = thread * share + std::min<std::int64_t>(thread, extra);
    const std::int64_t last = first + share + (thread < extra ? 1 : 0);
    body(first * grain, std::min(last * grain, count));
  });
}

void parallel_threads(int threads, FunctionRef<void(int)> body) {
#if defined(_OPENMP)
  if (threads > 1 && !omp_in_parallel()) {
#pragma omp parallel num_threads(threads)
    {
      // The runtime may grant fewer threads than asked for: the missing ones' work is done by those that came.
      const int granted = omp_get_num_threads();
      for (int thread = omp_get_thread_num(); thread < threads; thread += granted) body(thread);
    }
    return;
  }
#endif
  for (int thread = 0; thread < threads; ++thread) body(thread);
}

}  // namespace thimble
