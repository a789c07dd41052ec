#pragma once
// One block of one resource. It can move: its address is looked up when a kernel is launched, never kept.

#include <cstdint>
#include <memory>

#include <thimble/core/tensor/resource.h>

namespace thimble {

/// The right to see addresses. Only a launch (core/launch/launch.h) and a Pin make one.
class Access {
 private:
  Access() = default;
  friend struct AccessMaker;
};

class Storage {
 public:
  /// Takes one block of `bytes` > 0 from `resource`, labelled with `category` and the Context's path. Throws
  /// OutOfMemory.
  Storage(std::shared_ptr<Resource> resource, std::size_t bytes, Category category);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::size_t bytes() const noexcept { return block_->bytes; }
  Device device() const noexcept { return device_; }
  const std::shared_ptr<Resource>& resource() const noexcept { return resource_; }
  PathId path() const noexcept { return block_->path; }
  Category category() const noexcept { return block_->category; }

  /// What the block is for when backward does not need it. While it is held for backward, a temporary counts as an
  /// activation.
  void set_category(Category category) noexcept;

  /// Counted: the tape holds every storage that backward will read.
  void hold_for_backward() noexcept;
  bool is_held_for_backward() const noexcept { return held_ > 0; }
  void release_from_backward() noexcept;

  /// Counts in-place writes: the tape compares it to find tensors that were overwritten. While somebody may write at
  /// any time, no two calls agree.
  std::uint32_t version() const noexcept { return writers_ > 0 ? ++version_ : version_; }
  void bump_version() noexcept { ++version_; }
  void begin_write() noexcept { ++version_, ++writers_; }
  void end_write() noexcept { ++version_, --writers_; }
  /// Restores the version of fetched bytes, so version checks still pass.
  void take_version(std::uint32_t version) noexcept { version_ = version; }

  std::byte* address(Access) const noexcept { return block_->address; }

  /// Counted: a pinned block is not moved. pin() is called from inside of a launch, so that no compaction is under way;
  /// unpin() from anywhere.
  void pin(Access) noexcept { block_->pins.fetch_add(1, std::memory_order_relaxed); }
  void unpin() noexcept { block_->pins.fetch_sub(1, std::memory_order_release); }

 private:
  void relabel() noexcept;

  std::shared_ptr<Resource> resource_;
  Block* block_;
  Device device_;
  Category base_category_;
  std::uint32_t held_ = 0;
  mutable std::uint32_t version_ = 0;
  std::uint32_t writers_ = 0;  // WritePins
};

}  // namespace thimble
