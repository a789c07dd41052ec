#pragma once
// Only launches and pins turn storages into addresses. On a dry device a launch does nothing. An operator first
// allocates, then launches; inside a launch nothing may allocate or free.
//
// Launches and block moves (memory/arena/arena.h) exclude each other: one atomic word counts the launching threads and
// has a bit for "blocks are being moved". A launch adds one; if the bit is set, it subtracts one and waits. A mover
// sets the bit and waits until the count is 0. Neither waits forever, because a launch takes no lock of an arena.

#include <thimble/core/error.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {
namespace memory {
class Pin;
}

struct AccessMaker {
  static Access make() noexcept { return Access(); }
};

namespace launch_detail {
[[noreturn]] void refuse_away(const Tensor& t);
}  // namespace launch_detail

/// Resolves tensors to addresses; made by `launch` and Pin, and valid while they last. Writers call
/// Storage::bump_version.
class Addresses {
 public:
  /// First element of the tensor; null if it is undefined or has no elements. Throws AwayError for a parameter that is
  /// away.
  void* operator()(const Tensor& t) const {
    if (!t.storage()) return nullptr;
    std::byte* const first = t.storage()->address(access_);
    if (first == nullptr) launch_detail::refuse_away(t);
    return first + t.offset() * static_cast<std::int64_t>(size_of(t.dtype()));
  }
  template <class T>
  T* as(const Tensor& t) const {
    return static_cast<T*>((*this)(t));
  }

 private:
  explicit Addresses(Access access) noexcept : access_(access) {}
  Access access_;
  template <class F>
  friend void launch(memory::Device device, F&& body);
  friend class memory::Pin;
};

/// Whether this thread is inside a launch. Arenas then refuse to allocate; the tests' malloc interposer checks it.
bool is_launching() noexcept;

/// The device that this thread's launch runs kernels on; the cpu outside a launch.
memory::Device launching_device() noexcept;

/// Whether any thread of the process is inside a launch, also in kernels' worker threads.
bool is_any_thread_launching() noexcept;

namespace launch_detail {
/// Nesting depth of this thread's launches, for code on the path of every allocation; other code calls is_launching().
/// constinit avoids an initialisation check at each access.
extern constinit thread_local int depth;

/// Counts this thread as launching; nested launches count once.
struct Guard {
  explicit Guard(memory::Device device) noexcept;
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  memory::Device before_;
};
}  // namespace launch_detail

/// Keeps launches from running during its life, so that blocks may be moved. The constructor waits for the launches of
/// other threads, and must not be called inside a launch. Does nothing on a dry device.
class NoLaunches {
 public:
  explicit NoLaunches(memory::Device device) noexcept;
  ~NoLaunches();
  NoLaunches(const NoLaunches&) = delete;
  NoLaunches& operator=(const NoLaunches&) = delete;

 private:
  bool is_real_;
};

/// Runs `body(addresses)` unless the device is dry. The body runs kernels; it must not allocate.
template <class F>
void launch(memory::Device device, F&& body) {
  if (device.is_dry) return;
  const launch_detail::Guard guard(device);
  body(Addresses(AccessMaker::make()));
}

namespace memory {

/// A raw pointer for reading. The block does not move while the Pin lives; compaction slides others around it. On a
/// CUDA device it is a device address, for transfers and kernels, not for the host. Fetches a parameter that is away
/// and keeps it here while the Pin lives. Throws ShapeError (undefined), DeviceError on a dry device, and as
/// ParameterStore::fetch does.
class Pin {
 public:
  explicit Pin(const Tensor& tensor);
  virtual ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  const void* data() const { return address(); }
  /// Throws DTypeError unless T is the tensor's element type, DeviceError unless the tensor is on the cpu.
  template <class T>
  const T* as() const {
    check_dtype(dtype_of<T>);
    return static_cast<const T*>(address());
  }

 protected:
  void* address() const { return addresses_(tensor_); }
  void check_dtype(DType dtype) const;

  Tensor tensor_;

 private:
  Addresses addresses_;
};

/// A Pin for writing in place. While it lives, the tape treats the bytes as modified.
class WritePin final : public Pin {
 public:
  explicit WritePin(const Tensor& tensor);
  ~WritePin() override;

  void* data() const { return address(); }
  /// Throws as Pin::as() does.
  template <class T>
  T* as() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(address());
  }
};

}  // namespace memory
}  // namespace thimble
