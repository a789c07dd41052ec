#pragma once
// How to write a CUDA kernel here. Its body is a struct with operator(), its members are its arguments:
//
//   item     struct Body { ...; THIMBLE_DEVICE void operator()(std::int64_t i) const; };
//            for_each_item(n, Body{...});      one thread for each i < n, in any order
//   team     struct Body { static constexpr int threads = 256; ...;
//                          template <class Team> THIMBLE_DEVICE void operator()(Team& team, std::int64_t i) const; };
//            for_each_team(n, Body{...}, shared_bytes);      `threads` threads together for each i < n
//
// Policy
// - Under nvcc a body becomes a kernel on the compute stream of the launching device. Compiled as C++, only in the
//   tests, the same body runs on the host: tests/emulated/kernel.h replaces the code between `#if` and `#else` here,
//   and finds races, barriers that some threads miss, and accesses behind a team's memory.
// - A body reaches shared memory through Shared<T>, which is a T* on a device and checks every access on the host.
// - Sums over a team have a fixed order.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>

#include <thimble/core/config.h>

#if defined(__CUDACC__)
#define THIMBLE_DEVICE __device__
#define THIMBLE_DEVICE_GLOBAL __device__
#include <thimble/cuda/runtime/stream.h>

namespace thimble::cuda_kernels {

template <class T>
using Shared = T*;

/// A thread's part of its block.
class TeamPart {
 public:
  __device__ explicit TeamPart(std::byte* shared) : shared_(shared) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ void sync() { __syncthreads(); }
  /// The shared bytes given to for_each_team, aligned to 16.
  template <class T>
  __device__ Shared<T> shared() const {
    return reinterpret_cast<T*>(shared_);
  }

 protected:
  /// 32 more elements in shared memory.
  template <class T>
  __device__ Shared<T> slots() const {
    __shared__ double all[32];
    static_assert(sizeof(T) <= sizeof(double));
    return reinterpret_cast<T*>(all);
  }

 private:
  std::byte* shared_;
};

/// Loads a U from `from`.
template <class U, class T>
__device__ inline U load_as(Shared<T> from) {
  return *reinterpret_cast<const U*>(from);
}

/// Combines the values of a warp's lanes pairwise. Every lane gets the result.
template <class T, class Op>
__device__ inline T combine_warp(T value, Op op) {
  for (int step = 16; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

template <class T>
__device__ inline void atomic_add(T* to, T value) {
  static_assert(sizeof(T) == 8 && std::is_integral_v<T>);
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
/// Returns the previous value.
template <class T>
__device__ inline T atomic_fetch_add(T* to, T value) {
  static_assert(sizeof(T) == 8 && std::is_integral_v<T>);
  return static_cast<T>(atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value)));
}

}  // namespace thimble::cuda_kernels

#else
#define THIMBLE_DEVICE
#define THIMBLE_DEVICE_GLOBAL
#include <emulated/kernel.h>
#endif

namespace thimble::cuda_kernels {

/// The largest of two; NaN is larger than all.
template <class T>
THIMBLE_DEVICE inline T larger_of(T a, T b) {
  return b > a || b != b ? b : a;
}

template <int N>
class Team : public TeamPart {
 public:
  static constexpr int size = N;
  static_assert(N % 32 == 0 && N <= 1024);
  using TeamPart::TeamPart;

  /// The sum of all threads' values: lanes of a warp pairwise, then warps in order. Every thread gets it.
  template <class T>
  THIMBLE_DEVICE T sum(T value) {
    return combine(value, [](T a, T b) { return a + b; });
  }
  template <class T>
  THIMBLE_DEVICE T max(T value) {
    return combine(value, [](T a, T b) { return larger_of(a, b); });
  }

 private:
  template <class T, class Op>
  THIMBLE_DEVICE T combine(T value, Op op) {
    const Shared<T> of_warps = slots<T>();
    value = combine_warp(value, op);
    sync();  // the previous call's slots may still be read
    if (rank() % 32 == 0) of_warps[rank() / 32] = value;
    sync();
    T total = of_warps[0];
    for (int warp = 1; warp < N / 32; ++warp) total = op(total, of_warps[warp]);
    return total;
  }
};

/// Runs i = first, first + step, ... below n in one block. On a GPU a block runs one i.
template <int N, class Body>
THIMBLE_DEVICE inline void run_team(Team<N>& team, const Body& body, std::int64_t first, std::int64_t step,
                                    std::int64_t n) {
  for (std::int64_t i = first; i < n; i += step) {
    body(team, i);
    team.sync();  // the next i uses the same shared memory
  }
}

#if defined(__CUDACC__)
namespace kernel_detail {

inline constexpr int item_threads = 256;
inline constexpr std::int64_t most_blocks = 0x7fffffff;  // per launch; any work that fits in memory takes one launch

template <class Body>
__global__ void __launch_bounds__(item_threads) run_items(std::int64_t first, std::int64_t n, const Body body) {
  const std::int64_t i = first + static_cast<std::int64_t>(blockIdx.x) * item_threads + threadIdx.x;
  if (i < n) body(i);
}

template <class Body>
__global__ void __launch_bounds__(Body::threads) run_teams(std::int64_t first, const Body body) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Team<Body::threads> team(reinterpret_cast<std::byte*>(shared_bytes));
  body(team, first + blockIdx.x);
}

/// launch(first, blocks) for all blocks.
template <class Launch>
void in_launches(std::int64_t blocks, const Launch& launch) {
  for (std::int64_t first = 0; first < blocks; first += most_blocks) {
    launch(first, static_cast<unsigned>(blocks - first < most_blocks ? blocks - first : most_blocks));
  }
}

}  // namespace kernel_detail

template <class Body>
void for_each_item(std::int64_t n, const Body& body) {
  using namespace kernel_detail;
  if (n <= 0) return;
  in_launches((n + item_threads - 1) / item_threads, [&](std::int64_t first, unsigned blocks) {
    run_items<<<blocks, item_threads, 0, gpu::compute_stream()>>>(first * item_threads, n, body);
    gpu::check_launch(n, item_threads, 0);
  });
}

template <class Body>
void for_each_team(std::int64_t n, const Body& body, std::size_t shared_bytes = 0) {
  using namespace kernel_detail;
  if (n <= 0) return;
  const cudaStream_t stream = gpu::compute_stream();    // makes its device the current one
  if (shared_bytes > gpu::plain_shared_bytes - 1024) {  // slots count too, and take less than this
    gpu::allow_shared_bytes(reinterpret_cast<const void*>(run_teams<Body>), shared_bytes);
  }
  in_launches(n, [&](std::int64_t first, unsigned blocks) {
    run_teams<<<blocks, Body::threads, shared_bytes, stream>>>(first, body);
    gpu::check_launch(n, Body::threads, shared_bytes);
  });
}
#endif

// ---- Kernels that pass results to each other in globals of the device.

/// Held while a call enqueues such kernels. Ranks that share a GPU launch from separate threads, and the kernels of two
/// calls must not interleave.
inline std::mutex launches_together;

}  // namespace thimble::cuda_kernels
