#pragma once
// The library's threads (core/threads/parallel.cpp). Results and borders of grains do not depend on their number.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace thimble {

/// Number of threads that kernels use. Defaults to OMP_NUM_THREADS, or the processors that the process may use
/// (core/threads/cpu_quota.h). Workspaces depend on it: kernels::describe_compute() names it.
int thread_count() noexcept;

/// Sets the number of threads (>= 1; may exceed the cores). Throws ValueError.
void set_thread_count(int threads);

/// A non-owning reference to a callable, so that parallel_for needs no allocation.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F, std::enable_if_t<!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>, int> = 0>
  FunctionRef(F&& f) noexcept  // NOLINT(google-explicit-constructor): a reference to any callable
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

/// Divides [0, count) into grains [0, grain), [grain, 2 grain), ..., and calls body(begin, end) for ranges of whole
/// grains, each grain exactly once, on up to thread_count() threads with at least one grain each. The thread that runs
/// a range is unspecified. The body must not throw or allocate. Nested calls run in the caller's thread.
void parallel_for(std::int64_t count, std::int64_t grain, FunctionRef<void(std::int64_t, std::int64_t)> body);

/// Calls body(t) once for each t in [0, threads), not always concurrently; for kernels with a workspace per thread.
void parallel_threads(int threads, FunctionRef<void(int)> body);

/// The stack of each worker, which memory/process/outside.h counts. The largest frame of a kernel has 140 KiB.
inline constexpr std::size_t worker_stack_bytes = std::size_t{512} << 10;

}  // namespace thimble
