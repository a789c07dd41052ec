#pragma once
// Tensors whose bytes are in a tier (memory/offload/tier.h) until they are needed again.
//
//   memory::Offloaded away = memory::offload(std::move(activation), tier);  // begins to write
//   ...                                                                     // other work
//   away.complete();                                                        // frees the bytes
//   ...
//   away.prefetch();                                                        // takes memory, begins to read
//   ...
//   Tensor back = away.fetch();                                             // the same bits
//
// Policy
// - Memory is taken and freed only in these calls, never when a transfer happens to end: a program's allocations do not
//   depend on the disk, and a dry run predicts them to the byte. On a dry device the calls allocate and free the same
//   and move nothing.
// - A transfer's block is pinned from the call that begins it to the call that ends it.
// - A failure leaves the tensor in place: here if it could not be written, away if it could not be read.

#include <memory>

#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/memory/offload/tier.h>

namespace thimble::memory {

/// One tensor on its way to a tier, in it, or on its way back. Move-only; destruction drops it. Not thread-safe.
class Offloaded {
 public:
  Offloaded() = default;
  Offloaded(Offloaded&& other) noexcept { *this = std::move(other); }
  Offloaded& operator=(Offloaded&& other) noexcept;
  ~Offloaded() { drop(); }

  /// False after drop() and fetch().
  bool defined() const noexcept { return like_.defined(); }
  /// A tensor with the shape, dtype, device and scale, without bytes.
  const Tensor& like() const noexcept { return like_; }
  /// Bytes of the tensor, here or away.
  std::size_t bytes() const noexcept { return like_.bytes(); }
  /// Bytes that it takes here now: bytes() or 0.
  std::size_t bytes_here() const noexcept { return here_.bytes(); }

  /// Waits until the tensor is written, then frees its bytes here unless another handle has them. Does nothing when it
  /// is away already. Throws FileError when it could not be written; it then stays here until it is fetched.
  void complete();
  /// Completes the write, takes the tensor's memory in its category and under its path, and begins to read. Does
  /// nothing when a read has begun, or when the tensor could not be written. Throws OutOfMemory, FileError.
  void prefetch();
  /// Returns the dense tensor and frees its room in the tier. Before complete() no read is necessary; afterwards reads
  /// unless prefetch() has begun to. Throws OutOfMemory; FileError when it cannot be read (it stays away, and the call
  /// can be repeated); ValueError when nothing is held.
  Tensor fetch();
  /// Discards the tensor.
  void drop() noexcept;

 private:
  friend Offloaded offload(Tensor tensor, std::shared_ptr<Tier> tier);
  void free_room() noexcept;

  std::shared_ptr<Tier> tier_;
  Tensor like_;
  Tensor here_;               // during a transfer, or after a failed write
  std::unique_ptr<Pin> pin_;  // of here_, during a transfer; null on a dry device
  Ticket ticket_ = 0;
  bool is_reading_ = false;
  bool is_for_backward_ = false;  // whether it counts as an activation during a read
  Category category_ = Category::temporary;
  PathId path_ = 0;
};

/// Begins to write `tensor` to `tier`, after a dense copy if it is not contiguous. Pass the last handle (std::move) to
/// free its bytes. Gradients do not come along: fetch() returns a new tensor. Throws ShapeError (undefined), ValueError
/// (no tier), DeviceError (the tier serves another device), FileError (no room; the caller's tensor stays unchanged),
/// OutOfMemory (the dense copy).
Offloaded offload(Tensor tensor, std::shared_ptr<Tier> tier);

}  // namespace thimble::memory
