#include <thimble/memory/offload/unit_store.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>

namespace thimble::memory {
namespace {

/// The bytes of a storage that is here, pinned until unpin().
std::byte* pin(Storage& storage) {
  const launch_detail::Guard guard(storage.device());  // no block moves meanwhile
  storage.pin(AccessMaker::make());
  return storage.address(AccessMaker::make());
}

}  // namespace

UnitStore::UnitStore(const UnitOptions& options) : options_(options) {
  if (options.read_ahead < 0) {
    throw ValueError("parameter store: read_ahead " + std::to_string(options.read_ahead) + "; expected >= 0");
  }
}

std::span<UnitStore::Entry> UnitStore::entries_of(const Unit& unit) noexcept {
  return std::span(entries_).subspan(unit.first, unit.end - unit.first);
}

/// The unit for a storage that becomes entry `index`: the last unit, or a new one.
UnitStore::Unit& UnitStore::unit_for(const Storage& storage, std::uint32_t index) {
  const bool joins = !units_.empty() && (units_.back().path == storage.path() ||
                                         units_.back().bytes + storage.bytes() <= options_.unit_bytes);
  if (!joins) units_.push_back({index, index, 0, storage.path()});
  return units_.back();
}

void UnitStore::put_away(const Tensor& parameter) {
  const auto refuse = [&](const std::string& why) { throw ValueError("parameter store: " + why); };
  if (!parameter.defined()) refuse("the parameter is undefined");
  if (parameter.elements() == 0) return;
  Storage& storage = *parameter.storage();
  if (has(&storage)) return;
  const std::string text = describe(parameter) + " in '" + std::string(path_name(storage.path())) + "'";
  if (storage.store()) refuse(text + " is in another store");
  if (storage.bytes() != parameter.bytes()) refuse(text + " is a window of its storage; expected the whole storage");
  if (storage.is_pinned()) refuse(text + " is pinned");
  const auto index = static_cast<std::uint32_t>(entries_.size());
  entries_.push_back({&storage, storage.version(), 0});
  try {
    add(index, parameter);
    begin_write(entries_.back());
    end_write(entries_.back());
    Unit& unit = unit_for(storage, index);
    if (unit.where != Where::away) evict(unit);
    entries_.back().unit = static_cast<std::uint32_t>(&unit - units_.data());
    storage.set_store(shared_from_this(), index);
    storage.give_block_back();
    unit.end = index + 1;
    unit.bytes += storage.bytes();
    unit.path = storage.path();
  } catch (...) {
    drop(index);
    entries_.pop_back();
    throw;
  }
}

/// Begins a transfer, with the block pinned until it ends.
void UnitStore::transfer(Entry& entry, FunctionRef<void(std::byte*)> begin) {
  std::byte* const at = pin(*entry.storage);
  try {
    begin(at);
  } catch (...) {
    entry.storage->unpin();
    throw;
  }
  entry.is_moving = true;
}

void UnitStore::begin_write(Entry& entry) {
  transfer(entry, [&](const std::byte* at) { begin_write(index_of(entry), *entry.storage, at); });
}

void UnitStore::end_write(Entry& entry) {
  entry.is_moving = false;
  try {
    end_write(index_of(entry));
  } catch (...) {
    entry.storage->unpin();
    throw;
  }
  entry.storage->unpin();
  entry.version = entry.storage->version();
}

/// Takes a unit's blocks and begins to read. Changes nothing when it throws.
void UnitStore::begin(Unit& unit) {
  unit.where = Where::coming;
  try {
    for (Entry& entry : entries_of(unit)) {
      if (entry.storage == nullptr) continue;
      entry.storage->take_block();
      transfer(entry, [&](std::byte* at) { begin_read(index_of(entry), *entry.storage, at); });
    }
  } catch (...) {
    take_back(unit);
    throw;
  }
  here_.push_back(static_cast<std::uint32_t>(&unit - units_.data()));
}

/// Waits until a unit is read. The unit is away again when this throws.
void UnitStore::end(Unit& unit) {
  if (unit.where != Where::coming) return;
  try {
    for (Entry& entry : entries_of(unit)) {
      if (!entry.is_moving) continue;
      end_read(index_of(entry));
      entry.is_moving = false;
      entry.storage->unpin();
    }
  } catch (...) {
    take_back(unit);
    std::erase(here_, static_cast<std::uint32_t>(&unit - units_.data()));
    throw;
  }
  unit.where = Where::here;
}

/// Ends the reads of a unit and frees its blocks.
void UnitStore::take_back(Unit& unit) noexcept {
  for (Entry& entry : entries_of(unit)) {
    if (entry.storage == nullptr || !entry.storage->is_here()) continue;
    if (std::exchange(entry.is_moving, false)) {
      try {
        end_read(index_of(entry));
      } catch (const Error&) {
      }
      entry.storage->unpin();
    }
    entry.storage->give_block_back();
  }
  unit.where = Where::away;
}

/// Writes the changes of an unpinned unit and evicts it. The unit stays here when this throws.
void UnitStore::evict(Unit& unit) {
  if (unit.where == Where::coming) {
    take_back(unit);
  } else {
    std::exception_ptr failed;
    const auto try_it = [&](const auto& body) {
      try {
        body();
      } catch (const Error&) {
        if (!failed) failed = std::current_exception();
      }
    };
    for (Entry& entry : entries_of(unit)) {
      if (entry.storage == nullptr || entry.storage->version() == entry.version) continue;
      try_it([&] { begin_write(entry); });
    }
    for (Entry& entry : entries_of(unit)) {
      if (entry.is_moving) try_it([&] { end_write(entry); });
    }
    if (failed) std::rethrow_exception(failed);
    for (Entry& entry : entries_of(unit)) {
      if (entry.storage != nullptr) entry.storage->give_block_back();
    }
    unit.where = Where::away;
  }
  std::erase(here_, static_cast<std::uint32_t>(&unit - units_.data()));
}

bool UnitStore::is_pinned(const Unit& unit) const noexcept {
  if (unit.where != Where::here) return false;
  const auto first = entries_.begin() + unit.first, end = entries_.begin() + unit.end;
  return std::any_of(first, end, [](const Entry& e) { return e.storage != nullptr && e.storage->is_pinned(); });
}

/// Evicts units that the current call does not need, until the remaining ones and `coming` more are at most `most`.
void UnitStore::make_room(std::size_t coming, std::size_t most) {
  for (std::size_t at = 0; at < here_.size() && here_.size() + coming > most;) {
    Unit& unit = units_[here_[at]];
    if (unit.used == uses_ || is_pinned(unit)) {
      ++at;
    } else {
      evict(unit);
    }
  }
}

void UnitStore::fetch(std::span<Storage* const> storages) {
  if (ParameterUse* const use = context().parameter_use) use->add(shared_from_this());
  ++uses_;
  std::size_t needed = 0, missing = 0;
  for (Storage* const storage : storages) {
    if (!has(storage)) continue;
    const std::uint32_t index = entries_[storage->index_in_store()].unit;
    Unit& unit = units_[index];
    if (std::exchange(unit.used, uses_) == uses_) continue;
    ++needed;
    if (unit.where == Where::away) ++missing;
    if (index != last_) is_backward_ = index < std::exchange(last_, index);
    if (unit.where == Where::away) continue;
    std::erase(here_, index);  // moves to the end: most recently used
    here_.push_back(index);
  }
  make_room(missing, std::max(needed, static_cast<std::size_t>(options_.read_ahead) + 1));
  const auto each_needed = [&](const auto& body) {
    for (Storage* const storage : storages) {
      if (has(storage)) body(units_[entries_[storage->index_in_store()].unit]);
    }
  };
  each_needed([&](Unit& unit) {
    if (unit.where == Where::away) begin(unit);
  });
  read_ahead();
  each_needed([&](Unit& unit) { end(unit); });
}

/// Begins to read the next units. Units for which pinned ones leave no room are read when they are needed.
void UnitStore::read_ahead() {
  const auto most = static_cast<std::size_t>(options_.read_ahead) + 1;
  std::uint32_t next = last_;
  for (int i = 0; i < options_.read_ahead; ++i) {
    if (is_backward_ ? next == 0 : next + 1 == units_.size()) return;
    next = is_backward_ ? next - 1 : next + 1;
    Unit& unit = units_[next];
    unit.used = uses_;
    if (unit.where != Where::away) continue;
    make_room(1, most);
    if (here_.size() >= most) return;
    begin(unit);
  }
}

void UnitStore::let_go() {
  for (std::size_t at = 0; at < here_.size();) {
    Unit& unit = units_[here_[at]];
    if (is_pinned(unit)) {
      ++at;
    } else {
      evict(unit);
    }
  }
  last_ = 0;
  is_backward_ = false;
}

void UnitStore::forget(const Storage& storage) noexcept {
  const std::uint32_t index = storage.index_in_store();
  Entry& entry = entries_[index];
  drop(index);
  if (std::exchange(entry.is_moving, false)) entry.storage->unpin();
  entry.storage = nullptr;
  Unit& unit = units_[entry.unit];
  unit.bytes -= storage.bytes();
  if (unit.bytes > 0) return;
  unit.where = Where::away;
  std::erase(here_, entry.unit);
}

std::vector<std::size_t> UnitStore::unit_bytes() const {
  std::vector<std::size_t> list;
  for (const Unit& unit : units_) list.push_back(unit.bytes);
  return list;
}

std::size_t UnitStore::peak_bytes() const {
  const auto width = static_cast<std::size_t>(options_.read_ahead) + 1;
  std::size_t most = 0, sum = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    sum += units_[i].bytes - (i >= width ? units_[i - width].bytes : 0);
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace thimble::memory
