#pragma once
// A step is a transaction: what a forward changes besides its result (batch-norm statistics, the generator's step) is
// staged, and committed when the whole step has succeeded; the gradients it adds to are set aside; buffers that a loss
// writes in place are kept. A step that throws leaves no trace.

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// A change of state by what one forward has found, such as batch statistics: apart from the state, so that ranks can
/// tell each other what they found, and each makes all changes in the order of one rank (optim/ranks.h).
struct StateUpdate {
  Tensor found;                       ///< f64, dense; undefined where nothing was
  std::array<Tensor, 3> state;        ///< that changes
  double number = 0;                  ///< batch norm: the momentum; FP8: the margin
  std::int64_t step = 0;              ///< FP8: the recorded step
  DType dtype = DType::f32;           ///< FP8: of the codes
  std::int64_t row = 0;               ///< FP8: the operand's row of the state
  std::int64_t micro_batch = 0;       ///< of this rank, that it was found in
  void (*apply)(const StateUpdate&);  ///< changes writable_state(state[i])
};

/// While one is alive on this thread, `staged(target)` gives a private copy of a state tensor, and backward leaves the
/// gradients of before untouched; `commit()` writes the copies back, keeps the new gradients and advances the generator
/// by one step. Destruction without commit drops the copies and puts the gradients of before back.
class Transaction {
 public:
  Transaction();
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  /// The pending value of `target`, equal to it at first; further changes in the same step see the earlier ones.
  Tensor staged(const Tensor& target);
  /// Called before `leaf`'s gradient is written: from then on it is this step's own. A gradient that was there before
  /// is copied once (its bytes count twice until the step ends); where there was none this costs nothing.
  void stage_gradient(const std::shared_ptr<Leaf>& leaf);
  /// Called before state is written in place (keep_state): a copy of it, which counts until the step ends, puts it back
  /// unless the step is committed. Takes the target's bytes at its first write.
  void keep(const Tensor& target);
  /// From now on nothing is kept: what follows are the step's own updates.
  void end_keeping() noexcept { is_keeping_ = false; }
  /// Drops staged and deferred changes of state tensors, and puts back those that were written in place; leaves
  /// gradients and the generator alone.
  void drop_state() noexcept;
  /// From now on changes of state wait (defer()) until the caller applies them.
  void defer_updates() noexcept { defers_ = true; }
  bool defers() const noexcept { return defers_; }
  void defer(StateUpdate update);
  /// What is deferred from now on was found in this micro-batch.
  void set_micro_batch(std::int64_t number) noexcept { micro_batch_ = number; }
  /// Those that wait, in the order in which they came.
  std::vector<StateUpdate>& deferred() noexcept { return updates_; }
  void commit();
  /// Frees the room for the next transaction that this thread's last one has left.
  static void release_room() noexcept;
  std::size_t staged_count() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    Tensor target, pending;
  };
  struct GradientBefore {
    std::shared_ptr<Leaf> leaf;
    Tensor grad;               // as it was; undefined when there was none
    Transaction* transaction;  // that had staged it before
  };
  /// Empty, with the room that this thread's last transaction has left: a steady step does not ask the heap.
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
  std::vector<Entry> kept_;  // targets that were written in place, and what they were
  bool is_keeping_ = true;
  bool defers_ = false;
  std::int64_t micro_batch_ = 0;
  Generator& generator_;
  PassScope pass_;  // a step's random calls do not count after it
  Transaction* before_;
};

/// Where an operator writes a change of `target`: its staged copy inside of a transaction, else `target` itself.
Tensor writable_state(const Tensor& target);

/// Called by everything that writes a tensor in place (copy_into, fill, fill_normal, WritePin), before it does: inside
/// of a transaction a module's buffer or parameter is kept (Transaction::keep), so that a step that fails puts it back;
/// not one in a parameter store.
void keep_state(const Tensor& target);

/// The transaction where changes of state are to wait, as StateUpdate; null: they are made at once.
Transaction* deferring_transaction() noexcept;

}  // namespace thimble
