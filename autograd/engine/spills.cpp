#include <thimble/autograd/engine/spills.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/tensor/context.h>

namespace thimble::tape_detail {

Spills::Spills(Recorded& recorded, const TapePlan& plan, std::shared_ptr<memory::Tier> tier)
    : recorded_(recorded), tier_(std::move(tier)) {
  for (const TapePlan::Spill& spill : plan.spills) entries_.push_back({spill});
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.plan.node < b.plan.node; });
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    const TapePlan::Spill& spill = entries_[i].plan;
    events_.push_back({spill.away_after, Action::begin, i});
    if (spill.form != TapePlan::Spill::Form::offload) continue;
    const bool is_at_once = spill.gone_after == spill.away_after;
    events_.push_back({spill.gone_after, is_at_once ? Action::complete : Action::complete_earlier, i});
    returns_.push_back(i);
  }
  std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
    return std::tie(a.after, a.action, a.entry) < std::tie(b.after, b.action, b.entry);
  });
  std::stable_sort(returns_.begin(), returns_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return entries_[a].plan.back_before > entries_[b].plan.back_before;
  });
}

void Spills::clear() noexcept {
  for (Entry& entry : entries_) {
    entry.storage.reset();
    entry.state = State::here;
    entry.members.clear();
    entry.offloaded.drop();
    entry.packed = Tensor();
  }
  next_event_ = next_return_ = 0;
}

const Spills::Member& Spills::Entry::member(std::uint32_t value) const {
  return *std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.value == value; });
}

void Spills::note(std::uint32_t node, std::span<const Tensor> saved, const Tensor& output) {
  auto entry = std::lower_bound(entries_.begin(), entries_.end(), node,
                                [](const Entry& e, std::uint32_t n) { return e.plan.node < n; });
  for (; entry != entries_.end() && entry->plan.node == node; ++entry) {
    const std::int32_t which = entry->plan.which;
    entry->storage = (which < 0 ? output : saved[static_cast<std::size_t>(which)]).storage();
  }
}

void Spills::before(std::uint32_t next) {
  for (; next_event_ < events_.size(); ++next_event_) {
    const Event& event = events_[next_event_];
    if (event.after >= next) return;
    event.action == Action::begin ? begin(event.entry) : complete(event.entry);
  }
}

// The values on a storage. Empty if its bytes cannot be spilled: one is a leaf or has a scale, or a store has them.
std::vector<std::uint32_t> Spills::values_on(const memory::Storage* storage) const {
  std::vector<std::uint32_t> list;
  if (storage != nullptr && storage->store()) return list;
  for (std::uint32_t v = 0; v < recorded_.values.size(); ++v) {
    if (!recorded_.is_held(v) || recorded_.held(v).storage().get() != storage) continue;
    if (recorded_.values[v].leaf >= 0 || recorded_.held(v).scale()) return {};
    list.push_back(v);
  }
  return list;
}

// Packs a tensor, or begins to write it.
void Spills::begin(std::uint32_t index) {
  Entry& entry = entries_[index];
  const memory::Storage* const storage = entry.storage.lock().get();
  if (storage == nullptr) return;
  const std::vector<std::uint32_t> values = values_on(storage);
  if (values.empty()) return;
  const Tensor& any = recorded_.held(values.front());
  const auto elements = static_cast<std::int64_t>(storage->bytes() / size_of(any.dtype()));
  entry.dtype = any.dtype();
  entry.version = storage->version();
  entry.path = storage->path();
  Tensor whole = any.window({elements}, {1}, 0);
  if (entry.plan.form == TapePlan::Spill::Form::offload) {
    entry.offloaded = memory::offload(std::move(whole), tier_);
    entry.state = State::writing;
    return;
  }
  const auto others = static_cast<std::size_t>(entry.storage.use_count()) - 1;  // without `whole`
  if (others != values.size() || !can_pack(entry.dtype, entry.plan.dtype)) return;
  {
    const PathScope path(entry.path);
    entry.packed = pack(whole, entry.plan.dtype);
  }
  entry.packed.storage()->hold_for_backward();
  if (entry.packed.scale()) entry.packed.scale()->storage()->hold_for_backward();
  leave(index, values);
}

// Waits until the bytes are written and releases them, unless they have another holder or were overwritten.
void Spills::complete(std::uint32_t index) {
  Entry& entry = entries_[index];
  if (entry.state != State::writing) return;
  const std::vector<std::uint32_t> values = values_on(entry.storage.lock().get());
  if (!values.empty()) {
    entry.offloaded.complete();
    const auto holds = static_cast<std::size_t>(entry.storage.use_count());
    if (holds == values.size() && recorded_.held(values.front()).storage()->version() == entry.version) {
      return leave(index, values);
    }
  }
  entry.offloaded.drop();
  entry.state = State::here;
}

void Spills::leave(std::uint32_t index, std::span<const std::uint32_t> values) {
  Entry& entry = entries_[index];
  entry.members.clear();
  for (const std::uint32_t v : values) {
    const Tensor& t = recorded_.held(v);
    entry.members.push_back({v, t.shape(), t.strides(), t.offset()});
  }
  for (const std::uint32_t v : values) {
    recorded_.held(v).storage()->release_from_backward();
    recorded_.held(v) = Tensor();
    recorded_.values[v].spill = static_cast<std::int32_t>(index);
  }
  entry.state = State::away;
}

void Spills::prefetch_before(std::uint32_t node) {
  for (; next_return_ < returns_.size(); ++next_return_) {
    Entry& entry = entries_[returns_[next_return_]];
    if (entry.plan.back_before < node) return;
    if (entry.state == State::away) entry.offloaded.prefetch();
  }
}

void Spills::bring_back(std::uint32_t value) {
  Entry& entry = entries_[static_cast<std::size_t>(recorded_.values[value].spill)];
  Tensor whole;
  if (entry.packed.defined()) {
    const PathScope path(entry.path);
    whole = unpack(entry.packed, entry.dtype);
    entry.packed = Tensor();
  } else {
    whole = entry.offloaded.fetch();
  }
  whole.storage()->take_version(entry.version);
  for (const Member& member : entry.members) {
    recorded_.held(member.value) = whole.window(member.shape, member.strides, member.offset);
    whole.storage()->hold_for_backward();
    recorded_.values[member.value].spill = -1;
  }
  entry.members.clear();
  entry.state = State::here;
}

void Spills::forget(std::uint32_t value) noexcept {
  Entry& entry = entries_[static_cast<std::size_t>(std::exchange(recorded_.values[value].spill, -1))];
  std::erase_if(entry.members, [&](const Member& m) { return m.value == value; });
  if (!entry.members.empty()) return;
  entry.offloaded.drop();
  entry.packed = Tensor();
  entry.state = State::here;
}

KeptTensor Spills::kept_tensor(std::uint32_t value) const {
  const Entry& entry = entry_of(value);
  const memory::Storage* const storage = entry.packed.storage().get();
  KeptTensor kept{value, entry.member(value).shape, entry.dtype, 0, memory::Category::temporary, storage};
  if (storage == nullptr) return kept;
  kept.dtype = entry.packed.dtype();
  kept.bytes = storage->bytes() + (entry.packed.scale() ? entry.packed.scale()->bytes() : 0);
  kept.category = storage->category();
  return kept;
}

std::size_t Spills::bytes_here() const {
  std::size_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (entry.state != State::away) continue;
    bytes += entry.packed.bytes() + entry.offloaded.bytes_here();
    if (entry.packed.defined() && entry.packed.scale()) bytes += entry.packed.scale()->bytes();
  }
  return bytes;
}

}  // namespace thimble::tape_detail
