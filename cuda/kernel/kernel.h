#pragma once
// How a CUDA kernel is written here. Its body is a struct with operator(), its members are its arguments:
//
//   item     struct Body { ...; THIMBLE_DEVICE void operator()(std::int64_t i) const; };
//            for_each_item(n, Body{...});      one thread for each i < n, in any order
//   team     struct Body { static constexpr int threads = 256; ...;
//                          template <class Team> THIMBLE_DEVICE void operator()(Team& team, std::int64_t i) const; };
//            for_each_team(n, Body{...}, shared_bytes);      `threads` threads together for each i < n
//
// Policy
// - Under nvcc a body becomes a kernel on the compute stream of the launching device. Compiled as C++ the same body
//   runs on the host, a team as a few contexts that switch at barriers: the tests hold every body against the CPU's
//   kernels on machines without a GPU (tests/emulated). So a body reads the size of its team from Team::size.
// - A barrier that is missing, or that not all threads come to, is caught there; warps, memory spaces and launch limits
//   are not. Launches that are recorded there (core/launch/launch_graph.h) are kept with copies of their bodies, and
//   run when the recording is replayed.
// - Sums over a team are taken in a fixed order.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <thimble/core/config.h>

#if defined(__CUDACC__)
#define THIMBLE_DEVICE __device__
#define THIMBLE_DEVICE_GLOBAL __device__
#include <thimble/cuda/runtime/stream.h>
#else
#define THIMBLE_DEVICE
#define THIMBLE_DEVICE_GLOBAL
#include <ucontext.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>
#endif

namespace thimble::cuda_kernels {

/// The largest of two; NaN is larger than all.
template <class T>
THIMBLE_DEVICE inline T larger_of(T a, T b) {
  return b > a || b != b ? b : a;
}

#if defined(__CUDACC__)

template <int N>
class Team {
 public:
  static constexpr int size = N;
  static_assert(N % 32 == 0 && N <= 1024);

  __device__ explicit Team(std::byte* shared) : shared_(shared) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ void sync() { __syncthreads(); }
  /// The bytes that for_each_team was asked for, aligned to 16.
  template <class T>
  __device__ T* shared() const {
    return reinterpret_cast<T*>(shared_);
  }

  /// The sum of all threads' values: lanes of a warp pairwise, then warps in order. Every thread gets it.
  template <class T>
  __device__ T sum(T value) {
    return combine(value, [](T a, T b) { return a + b; });
  }
  template <class T>
  __device__ T max(T value) {
    return combine(value, [](T a, T b) { return larger_of(a, b); });
  }

 private:
  template <class T, class Op>
  __device__ T combine(T value, Op op) {
    __shared__ double slots[32];  // 8 bytes each, for any T
    static_assert(sizeof(T) <= sizeof(double));
    T* const values = reinterpret_cast<T*>(slots);
    for (int step = 16; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();  // the slots may still be read by the call before
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value;
    __syncthreads();
    T total = values[0];
    for (int warp = 1; warp < N / 32; ++warp) total = op(total, values[warp]);
    return total;
  }

  std::byte* shared_;
};

template <class T>
__device__ inline void atomic_add(T* to, T value) {
  static_assert(sizeof(T) == 8 && std::is_integral_v<T>);
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
/// The value before.
template <class T>
__device__ inline T atomic_fetch_add(T* to, T value) {
  static_assert(sizeof(T) == 8 && std::is_integral_v<T>);
  return static_cast<T>(atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value)));
}

namespace kernel_detail {

inline constexpr int item_threads = 256;

template <class Body>
__global__ void __launch_bounds__(item_threads) run_items(std::int64_t n, const Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * item_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * item_threads + threadIdx.x; i < n; i += step) body(i);
}

template <class Body>
__global__ void __launch_bounds__(Body::threads) run_teams(std::int64_t n, const Body body) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Team<Body::threads> team(reinterpret_cast<std::byte*>(shared_bytes));
  for (std::int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    body(team, i);
    team.sync();  // the next one uses the same shared memory
  }
}

inline unsigned grid(std::int64_t blocks) { return static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff); }

}  // namespace kernel_detail

template <class Body>
void for_each_item(std::int64_t n, const Body& body) {
  if (n <= 0) return;
  const std::int64_t blocks = (n + kernel_detail::item_threads - 1) / kernel_detail::item_threads;
  kernel_detail::run_items<<<kernel_detail::grid(blocks), kernel_detail::item_threads, 0, gpu::compute_stream()>>>(
      n, body);
  gpu::check_launch(n, kernel_detail::item_threads, 0);
}

template <class Body>
void for_each_team(std::int64_t n, const Body& body, std::size_t shared_bytes = 0) {
  if (n <= 0) return;
  const cudaStream_t stream = gpu::compute_stream();    // its device is the current one now
  if (shared_bytes > gpu::plain_shared_bytes - 1024) {  // its own slots, less than that, count too
    gpu::allow_shared_bytes(reinterpret_cast<const void*>(kernel_detail::run_teams<Body>), shared_bytes);
  }
  kernel_detail::run_teams<<<kernel_detail::grid(n), Body::threads, shared_bytes, stream>>>(n, body);
  gpu::check_launch(n, Body::threads, shared_bytes);
}

