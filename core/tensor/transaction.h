#pragma once
// A step is a transaction: a forward's side effects (batch-norm statistics, the generator's step) are staged, and
// committed once the whole step has succeeded; copies keep the gradients that it adds to, and buffers that a loss
// writes in place. A step that throws leaves no trace.

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {
namespace tape {

/// A change of state found by one forward, such as batch statistics. It is separate from the state, so that ranks can
/// exchange their changes and each can apply all of them in the order of a single rank (optim/ranks.h).
struct StateUpdate {
  Tensor found;                       ///< f64, dense; undefined if unused
  std::array<Tensor, 3> state;        ///< to be changed
  double number = 0;                  ///< batch norm's momentum, or FP8's margin
  std::int64_t step = 0;              ///< FP8's recorded step
  DType dtype = DType::f32;           ///< of FP8's codes
  std::int64_t row = 0;               ///< of the state, for an FP8 operand
  std::int64_t micro_batch = 0;       ///< of this rank
  void (*apply)(const StateUpdate&);  ///< changes writable_state(state[i])
};

/// While a transaction lives on this thread, `staged(target)` is a private copy of a state tensor, and backward leaves
/// earlier gradients untouched. `commit()` writes the copies back, keeps the new gradients and advances the generator
/// by one step. Destruction without commit drops the copies and restores the earlier gradients.
class Transaction {
 public:
  Transaction();
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  /// The pending value of `target`, initially equal to it; later changes in the step see earlier ones.
  Tensor staged(const Tensor& target);
  /// Called before a write to `leaf`'s gradient, which then belongs to this step. Copies an earlier gradient once, so
  /// its bytes count twice until the step ends; without one this costs nothing.
  void stage_gradient(const std::shared_ptr<Leaf>& leaf);
  /// Called before an in-place write of state (keep_state). At the first write keeps a copy of its whole storage, whose
  /// bytes count until the step ends, and which is restored unless the step commits.
  void keep(const Tensor& target);
  /// Stops keeping; later writes are the step's updates.
  void end_keeping() noexcept { is_keeping_ = false; }
  /// Drops staged and deferred changes of state tensors, and restores the ones written in place; leaves gradients and
  /// the generator unchanged.
  void drop_state() noexcept;
  /// Makes later state changes wait (defer()) until the caller applies them.
  void defer_updates() noexcept { defers_ = true; }
  bool defers() const noexcept { return defers_; }
  void defer(StateUpdate update);
  /// The micro-batch of changes deferred from now on.
  void set_micro_batch(std::int64_t number) noexcept { micro_batch_ = number; }
  /// The deferred changes, in order of arrival.
  std::vector<StateUpdate>& deferred() noexcept { return updates_; }
  void commit();
  /// Frees the tables that this thread keeps for its next transaction.
  static void release_room() noexcept;
  std::size_t staged_count() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    Tensor target, pending;
  };
  struct GradientBefore {
    std::shared_ptr<Leaf> leaf;
    Tensor grad;               // earlier gradient, or undefined
    Transaction* transaction;  // earlier one that staged it, or null
  };
  /// Empty tables with the capacity of this thread's last transaction, so that a steady step does not allocate.
  struct Tables {
    std::vector<Entry> entries;
    std::vector<GradientBefore> gradients;
    std::vector<StateUpdate> updates;
  };
  static Tables& spare() noexcept;
  void put_back() noexcept;

  std::vector<Entry> entries_;
  std::vector<GradientBefore> gradients_;
  std::vector<StateUpdate> updates_;
  std::vector<Entry> kept_;  // targets written in place, and their earlier values
  bool is_keeping_ = true;
  bool defers_ = false;
  std::int64_t micro_batch_ = 0;
  RandomGenerator& generator_;
  PassScope pass_;  // a step's random calls do not affect later counts
  Transaction* before_;
};

}  // namespace tape

/// The tensor to which an operator writes a change of `target`: its staged copy inside a transaction, else `target`.
Tensor writable_state(const Tensor& target);

/// Called before every in-place write of a tensor (copy_into, fill, fill_normal, WritePin). Inside a transaction keeps
/// a module's buffer or parameter (Transaction::keep), unless it is in a parameter store, so that a failed step
/// restores it.
void keep_state(const Tensor& target);

/// The transaction that defers state changes (StateUpdate); null if they apply at once.
tape::Transaction* deferring_transaction() noexcept;

}  // namespace thimble
