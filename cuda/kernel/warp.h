#pragma once
// A kernel that is written for warps: its lanes, the places of shared memory, and loads that go there past registers.
//
// Glossary
// - own lanes: the lanes of a warp that one context of a team runs. On a GPU a thread is one lane; on the host
//   (cuda/kernel/kernel.h) a context is a whole warp and does what its 32 lanes would do, one after the other. Code
//   that is written for each own lane is one source for both:
//       for (int i = 0; i < own_lanes; ++i) use(warp.lane(i), value[i]);
// - chunk: 16 bytes, eight elements of 16 bits.
//
// Policy
// - Asynchronous loads are made on the host when they are waited for, and until then their place holds NaN: a kernel
//   that does not wait, or that overwrites what another warp still reads, is found.

#include <cstdint>
#include <cstring>

#include <thimble/cuda/kernel/kernel.h>

#if defined(__CUDACC__)
#define THIMBLE_UNROLL _Pragma("unroll")
#define THIMBLE_ROLLED _Pragma("unroll 1")
#else
#define THIMBLE_UNROLL
#define THIMBLE_ROLLED
#endif

namespace thimble::cuda_kernels {

#if defined(__CUDACC__)

inline constexpr int own_lanes = 1;
/// A place in shared memory.
using SharedAddress = std::uint32_t;

struct Warp {
  template <int N>
  __device__ explicit Warp(const Team<N>& team) : rank(team.rank() / 32), lane_(team.rank() % 32) {}
  __device__ int lane(int) const { return lane_; }
  int rank;  ///< of the warp in its team

 private:
  int lane_;
};

__device__ inline SharedAddress shared_address(const void* place) {
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

/// Loads into shared memory that are under way.
struct AsyncLoads {
  /// Zeros where the source is not there; `from` must be a good address all the same.
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
  /// Until this thread's own are there; a barrier makes those of the others visible.
  __device__ void wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
};

/// to[lane] = from[lane ^ mask].
template <class V>
__device__ inline void exchange(V (&to)[1], const V (&from)[1], int mask) {
  to[0] = __shfl_xor_sync(0xffffffffu, from[0], mask);
}

#else  // the host's emulation

inline constexpr int own_lanes = 32;
using SharedAddress = std::byte*;

struct Warp {
  template <int N>
  explicit Warp(const Team<N>& team) : rank(team.rank()) {
    static_assert(N == 32 * Team<N>::size, "a context of the host is a warp");
  }
  int lane(int i) const { return i; }
  int rank;
};

inline SharedAddress shared_address(const void* place) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(place));
}
inline float load_shared(SharedAddress from) {
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline void store_shared(SharedAddress to, const std::uint32_t (&words)[4]) { std::memcpy(to, words, sizeof words); }

class AsyncLoads {
 public:
  template <int bytes>
  void load(SharedAddress to, const void* from, bool is_there) {
    std::memset(to, 0xFF, bytes);
    loads_.push_back({to, is_there ? from : nullptr, bytes});
  }
  void wait() {
    for (const Load& load : loads_) {
      if (load.from) {
        std::memcpy(load.to, load.from, load.bytes);
      } else {
        std::memset(load.to, 0, load.bytes);
      }
    }
    loads_.clear();
  }

 private:
  struct Load {
    SharedAddress to;
    const void* from;
    std::size_t bytes;
  };
  std::vector<Load> loads_;
};

template <class V>
inline void exchange(V (&to)[32], const V (&from)[32], int mask) {
  V copy[32];
  for (int lane = 0; lane < 32; ++lane) copy[lane] = from[lane ^ mask];
  for (int lane = 0; lane < 32; ++lane) to[lane] = copy[lane];
}

#endif

}  // namespace thimble::cuda_kernels
