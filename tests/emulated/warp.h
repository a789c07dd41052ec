#pragma once
// The device parts of cuda/kernel/words.h on the host.

#include "emulated/kernel.h"

namespace thimble::cuda_kernels {

template <class T>
SharedAddress shared_address(const Shared<T>& place) {
  return place.at();
}
inline float load_shared(SharedAddress from) { return SharedElement<float>(&emulated::Block::current(), from); }
inline void store_shared(SharedAddress to, const std::uint32_t (&words)[4]) {
  std::memcpy(emulated::Block::current().write(to, sizeof words), words, sizeof words);
}

/// Loads happen at the wait for them.
struct AsyncLoads {
  template <int bytes>
  void load(SharedAddress to, const void* from, bool is_there) {
    static_assert(bytes == 4 || bytes == 16);
    emulated::Block::current().load(to, is_there ? from : nullptr, bytes);
  }
  void wait(const std::source_location& where = std::source_location::current()) {
    emulated::Block::current().wait(where);
  }
};

template <class V>
V exchange(V value, int mask) {
  struct Input {
    V value;
    int mask;
  };
  return emulated::Block::current().together<V>(Input{value, mask}, [](const Input* in, V* out) {
    for (int lane = 0; lane < 32; ++lane) out[lane] = in[lane ^ in[lane].mask].value;
  });
}

}  // namespace thimble::cuda_kernels
