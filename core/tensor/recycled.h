#pragma once
// An allocator for single objects that are made and freed all the time: handles, not tensor data.
//
// Policy
// - Each thread keeps up to `most` freed objects of one size for reuse. They return to the heap when the thread ends,
//   or by release_recycled().
// - Under AddressSanitizer nothing is kept, so that it finds use after free.

#include <cstddef>
#include <new>
#include <utility>

namespace thimble {
namespace recycled_detail {

/// This thread's freed objects, all of the first one's size.
class Bin {
 public:
  static constexpr std::size_t most = 1 << 14;

  static void* take(std::size_t bytes) noexcept {
    if (is_gone() || here().first_ == nullptr || here().piece_bytes_ != bytes) return nullptr;
    Piece* const piece = here().first_;
    here().first_ = piece->next;
    --here().count_;
    return piece;
  }
  /// False when the bin is full.
  static bool put(void* at, std::size_t bytes) noexcept {
    if (is_gone() || here().count_ == most) return false;
    if (here().first_ == nullptr) here().piece_bytes_ = bytes;
    if (here().piece_bytes_ != bytes) return false;
    here().first_ = ::new (at) Piece{here().first_};
    ++here().count_;
    return true;
  }
  static void release() noexcept {
    if (!is_gone()) here().clear();
  }

 private:
  struct Piece {
    Piece* next;
  };
  Bin() = default;
  ~Bin() {
    is_gone() = true;  // objects freed later go to the heap
    clear();
  }
  void clear() noexcept {
    count_ = 0;
    while (first_ != nullptr) ::operator delete(std::exchange(first_, first_->next));
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
  std::size_t count_ = 0, piece_bytes_ = 0;
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

/// Returns this thread's freed objects to the heap.
inline void release_recycled() noexcept { recycled_detail::Bin::release(); }

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
        if (void* const at = recycled_detail::Bin::take(sizeof(T))) return static_cast<T*>(at);
      }
    }
    return static_cast<T*>(::operator new(n * sizeof(T)));
  }
  void deallocate(T* at, std::size_t n) noexcept {
    if constexpr (recycled_detail::recycles) {
      if (n == 1 && recycled_detail::Bin::put(at, sizeof(T))) return;
    }
    ::operator delete(at);
  }
  friend bool operator==(const Recycled&, const Recycled&) noexcept { return true; }
};

}  // namespace thimble
