#pragma once
// Parameters that come and go in units: fetched before use, evicted afterwards, with the next unit read ahead. A
// derived class defines the fetch: a read from a tier (memory/offload/tier_store.h), a gather over ranks, a decoding.
//
//   units, read ahead 1        0 1 2 3 ...
//   an operator of unit 0      U r            U: used, r: being read
//   of unit 1                    U r
//   of unit 2                      U r
//   backward of unit 2             U          the direction turns at the next unit
//   of unit 1                  r U
//
// Policy
// - Parameters added consecutively under one module path form a unit: a linear layer's weight and bias. With
//   `unit_bytes`, further modules join up to that size.
// - At most 1 + read_ahead units are here, or the units that one operator needs if these are more. The least recently
//   used unit is evicted first; pinned units are never evicted.
// - The next unit is the neighbour in the direction of the last move: forward, backward, and updates in parameter order
//   all move from neighbour to neighbour. Its read begins as soon as a unit is used, so that it arrives in time.
// - Eviction first writes the parameters whose version has changed since they came. If one cannot be written the unit
//   stays here: nothing is lost, and the next call retries.
// - Only the calls determine which units are here, so a dry run predicts it.
//
// Bytes: units used in order, in either direction, need the bytes of the largest 1 + read_ahead neighbours
// (peak_bytes). A unit used out of order, such as a tied embedding at the end, is here in addition.
//
// Make stores with std::make_shared: their parameters keep them alive.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::memory {

struct UnitOptions {
  std::size_t unit_bytes = 0;  ///< modules share a unit up to this size; 0 makes one unit per module
  int read_ahead = 1;          ///< units read before they are used, >= 0
};

class UnitStore : public ParameterStore, public std::enable_shared_from_this<UnitStore> {
 public:
  void put_away(const Tensor& parameter) final;
  void fetch(std::span<Storage* const> storages) final;
  void let_go() final;
  void forget(const Storage& storage) noexcept final;

  /// Bytes of the units, in the order in which they were made.
  std::vector<std::size_t> unit_bytes() const;
  /// Bytes of the largest 1 + read_ahead neighbours.
  std::size_t peak_bytes() const;

 protected:
  /// Throws ValueError for a negative read_ahead.
  explicit UnitStore(const UnitOptions& options);

  /// In the functions below, `parameter` counts parameters in order of addition, and `at` is the address of its bytes,
  /// pinned until the call that ends the transfer.
  ///
  /// Called for a new parameter before its bytes are written. May throw as begin_write does.
  virtual void add([[maybe_unused]] std::uint32_t parameter, [[maybe_unused]] const Tensor& tensor) {}
  /// Save a new or changed parameter's bytes, which are safe when end_write() returns. The bytes saved before are lost
  /// even when these throw FileError, OutOfMemory or DeviceError.
  virtual void begin_write(std::uint32_t parameter, const Storage& storage, const std::byte* at) = 0;
  virtual void end_write(std::uint32_t parameter) = 0;
  /// Begin and end reading the saved bytes. Both throw FileError, and can be repeated.
  virtual void begin_read(std::uint32_t parameter, const Storage& storage, std::byte* at) = 0;
  virtual void end_read(std::uint32_t parameter) = 0;
  /// Ends a running transfer and discards the parameter's saved bytes.
  virtual void drop(std::uint32_t parameter) noexcept = 0;

 private:
  enum class Where : std::uint8_t { away, coming, here };
  struct Entry {
    Storage* storage;       // null after its destruction
    std::uint32_t version;  // of the saved bytes
    std::uint32_t unit;
    bool is_moving = false;  // a transfer has begun and not ended
  };
  struct Unit {
    std::uint32_t first, end;  // entries
    std::size_t bytes;
    PathId path;  // of its last module
    Where where = Where::away;
    std::uint64_t used = 0;  // number of the last fetch that needed it
  };

  bool has(const Storage* storage) const noexcept { return storage != nullptr && storage->store().get() == this; }
  Unit& unit_for(const Storage& storage, std::uint32_t index);
  std::span<Entry> entries_of(const Unit& unit) noexcept;
  std::uint32_t index_of(const Entry& entry) const noexcept {
    return static_cast<std::uint32_t>(&entry - entries_.data());
  }
  void begin(Unit& unit);
  void end(Unit& unit);
  void take_back(Unit& unit) noexcept;
  void transfer(Entry& entry, FunctionRef<void(std::byte*)> begin);
  void begin_write(Entry& entry);
  void end_write(Entry& entry);
  void evict(Unit& unit);
  bool is_pinned(const Unit& unit) const noexcept;
  void make_room(std::size_t coming, std::size_t most);
  void read_ahead();

  UnitOptions options_;
  std::vector<Entry> entries_;
  std::vector<Unit> units_;
  std::vector<std::uint32_t> here_;  // units that are not away, least recently used first
  std::uint64_t uses_ = 0;
  std::uint32_t last_ = 0;  // most recently used unit
  bool is_backward_ = false;
};

}  // namespace thimble::memory
