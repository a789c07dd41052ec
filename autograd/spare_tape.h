#pragma once
// A tape for a scope that reuses the room of an earlier one of this thread: a steady step grows no tables.

#include <memory>

#include <thimble/autograd/tape.h>

namespace thimble {

/// An empty tape that follows no plan. At the end it is cleared, and waits, with its tables' room (host memory that the
/// ledger does not count, about 250 bytes per node), for the next SpareTape of this thread, or for the thread's end. As
/// many wait as were alive together. An observed tape is not reused.
class SpareTape {
 public:
  SpareTape();
  ~SpareTape();
  SpareTape(const SpareTape&) = delete;
  SpareTape& operator=(const SpareTape&) = delete;

  /// Frees this thread's waiting tapes.
  static void release() noexcept;

  Tape& operator*() const noexcept { return *tape_; }
  Tape* operator->() const noexcept { return tape_.get(); }

 private:
  std::unique_ptr<Tape> tape_;
};

}  // namespace thimble
