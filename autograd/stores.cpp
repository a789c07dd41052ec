// Bytes of saved tensors that are away, or packed, between the forward and the backward.

#include <thimble/autograd/stores.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/quant/pack.h>
#include <thimble/core/tensor/context.h>

namespace thimble {

Tape::Stores::Stores(const TapePlan& plan, std::shared_ptr<Tier> to) : tier(std::move(to)) {
  for (const TapePlan::Store& store : plan.stores) entries.push_back({store});
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.plan.node < b.plan.node; });
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    const TapePlan::Store& store = entries[i].plan;
    events.push_back({store.away_after, Action::put_away, i});
    if (store.form != TapePlan::Store::Form::offload) continue;
    const bool is_at_once = store.gone_after == store.away_after;
    events.push_back({store.gone_after, is_at_once ? Action::complete : Action::complete_earlier, i});
    returns.push_back(i);
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.after, a.action, a.store) < std::tie(b.after, b.action, b.store);
  });
  std::stable_sort(returns.begin(), returns.end(), [&](std::uint32_t a, std::uint32_t b) {
    return entries[a].plan.back_before > entries[b].plan.back_before;
  });
}

void Tape::Stores::reset() noexcept {
  for (Entry& entry : entries) {
    entry.storage.reset();
    entry.state = State::here;
    entry.members.clear();
    entry.offloaded.drop();
    entry.packed = Tensor();
  }
  next_event = next_return = 0;
}

// Notes the storages of a new node's tensors that are to be stored.
void Tape::note_stored(std::uint32_t node, std::span<const Tensor> saved, const Tensor& output) {
  auto entry = std::lower_bound(stores_->entries.begin(), stores_->entries.end(), node,
                                [](const Stores::Entry& e, std::uint32_t n) { return e.plan.node < n; });
  for (; entry != stores_->entries.end() && entry->plan.node == node; ++entry) {
    const std::int32_t which = entry->plan.which;
    entry->storage = (which < 0 ? output : saved[static_cast<std::size_t>(which)]).storage();
  }
}

// What is due before the node `next` is recorded.
void Tape::store_before(std::uint32_t next) {
  if (!stores_) return;
  for (; stores_->next_event < stores_->events.size(); ++stores_->next_event) {
    const Stores::Event& event = stores_->events[stores_->next_event];
    if (event.after >= next) return;
    event.action == Stores::Action::put_away ? put_away(event.store) : complete_write(event.store);
  }
}

// The values that hold the bytes of a store. None where they cannot go: one is a leaf, or has a scale.
std::vector<std::uint32_t> Tape::holders(const Storage* storage) const {
  std::vector<std::uint32_t> list;
  for (std::uint32_t v = 0; v < values_.size(); ++v) {
    if (values_[v].slot < 0 || held(v).storage().get() != storage) continue;
    if (values_[v].leaf >= 0 || held(v).scale()) return {};
    list.push_back(v);
  }
  return list;
}

void Tape::put_away(std::uint32_t store) {
  Stores::Entry& entry = stores_->entries[store];
  const Storage* const storage = entry.storage.lock().get();
  if (storage == nullptr) return;
  const std::vector<std::uint32_t> values = holders(storage);
  if (values.empty()) return;
  const Tensor& any = held(values.front());
  const auto elements = static_cast<std::int64_t>(storage->bytes() / size_of(any.dtype()));
  entry.dtype = any.dtype();
  entry.version = storage->version();
  entry.path = storage->path();
  Tensor whole = any.window({elements}, {1}, 0);
  if (entry.plan.form == TapePlan::Store::Form::offload) {
    entry.offloaded = memory::offload(std::move(whole), stores_->tier);
    entry.state = Stores::State::writing;
    return;
  }
  const auto others = static_cast<std::size_t>(entry.storage.use_count()) - 1;  // than `whole`
  if (others != values.size() || !can_pack(entry.dtype, entry.plan.dtype)) return;
  {
    const PathScope path(entry.path);
    entry.packed = pack(whole, entry.plan.dtype);
  }
  entry.packed.storage()->hold_for_backward();
  if (entry.packed.scale()) entry.packed.scale()->storage()->hold_for_backward();
  leave(store, values);
}

// Waits until the bytes are written, and lets go of them; where somebody else has them, too, they stay.
void Tape::complete_write(std::uint32_t store) {
  Stores::Entry& entry = stores_->entries[store];
  if (entry.state != Stores::State::writing) return;
  const std::vector<std::uint32_t> values = holders(entry.storage.lock().get());
  if (!values.empty()) {
    entry.offloaded.complete();
    const auto holds = static_cast<std::size_t>(entry.storage.use_count());
    if (holds == values.size() && held(values.front()).storage()->version() == entry.version) {
      return leave(store, values);
    }
  }
  entry.offloaded.drop();
  entry.state = Stores::State::here;
}

