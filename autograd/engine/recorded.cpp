#include <thimble/autograd/engine/recorded.h>

#include <atomic>
#include <string>
#include <utility>

#include <thimble/autograd/engine/observer.h>
#include <thimble/autograd/engine/spills.h>
#include <thimble/core/error.h>

namespace thimble::tape_detail {

constexpr std::size_t page_bytes = 1 << 16;

std::uint32_t next_tape_id() noexcept {
  static std::atomic<std::uint32_t> counter{0};
  std::uint32_t id = 0;
  while (id == 0) id = ++counter;  // 0 means "on no tape"
  return id;
}

Recorded::Recorded() { renew_id(); }

Recorded::~Recorded() { clear(); }

void Recorded::clear() noexcept {
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    if (values[v].holds == 0) continue;
    values[v].holds = 1;
    release(v);
  }
  if (spills) spills->clear();
  slots_.clear();  // pending gradients
  for (Node& node : nodes) node.type->destroy(node.record);
  nodes.clear();
  values.clear();
  inputs.clear();
  saved.clear();
  free_slots_.clear();
  leaves.clear();
  if (observer) observer->clear();
  page_ = page_used_ = 0;
  renew_id();
}

void Recorded::renew_id() noexcept {
  const std::uint32_t before = std::exchange(id, next_tape_id());
  if (id == before + 1) return;
  earlier_id_ = before;  // other tapes have the ids in between
  oldest_id_ = id;
}

bool Recorded::had(const Tensor& t) const noexcept {
  const std::uint32_t tape = t.tape_ref().tape;
  return (oldest_id_ <= tape && tape < id) || tape == earlier_id_;
}

void* Recorded::allocate_record(std::size_t size, std::size_t alignment) {
  if (size > page_bytes || alignment > alignof(std::max_align_t)) {
    throw AutogradError("tape: an operator's record of " + std::to_string(size) + " bytes is too large");
  }
  page_used_ = (page_used_ + alignment - 1) / alignment * alignment;
  if (page_ < pages_.size() && page_used_ + size > page_bytes) {
    ++page_;
    page_used_ = 0;
  }
  if (page_ == pages_.size()) pages_.push_back(std::make_unique<std::byte[]>(page_bytes));
  void* const at = pages_[page_].get() + page_used_;
  page_used_ += size;
  return at;
}

std::uint32_t form_of(const Tensor& t) noexcept {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;
  std::uint64_t form = odd * (1 + static_cast<std::uint64_t>(t.dtype()));
  for (const std::int64_t size : t.shape()) form = (form ^ (form >> 32) ^ static_cast<std::uint64_t>(size)) * odd;
  return static_cast<std::uint32_t>(form >> 32);
}

std::uint32_t Recorded::add_value(const Tensor& t, std::int32_t producer) {
  Value value;
  value.producer = producer;
  value.version = t.storage() ? t.storage()->version() : 0;
  value.elements = t.elements();
  value.form = form_of(t);
  values.push_back(value);
  if (observer) observer->add_value(t);
  return static_cast<std::uint32_t>(values.size() - 1);
}

void Recorded::hold(std::uint32_t value, const Tensor& t) {
  Value& v = values[value];
  if (v.holds++ > 0) return;
  v.slot = take_slot(t.detach());
  v.version = t.storage() ? t.storage()->version() : 0;  // a recomputed tensor has a new storage
  if (t.storage()) t.storage()->hold_for_backward();
}

void Recorded::release(std::uint32_t value) noexcept {
  Value& v = values[value];
  if (--v.holds > 0) return;
  if (v.spill >= 0) spills->forget(value);
  const Tensor t = free_slot(v.slot);
  if (t.storage()) t.storage()->release_from_backward();
}

const Tensor& Recorded::read(std::uint32_t value) {
  if (values[value].spill >= 0) spills->bring_back(value);
  return held(value);
}

KeptTensor Recorded::kept_tensor(std::uint32_t value) const {
  if (values[value].spill >= 0) return spills->kept_tensor(value);
  const Tensor& t = held(value);
  KeptTensor kept{value, t.shape(), t.dtype(), 0, memory::Category::temporary, t.storage().get()};
  if (kept.storage == nullptr) return kept;
  kept.bytes = kept.storage->bytes();
  kept.category = kept.storage->category();
  return kept;
}

void Recorded::require_unwritten(const Node& reader, std::uint32_t value) const {
  const bool is_spilled = values[value].spill >= 0;
  const memory::Storage* const storage = is_spilled ? nullptr : held(value).storage().get();
  const std::uint32_t noted = values[value].version;
  const std::uint32_t now = is_spilled ? spills->version(value) : storage ? storage->version() : 0;
  if (now == noted) return;
  const std::string path(path_name(reader.path));
  throw AutogradError(std::string(reader.type->name) + (path.empty() ? "" : " in " + path) + ": " +
                      (is_spilled ? "a spilled tensor" : describe(held(value))) +
                      ", kept for backward, was overwritten (version " + std::to_string(noted) + " was kept, now " +
                      std::to_string(now) + ")");
}

std::int32_t Recorded::take_slot(Tensor t) {
  if (free_slots_.empty()) {
    slots_.push_back(std::move(t));
    return static_cast<std::int32_t>(slots_.size() - 1);
  }
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<std::size_t>(slot)] = std::move(t);
  return slot;
}

Tensor Recorded::free_slot(std::int32_t& slot) noexcept {
  Tensor t = std::exchange(slots_[static_cast<std::size_t>(slot)], Tensor());
  free_slots_.push_back(slot);
  slot = -1;
  return t;
}

void Recorded::set_gradient(std::uint32_t value, Tensor gradient) {
  values[value].grad_slot = take_slot(std::move(gradient));
}

Tensor Recorded::take_gradient(std::uint32_t value) noexcept { return free_slot(values[value].grad_slot); }

}  // namespace thimble::tape_detail
