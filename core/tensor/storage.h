#pragma once
// One block of one resource. It can move, so its address is looked up at each launch and never kept. A storage in a
// parameter store (core/tensor/parameter_store.h) has no block while it is away.

#include <cstdint>
#include <memory>

#include <thimble/core/tensor/resource.h>

namespace thimble {

class ParameterStore;

/// The permission to read addresses. Only a launch (core/launch/launch.h), a Pin and a parameter store have it.
class Access {
 private:
  Access() = default;
  friend struct AccessMaker;
};

namespace memory {

class Storage {
 public:
  /// Takes one block of `bytes` > 0 from `resource`, labelled with `category` and the context's path. Throws
  /// OutOfMemory.
  Storage(std::shared_ptr<Resource> resource, std::size_t bytes, Category category);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::size_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }
  const std::shared_ptr<Resource>& resource() const noexcept { return resource_; }
  PathId path() const noexcept { return path_; }
  Category category() const noexcept {
    return held_ > 0 && base_category_ == Category::temporary ? Category::activation : base_category_;
  }

  /// Sets the block's category. A temporary counts as an activation while it is held for backward.
  void set_category(Category category) noexcept;

  /// Counted. The tape holds every storage that backward will read.
  void hold_for_backward() noexcept;
  bool is_held_for_backward() const noexcept { return held_ > 0; }
  void release_from_backward() noexcept;

  /// Counts in-place writes, by which the tape finds overwritten tensors. While a WritePin lives, every call returns a
  /// new version.
  std::uint32_t version() const noexcept { return writers_ > 0 ? ++version_ : version_; }
  void bump_version() noexcept { ++version_; }
  void begin_write() noexcept { ++version_, ++writers_; }
  void end_write() noexcept { ++version_, --writers_; }
  /// Restores the version of fetched bytes, so that version checks pass.
  void take_version(std::uint32_t version) noexcept { version_ = version; }

  /// Null while away.
  std::byte* address(Access) const noexcept { return block_ != nullptr ? block_->address : nullptr; }

  /// Counted. A pinned block does not move. pin() must be called inside a launch, so that no compaction runs; unpin()
  /// may be called anywhere.
  void pin(Access) noexcept { block_->pins.fetch_add(1, std::memory_order_relaxed); }
  void unpin() noexcept { block_->pins.fetch_sub(1, std::memory_order_release); }
  bool is_pinned() const noexcept { return block_ != nullptr && block_->pins.load(std::memory_order_relaxed) > 0; }

  /// False while away.
  bool is_here() const noexcept { return block_ != nullptr; }
  /// The parameter store, and this storage's index there; null if the bytes are always here.
  const std::shared_ptr<ParameterStore>& store() const noexcept { return store_; }
  std::uint32_t index_in_store() const noexcept { return index_in_store_; }

  /// For the store: sets the store and index, or removes them (null) while the bytes are here.
  void set_store(std::shared_ptr<ParameterStore> store, std::uint32_t index) noexcept;
  /// For the store: gives the unpinned block back, and takes a new one with unset bytes. Neither changes the version.
  /// take_block() throws OutOfMemory.
  void give_block_back() noexcept;
  void take_block();

 private:
  void relabel() noexcept;

  std::shared_ptr<Resource> resource_;
  Block* block_ = nullptr;  // null while away
  std::size_t bytes_;
  std::shared_ptr<ParameterStore> store_;
  std::uint32_t index_in_store_ = 0;
  PathId path_;
  Device device_;
  Category base_category_;
  std::uint32_t held_ = 0;
  mutable std::uint32_t version_ = 0;
  std::uint32_t writers_ = 0;  // live WritePins
};

}  // namespace memory

}  // namespace thimble