void Tape::leave(std::uint32_t store, std::span<const std::uint32_t> values) {
  Stores::Entry& entry = stores_->entries[store];
  entry.members.clear();
  for (const std::uint32_t v : values) {
    const Tensor& t = held(v);
    entry.members.push_back({v, t.shape(), t.strides(), t.offset()});
  }
  for (const std::uint32_t v : values) {
    Tensor& slot = slots_[static_cast<std::size_t>(values_[v].slot)];
    slot.storage()->release_from_backward();
    slot = Tensor();
    values_[v].store = static_cast<std::int32_t>(store);
  }
  entry.state = Stores::State::away;
}

// Begins to read what is due back before the backward of a node.
void Tape::prefetch_before(std::uint32_t node) {
  if (!stores_) return;
  for (; stores_->next_return < stores_->returns.size(); ++stores_->next_return) {
    Stores::Entry& entry = stores_->entries[stores_->returns[stores_->next_return]];
    if (entry.plan.back_before < node) return;
    if (entry.state == Stores::State::away) entry.offloaded.prefetch();
  }
}

// A value that the tape holds, here.
const Tensor& Tape::bring_back(std::uint32_t value) {
  if (values_[value].store < 0) return held(value);
  Stores::Entry& entry = stores_->entries[static_cast<std::size_t>(values_[value].store)];
  Tensor whole;
  if (entry.packed.defined()) {
    const PathScope path(entry.path);
    whole = unpack(entry.packed, entry.dtype);
    entry.packed = Tensor();
  } else {
    whole = entry.offloaded.fetch();
  }
  whole.storage()->take_version(entry.version);
  for (const Stores::Member& member : entry.members) {
    slots_[static_cast<std::size_t>(values_[member.value].slot)] =
        whole.window(member.shape, member.strides, member.offset);
    whole.storage()->hold_for_backward();
    values_[member.value].store = -1;
  }
  entry.members.clear();
  entry.state = Stores::State::here;
  return held(value);
}

// Nobody reads a value any more whose bytes are away.
void Tape::forget_stored(std::uint32_t value) noexcept {
  Stores::Entry& entry = stores_->entries[static_cast<std::size_t>(std::exchange(values_[value].store, -1))];
  const auto member = std::find_if(entry.members.begin(), entry.members.end(),
                                   [&](const Stores::Member& m) { return m.value == value; });
  entry.members.erase(member);
  if (!entry.members.empty()) return;
  entry.offloaded.drop();
  entry.packed = Tensor();
  entry.state = Stores::State::here;
}

std::uint32_t Tape::version_of(std::uint32_t value) const {
  if (values_[value].store >= 0) return stores_->entries[static_cast<std::size_t>(values_[value].store)].version;
  const Tensor& t = held(value);
  return t.storage() ? t.storage()->version() : 0;
}

// What a value is, and the storage that it has here: null when it is away.
KeptTensor Tape::kept_tensor(std::uint32_t value) const {
  const auto describe_as = [&](const Shape& shape, DType dtype, const Storage* storage) {
    return KeptTensor{
        value,  shape, dtype, storage ? storage->bytes() : 0, storage ? storage->category() : Category::temporary,
        storage};
  };
  if (values_[value].store < 0) {
    const Tensor& t = held(value);
    return describe_as(t.shape(), t.dtype(), t.storage().get());
  }
  const Stores::Entry& entry = stores_->entries[static_cast<std::size_t>(values_[value].store)];
  const auto member = std::find_if(entry.members.begin(), entry.members.end(),
                                   [&](const Stores::Member& m) { return m.value == value; });
  KeptTensor kept = describe_as(member->shape, entry.packed.defined() ? entry.packed.dtype() : entry.dtype,
                                entry.packed.storage().get());
  if (entry.packed.defined() && entry.packed.scale()) kept.bytes += entry.packed.scale()->bytes();
  return kept;
}

// What packed tensors and those that are being read have here, beside the slots.
std::size_t Tape::stored_bytes_here() const {
  if (!stores_) return 0;
  std::size_t bytes = 0;
  for (const Stores::Entry& entry : stores_->entries) {
    if (entry.state != Stores::State::away) continue;
    bytes += entry.packed.bytes() + entry.offloaded.bytes_here();
    if (entry.packed.defined() && entry.packed.scale()) bytes += entry.packed.scale()->bytes();
  }
  return bytes;
}

}  // namespace thimble