#else  // the host's emulation

/// How many launches there were, recorded ones included; what a replay runs is none.
inline std::atomic<std::uint64_t> launches{0};
inline thread_local bool is_replaying = false;
inline void count_launch() {
  if (!is_replaying) launches.fetch_add(1, std::memory_order_relaxed);
}

/// Where this thread's launches go while they are recorded; null: they are run.
inline thread_local std::vector<std::function<void()>>* recorded_launches = nullptr;

/// What the threads of a team share. They are contexts of one host thread that take turns: each runs up to its next
/// barrier, then the next one does. So a read that a missing barrier lets come too early finds old values every time.
template <int N>
struct TeamState {
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10;
  ucontext_t host, threads[N];
  std::int64_t barriers[N] = {};  ///< that each thread has come to
  double slots[N] = {};
  std::unique_ptr<double[]> shared;

  void leave(int rank) { swapcontext(&threads[rank], &threads[(rank + 1) % N]); }
};

/// A team of four threads, whatever number the GPU would take.
template <int N>
class Team {
 public:
  static constexpr int size = N < 4 ? N : 4;

  Team(TeamState<size>& state, int rank) : state_(state), rank_(rank) {}
  int rank() const { return rank_; }
  void sync() {
    ++state_.barriers[rank_];
    state_.leave(rank_);
  }
  template <class T>
  T* shared() const {
    return reinterpret_cast<T*>(state_.shared.get());
  }
  template <class T>
  T sum(T value) {
    return combine(value, [](T a, T b) { return a + b; });
  }
  template <class T>
  T max(T value) {
    return combine(value, [](T a, T b) { return larger_of(a, b); });
  }

 private:
  template <class T, class Op>
  T combine(T value, Op op) {
    static_assert(sizeof(T) <= sizeof(double));
    T* const values = reinterpret_cast<T*>(state_.slots);
    sync();
    values[rank_] = value;
    sync();
    T total = values[0];
    for (int i = 1; i < size; ++i) total = op(total, values[i]);
    return total;
  }

  TeamState<size>& state_;
  int rank_;
};

template <class T>
inline void atomic_add(T* to, T value) {
  *to += value;
}
template <class T>
inline T atomic_fetch_add(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}

/// Items run backwards, so that one that needs another's result is found.
template <class Body>
void for_each_item(std::int64_t n, const Body& body) {
  if (n <= 0) return;
  count_launch();
  if (recorded_launches != nullptr) return recorded_launches->push_back([n, body] { for_each_item(n, body); });
  for (std::int64_t i = n; i-- > 0;) body(i);
}

namespace kernel_detail {

/// One launch of teams, and the thread of them that is to start.
template <class Body>
struct TeamRun {
  static constexpr int size = Team<Body::threads>::size;
  const Body* body;
  std::int64_t n;
  TeamState<size> state;
  inline static thread_local TeamRun* current = nullptr;
  inline static thread_local int starting = 0;

  static void run() {
    TeamRun& all = *current;
    const int rank = starting++;
    Team<Body::threads> team(all.state, rank);
    for (std::int64_t i = all.n; i-- > 0;) {
      (*all.body)(team, i);
      team.sync();
    }
    if (all.state.barriers[rank] != all.state.barriers[0]) std::abort();  // not all threads come to all barriers
    if (rank + 1 < size) setcontext(&all.state.threads[rank + 1]);
    setcontext(&all.state.host);
  }
};

}  // namespace kernel_detail

template <class Body>
void for_each_team(std::int64_t n, const Body& body, std::size_t shared_bytes = 0) {
  if (n <= 0) return;
  count_launch();
  if (recorded_launches != nullptr) {
    return recorded_launches->push_back([n, body, shared_bytes] { for_each_team(n, body, shared_bytes); });
  }
  using Run = kernel_detail::TeamRun<Body>;
  static thread_local const auto stacks = std::make_unique<std::byte[]>(Run::size * TeamState<Run::size>::stack_bytes);
  const auto run = std::make_unique<Run>();
  run->body = &body;
  run->n = n;
  run->state.shared = std::make_unique<double[]>(shared_bytes / sizeof(double) + 1);
  Run::current = run.get();
  Run::starting = 0;
  for (int rank = 0; rank < Run::size; ++rank) {
    ucontext_t& thread = run->state.threads[rank];
    getcontext(&thread);
    thread.uc_stack.ss_sp = stacks.get() + static_cast<std::size_t>(rank) * TeamState<Run::size>::stack_bytes;
    thread.uc_stack.ss_size = TeamState<Run::size>::stack_bytes;
    thread.uc_link = nullptr;
    makecontext(&thread, Run::run, 0);
  }
  swapcontext(&run->state.host, &run->state.threads[0]);
}

#endif

}  // namespace thimble::cuda_kernels
