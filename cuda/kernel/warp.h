#pragma once
// A kernel written for warps: its lanes, addresses in shared memory, and loads that go there past registers.
//
// Glossary
// - chunk: 16 bytes, eight elements of 16 bits.
//
// Policy
// - On the host (tests/emulated/warp.h) an asynchronous load happens when it is waited for, and until then its
//   destination holds NaN and must not be touched: this finds a kernel that does not wait.

#include <cstdint>

#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

/// An address in shared memory.
using SharedAddress = std::uint32_t;

struct Warp {
  THIMBLE_DEVICE explicit Warp(const TeamPart& team) : rank(team.rank() / 32), lane(team.rank() % 32) {}
  int rank;  ///< of the warp in its team
  int lane;  ///< of this thread in its warp
};

}  // namespace thimble::cuda_kernels

#if defined(__CUDACC__)
#define THIMBLE_UNROLL _Pragma("unroll")
#define THIMBLE_ROLLED _Pragma("unroll 1")

namespace thimble::cuda_kernels {

template <class T>
__device__ inline SharedAddress shared_address(Shared<T> place) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(place));
}
__device__ inline float load_shared(SharedAddress from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
/// One chunk.
__device__ inline void store_shared(SharedAddress to, const std::uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

/// Running loads into shared memory.
struct AsyncLoads {
  /// Zeros where the source is missing; `from` must be a valid address all the same.
  template <int bytes>
  __device__ void load(SharedAddress to, const void* from, bool is_there) {
    const int count = is_there ? bytes : 0;
    if constexpr (bytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
    } else {
      static_assert(bytes == 4);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
    }
  }
  /// Waits for this thread's loads; a barrier makes the others' visible.
  __device__ void wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
};

/// The value of lane ^ mask.
template <class V>
__device__ inline V exchange(V value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

}  // namespace thimble::cuda_kernels

#else
#define THIMBLE_UNROLL
#define THIMBLE_ROLLED
#include <emulated/warp.h>
#endif
