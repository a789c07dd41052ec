#include <thimble/core/transaction.h>

#include <thimble/core/copy.h>

namespace thimble {

Transaction::Transaction() : before_(context().transaction) {
  context().transaction = this;
  current_generator().start_pass();
}

Transaction::~Transaction() { context().transaction = before_; }

Tensor Transaction::staged(const Tensor& target) {
  for (const Entry& entry : entries_) {
    if (entry.target.storage() == target.storage() && entry.target.offset() == target.offset()) return entry.pending;
  }
  Tensor pending = clone(target);
  entries_.push_back({target, pending});
  return pending;
}

void Transaction::commit() {
  for (Entry& entry : entries_) copy_into(entry.target, entry.pending);
  entries_.clear();
  Generator& generator = current_generator();
  generator.set_step(generator.step() + 1);
}

Tensor writable_state(const Tensor& target) {
  return context().transaction ? context().transaction->staged(target) : target;
}

}  // namespace thimble
