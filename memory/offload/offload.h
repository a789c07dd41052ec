#pragma once
// Tensors whose bytes are in a tier (memory/offload/tier.h) until they are needed again.
//
//   memory::Offloaded away = memory::offload(std::move(activation), tier);  // the write begins
//   ...                                                                     // other work meanwhile
//   away.complete();                                                        // from here on the bytes are free
//   ...
//   away.prefetch();                                                        // room is taken, the read begins
//   ...
//   Tensor back = away.fetch();                                             // equal, bit by bit
//
// Policy
// - Memory is taken and freed only in these calls, never when a transfer happens to end: a program's allocations do not
//   depend on the disk, and a dry run predicts them to the byte. On a dry device the calls allocate and free the same
//   and move nothing.
// - The block of a transfer is pinned from the call that begins it to the call that ends it.
// - Every failure leaves the tensor in place: here, if it could not be written; away, if it could not be read.

#include <memory>

#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/memory/offload/tier.h>

namespace thimble::memory {

/// One tensor on its way to a tier, there, or on its way back. Move-only; destruction drops it. Not thread-safe.
class Offloaded {
 public:
  Offloaded() = default;
  Offloaded(Offloaded&& other) noexcept { *this = std::move(other); }
  Offloaded& operator=(Offloaded&& other) noexcept;
  ~Offloaded() { drop(); }

  /// False after drop() and fetch().
  bool defined() const noexcept { return like_.defined(); }
  /// Shape, dtype, device and scale of the tensor; it has no bytes.
  const Tensor& like() const noexcept { return like_; }
  /// Bytes of the tensor when it is here.
  std::size_t bytes() const noexcept { return like_.bytes(); }
  /// Bytes that it takes here now: all or none.
  std::size_t bytes_here() const noexcept { return here_.bytes(); }

  /// Waits until the tensor is written and releases it here: its bytes are free, unless another handle has them. Does
  /// nothing when it is away already. Throws FileError when it could not be written; it then stays here until it is
  /// fetched.
  void complete();
  /// Takes the tensor's bytes, in its category and under its path, and begins to read. Completes the write first. Does
  /// nothing when a read has begun, or when the tensor could not be written and is here. Throws OutOfMemory, FileError.
  void prefetch();
  /// Returns the tensor, dense, and frees its room in the tier. Before complete() it is the tensor that never left;
  /// else reads it unless prefetch() has begun to. Throws OutOfMemory; FileError when it cannot be read: it is then
  /// still away, and the call can be repeated. Throws ValueError when nothing is held.
  Tensor fetch();
  /// Forgets the tensor, wherever it is.
  void drop() noexcept;

 private:
  friend Offloaded offload(Tensor tensor, std::shared_ptr<Tier> tier);
  void free_room() noexcept;

  std::shared_ptr<Tier> tier_;
  Tensor like_;
  Tensor here_;               // being written, being read, or refused by the tier
  std::unique_ptr<Pin> pin_;  // of here_, during a transfer; null on a dry device
  Ticket ticket_ = 0;
  bool is_reading_ = false;
  bool is_for_backward_ = false;  // whether it counts as an activation during a read
  Category category_ = Category::temporary;
  PathId path_ = 0;
};

/// Begins to write `tensor` to `tier`. A tensor with gaps or in another order is first copied into a dense one. Pass
/// the last handle (std::move) to free its bytes. Takes no gradient along: the result of fetch() is a new tensor.
/// Throws ShapeError (undefined), ValueError (no tier), DeviceError (the tier serves another device), FileError (no
/// room; the caller's tensor stays unchanged), OutOfMemory (the dense copy).
Offloaded offload(Tensor tensor, std::shared_ptr<Tier> tier);

}  // namespace thimble::memory
