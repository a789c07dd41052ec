#pragma once
// A tape for a scope, which reuses the tables of an earlier one on this thread, so that a steady step grows none.

#include <memory>

#include <thimble/autograd/tape.h>

namespace thimble {

/// An empty tape that follows no plan. At the end it is cleared, and its tables (host memory that the ledger does not
/// count, about 250 bytes per node) wait for the next SpareTape of this thread. The number of waiting tapes is the most
/// that were in use at once. An observed tape is not reused.
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
