#pragma once
// Tensors whose bytes are away, in a tier (memory/offload/tier.h), until they are wanted again.
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
// - Memory is taken and freed in these calls and nowhere else, never when a transfer happens to end: what a program
//   allocates does not depend on the disk, and a dry run predicts it to the byte. On a dry device the calls allocate
//   and free the same and move nothing.
// - The block of a transfer is pinned from the call that begins it to the call that ends it.
// - Every failure leaves the tensor where it was: here, if it could not be written; away, if it could not be read.

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
  /// What the tensor takes when it is here.
  std::size_t bytes() const noexcept { return like_.bytes(); }
  /// Bytes that it takes here at this moment: all of them, or none.
  std::size_t bytes_here() const noexcept { return here_.bytes(); }

  /// Waits until the tensor is written and lets go of it here: its bytes are free, unless another handle has them.
  /// Does nothing when it is away already. Throws FileError when it could not be written; it is then still here, and
  /// stays until it is fetched.
  void complete();
  /// Takes the tensor's bytes, in its category and under its path, and begins to read. Completes the write first. Does
  /// nothing when a read has begun, or when the tensor could not be written and is here. Throws OutOfMemory, FileError.
  void prefetch();
  /// The tensor, dense, and with this the room in the tier is free. Before complete() it is the tensor that never
  /// left; else reads it unless prefetch() has begun to. Throws OutOfMemory; FileError when it cannot be read: it is
  /// then still away, and can be tried again. Throws ValueError when nothing is held.
  Tensor fetch();
  /// Forgets the tensor, wherever it is.
  void drop() noexcept;

 private:
  friend Offloaded offload(Tensor tensor, std::shared_ptr<Tier> tier);
  void free_room() noexcept;

  std::shared_ptr<Tier> tier_;
  Tensor like_;
  Tensor here_;               // being written, being read, or refused by the tier
  std::unique_ptr<Pin> pin_;  // of here_, while a transfer may be under way; none on a dry device
  Ticket ticket_ = 0;
  bool is_reading_ = false;
  bool is_for_backward_ = false;  // it counts as an activation while it is read
  Category category_ = Category::temporary;
  PathId path_ = 0;
};

/// Begins to write `tensor` to `tier`. A tensor with gaps or in another order is first copied into a dense one. Give
/// the last handle (std::move) for its bytes to become free. Takes no gradient along: the result of fetch() is a new
/// tensor. Throws ShapeError (undefined), ValueError (no tier), DeviceError (the tier serves another device),
/// FileError (no room; the caller's tensor is untouched), OutOfMemory (the dense copy).
Offloaded offload(Tensor tensor, std::shared_ptr<Tier> tier);

}  // namespace thimble::memory
