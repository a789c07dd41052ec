#pragma once
// An allocator for single objects of one size that come and go all the time: handles, not tensor data.
//
// Policy
// - What is given back waits, up to `most` pieces for each thread, for the next object that this thread makes; the heap
//   is asked only beyond that. A thread's pieces go back to the heap when it ends.
// - With AddressSanitizer nothing waits, so that a late use is found.

#include <cstddef>
#include <new>

namespace thimble {
namespace recycled_detail {

/// Pieces of `bytes` bytes that wait in this thread.
template <std::size_t bytes>
class Bin {
 public:
  static constexpr std::size_t most = 1 << 14;

  static void* take() noexcept {
    if (is_gone() || here().first_ == nullptr) return nullptr;
    Piece* const piece = here().first_;
    here().first_ = piece->next;
    --here().count_;
    return piece;
  }
  /// False where there is no room for it.
  static bool put(void* at) noexcept {
    if (is_gone() || here().count_ == most) return false;
    here().first_ = ::new (at) Piece{here().first_};
    ++here().count_;
    return true;
  }

 private:
  struct Piece {
    Piece* next;
  };
  Bin() = default;
  ~Bin() {
    is_gone() = true;  // objects that outlive the thread's variables go to the heap
    while (first_ != nullptr) {
      Piece* const piece = first_;
      first_ = piece->next;
      ::operator delete(piece);
    }
  }
  static Bin& here() noexcept {
    thread_local Bin bin;
    return bin;
  }
  static bool& is_gone() noexcept {
    thread_local bool gone = false;
    return gone;
  }

  Piece* first_ = nullptr;
  std::size_t count_ = 0;
};

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool recycles = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool recycles = false;
#else
inline constexpr bool recycles = true;
#endif
#else
inline constexpr bool recycles = true;
#endif

}  // namespace recycled_detail

/// For std::allocate_shared.
template <class T>
struct Recycled {
  using value_type = T;

  Recycled() = default;
  template <class U>
  Recycled(const Recycled<U>&) noexcept {}  // NOLINT(google-explicit-constructor): allocators convert

  T* allocate(std::size_t n) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__ && sizeof(T) >= sizeof(void*));
    if constexpr (recycled_detail::recycles) {
      if (n == 1) {
        if (void* const at = recycled_detail::Bin<sizeof(T)>::take()) return static_cast<T*>(at);
      }
    }
    return static_cast<T*>(::operator new(n * sizeof(T)));
  }
  void deallocate(T* at, std::size_t n) noexcept {
    if constexpr (recycled_detail::recycles) {
      if (n == 1 && recycled_detail::Bin<sizeof(T)>::put(at)) return;
    }
    ::operator delete(at);
  }
  friend bool operator==(const Recycled&, const Recycled&) noexcept { return true; }
};

}  // namespace thimble
