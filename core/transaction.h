#pragma once
// A step is a transaction: what a forward changes besides its result (batch-norm statistics, the generator's step) is
// staged, and committed when the whole step has succeeded. A step that throws leaves no trace.

#include <memory>
#include <vector>

#include <thimble/core/context.h>
#include <thimble/core/tensor.h>

namespace thimble {

/// While one is alive on this thread, `staged(target)` gives a private copy of a state tensor; `commit()` writes the
/// copies back and advances the generator by one step; destruction without commit drops them.
class Transaction {
 public:
  Transaction();
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  /// The pending value of `target`, equal to it at first; further changes in the same step see the earlier ones.
  Tensor staged(const Tensor& target);
  void commit();
  std::size_t staged_count() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    Tensor target, pending;
  };
  std::vector<Entry> entries_;
  Transaction* before_;
};

/// Where an operator writes a change of `target`: its staged copy inside of a transaction, else `target` itself.
Tensor writable_state(const Tensor& target);

}  // namespace thimble
