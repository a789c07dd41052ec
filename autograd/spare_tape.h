#pragma once
// A tape for a scope, with the room that one of this thread has left behind: a steady step grows no tables.

#include <memory>

#include <thimble/autograd/tape.h>

namespace thimble {

/// An empty tape that follows no plan. At the end it is cleared, and waits, with its tables' room (host memory that the
/// ledger does not count, about 250 bytes per node), for the next SpareTape of this thread, or for the thread's end. As
/// many wait as there were at a time. A tape that observed is not used again.
class SpareTape {
 public:
  SpareTape();
  ~SpareTape();
  SpareTape(const SpareTape&) = delete;
  SpareTape& operator=(const SpareTape&) = delete;

  /// Frees the tapes that wait in this thread.
  static void release() noexcept;

  Tape& operator*() const noexcept { return *tape_; }
  Tape* operator->() const noexcept { return tape_.get(); }

 private:
  std::unique_ptr<Tape> tape_;
};

}  // namespace thimble
