#pragma once
// The device parts of cuda/kernel/kernel.h on the host: shared memory that checks its accesses, teams of as many
// threads as on a GPU, launches.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "emulated/block.h"

namespace thimble::cuda_kernels {

/// An element of shared memory.
template <class T>
class SharedElement {
 public:
  SharedElement(emulated::Block* block, std::uint32_t at) : block_(block), at_(at) {}
  SharedElement(const SharedElement&) = default;
  [[gnu::always_inline]] operator T() const {
    T value;
    std::memcpy(static_cast<void*>(&value), block_->read(at_, sizeof(T)), sizeof(T));
    return value;
  }
  [[gnu::always_inline]] const SharedElement& operator=(const T& value) const {
    std::memcpy(block_->write(at_, sizeof(T)), &value, sizeof(T));
    return *this;
  }
  [[gnu::always_inline]] const SharedElement& operator=(const SharedElement& other) const {
    return *this = static_cast<T>(other);
  }
  [[gnu::always_inline]] const SharedElement& operator+=(const T& value) const { return *this = *this + value; }
  [[gnu::always_inline]] const SharedElement& operator*=(const T& value) const { return *this = *this * value; }

 private:
  emulated::Block* block_;
  std::uint32_t at_;
};

/// A pointer to elements of shared memory.
template <class T>
class Shared {
 public:
  Shared(emulated::Block* block, std::uint32_t at) : block_(block), at_(at) {}
  template <class Index>
  [[gnu::always_inline]] SharedElement<T> operator[](Index i) const {
    return {block_, (*this + i).at_};
  }
  SharedElement<T> operator*() const { return {block_, at_}; }
  template <class Index>
  [[gnu::always_inline]] Shared operator+(Index i) const {
    return {block_,
            at_ + static_cast<std::uint32_t>(static_cast<std::int64_t>(i) * static_cast<std::int64_t>(sizeof(T)))};
  }
  emulated::Block* block() const { return block_; }
  std::uint32_t at() const { return at_; }

 private:
  emulated::Block* block_;
  std::uint32_t at_;
};

template <class U, class T>
U load_as(const Shared<T>& from) {
  return SharedElement<U>(from.block(), from.at());
}

class TeamPart {
 public:
  TeamPart(emulated::Block& block, int rank) : block_(&block), rank_(rank) {}
  int rank() const { return rank_; }
  void sync(const std::source_location& where = std::source_location::current()) { block_->sync(where); }
  template <class T>
  Shared<T> shared() const {
    if constexpr (sizeof(T) < 4) block_->remember_bytes();
    return {block_, 0};
  }

 protected:
  template <class T>
  Shared<T> slots() const {
    static_assert(sizeof(T) <= sizeof(double));
    return {block_, block_->slots_begin()};
  }

 private:
  emulated::Block* block_;
  int rank_;
};

template <class T, class Op>
T combine_warp(T value, Op op) {
  return emulated::Block::current().together<T>(value, [&](const T* in, T* out) {
    std::copy(in, in + 32, out);
    for (int step = 16; step > 0; step /= 2) {
      T before[32];
      std::copy(out, out + 32, before);
      for (int lane = 0; lane < 32; ++lane) out[lane] = op(before[lane], before[lane ^ step]);
    }
  });
}

template <class T>
void atomic_add(T* to, T value) {
  *to += value;
}
template <class T>
T atomic_fetch_add(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}

}  // namespace thimble::cuda_kernels

namespace thimble::emulated {

/// Number of launches, captured ones included, replayed ones not.
inline std::atomic<std::uint64_t> launches{0};
inline thread_local bool is_replaying = false;

/// Collects this thread's launches during a capture; null runs them.
inline thread_local std::vector<std::function<void()>>* captured_launches = nullptr;

template <class Run>
void launch(const Run& run) {
  if (!is_replaying) launches.fetch_add(1, std::memory_order_relaxed);
  if (captured_launches != nullptr) return captured_launches->push_back(run);
  run();
}

}  // namespace thimble::emulated

namespace thimble::cuda_kernels {

template <int N>
class Team;

template <class Body>
void for_each_item(std::int64_t n, const Body& body) {
  if (n <= 0) return;
  emulated::launch([n, body] { emulated::in_order(n, body); });
}

template <class Body>
void for_each_team(std::int64_t n, const Body& body, std::size_t shared_bytes = 0) {
  if (n <= 0) return;
  struct Call {
    Body body;
    std::int64_t n;
    static void run(const void* self, int rank, std::int64_t first, std::int64_t step) {
      const Call& call = *static_cast<const Call*>(self);
      Team<Body::threads> team(emulated::Block::current(), rank);
      run_team(team, call.body, first, step, call.n);
    }
  };
  emulated::launch([call = Call{body, n}, shared_bytes] {
    emulated::run({typeid(Body).name(), Body::threads, call.n, shared_bytes, Call::run, &call});
  });
}

}  // namespace thimble::cuda_kernels
