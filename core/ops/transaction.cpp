#include <thimble/core/tensor/transaction.h>

#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble {

tape::Transaction::Tables& tape::Transaction::spare() noexcept {
  thread_local Tables room;
  return room;
}

tape::Transaction::Transaction() : generator_(current_generator()), pass_(generator_), before_(context().transaction) {
  entries_.swap(spare().entries);
  gradients_.swap(spare().gradients);
  updates_.swap(spare().updates);
  context().transaction = this;
  generator_.start_pass();
}

tape::Transaction::~Transaction() {
  context().transaction = before_;
  put_back();
  // A step's random calls do not affect later counts.
  if (before_ != nullptr || generator_.is_in_pass()) generator_.start_pass();
  for (GradientBefore& before : gradients_) {
    before.leaf->transaction = before.transaction;
    before.leaf->grad = std::move(before.grad);
  }
  entries_.clear();
  gradients_.clear();
  updates_.clear();
  if (updates_.capacity() > spare().updates.capacity()) updates_.swap(spare().updates);
  if (entries_.capacity() > spare().entries.capacity()) entries_.swap(spare().entries);
  if (gradients_.capacity() > spare().gradients.capacity()) gradients_.swap(spare().gradients);
}

void tape::Transaction::drop_state() noexcept { entries_.clear(), updates_.clear(), put_back(); }

void tape::Transaction::keep(const Tensor& target) {
  if (!is_keeping_) return;
  for (const Entry& entry : kept_) {
    if (entry.target.storage() == target.storage()) return;
  }
  // Keep the whole storage: the views that a step writes may depend on values, which a dry run does not have.
  const auto count = static_cast<std::int64_t>(target.storage()->bytes() / size_of(target.dtype()));
  const Tensor state = target.detach().window({count}, {1}, 0);
  kept_.push_back({state, clone(state)});
}

void tape::Transaction::put_back() noexcept {
  is_keeping_ = false;
  for (Entry& entry : kept_) {
    try {
      const ParameterUse use;  // in case a parameter has been evicted since
      copy_into(entry.target, entry.pending);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): another exception may be in flight
    }
  }
  kept_.clear();
}

void tape::Transaction::defer(tape::StateUpdate update) {
  update.micro_batch = micro_batch_;
  updates_.push_back(std::move(update));
}

void tape::Transaction::release_room() noexcept { spare() = {}; }

Tensor tape::Transaction::staged(const Tensor& target) {
  for (const Entry& entry : entries_) {
    if (entry.target.storage() == target.storage() && entry.target.offset() == target.offset()) return entry.pending;
  }
  Tensor pending = clone(target);
  entries_.push_back({target, pending});
  return pending;
}

void tape::Transaction::stage_gradient(const std::shared_ptr<tape::Leaf>& leaf) {
  if (leaf->transaction == this) return;
  const Tensor before = leaf->grad;
  Tensor own = before.defined() ? clone(before, memory::Category::gradient) : Tensor();
  gradients_.push_back({leaf, before, leaf->transaction});
  leaf->grad = std::move(own);
  leaf->transaction = this;
}

void tape::Transaction::commit() {
  is_keeping_ = false;
  kept_.clear();
  for (Entry& entry : entries_) copy_into(entry.target, entry.pending);
  entries_.clear();
  for (const GradientBefore& before : gradients_) before.leaf->transaction = before.transaction;
  gradients_.clear();
  generator_.set_step(generator_.step() + 1);
}

tape::Transaction* deferring_transaction() noexcept {
  tape::Transaction* const step = context().transaction;
  return step != nullptr && step->defers() ? step : nullptr;
}

void keep_state(const Tensor& target) {
  tape::Transaction* const step = context().transaction;
  const memory::Storage* const storage = target.storage().get();
  if (step == nullptr || storage == nullptr || storage->category() != memory::Category::parameter) return;
  if (storage->store() == nullptr) step->keep(target);  // a store writes its parameters as it fetches them
}

Tensor writable_state(const Tensor& target) {
  return context().transaction ? context().transaction->staged(target) : target;
}

}  // namespace thimble
