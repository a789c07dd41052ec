#pragma once
// A nameless file on a disk, read and written past the page cache.
//
// Policy
// - Bytes that are offloaded to make room must not come back as cached pages, so the file is opened for direct I/O
//   (O_DIRECT). File systems that keep their files in memory (tmpfs, ramfs) or cannot do direct I/O are refused,
//   without fallback.
// - The file is unlinked as soon as it is open, so it disappears however the process ends.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <thimble/memory/offload/tier.h>

namespace thimble::memory {

class DirectFile {
 public:
  /// Offsets, lengths and addresses must be multiples of it.
  static constexpr std::size_t alignment = 4096;

  /// Makes the file in `folder`. Throws FileError naming the folder and the supported file systems.
  explicit DirectFile(const std::string& folder);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Allocates [offset, offset + bytes) on the disk before the first write. Throws FileError when the disk, or the
  /// process's limit on file sizes, has no room.
  void reserve(std::uint64_t offset, std::uint64_t bytes);

  /// Both return 0 or an errno; threads may call them concurrently.
  int write(std::uint64_t offset, const std::byte* from, std::size_t bytes) noexcept;
  int read(std::uint64_t offset, std::byte* to, std::size_t bytes) noexcept;

  const std::string& folder() const noexcept { return folder_; }

 private:
  std::string folder_;
  int descriptor_ = -1;
};

// ---- A tier on a disk.
//
// Policy
// - A write takes a slot of the file: the last freed one of its size, or a new one at the file's end. A new slot is
//   reserved on the disk before any copy, so that write() detects a full disk at once. Training steps write the same
//   sizes, so the file stops growing after the first step.
// - Worker threads move chunks of `chunk_bytes`, first come, first served; several share a large transfer. Direct I/O
//   needs aligned memory, and tensors may be unaligned, so each worker copies through a bounce buffer of one chunk. The
//   buffers are one tensor, taken from the context's resource when the tier is made and booked as workspace under
//   "offload".
// - A dry device has no file and no threads; slots, capacity and bounce buffers are as on a real one.
// - The destructor waits for running transfers.

class FileTier final : public Tier {
 public:
  struct Options {
    std::string folder;                              ///< defaults to $TMPDIR, or /var/tmp
    std::uint64_t capacity_bytes = 0;                ///< largest length of the file; defaults to the disk's room
    std::size_t chunk_bytes = std::size_t{1} << 20;  ///< a multiple of 4096
    int workers = 2;                                 ///< 1 .. 16
  };

  /// For the memory of `device`, the cpu or a dry one. Throws FileError (the folder does not exist, is in memory, or
  /// cannot do direct I/O), ValueError, DeviceError, OutOfMemory.
  FileTier(Device device, const Options& options);
  explicit FileTier(Device device = cpu) : FileTier(device, Options()) {}
  ~FileTier() override;
  FileTier(const FileTier&) = delete;
  FileTier& operator=(const FileTier&) = delete;

  Device device() const noexcept override;
  Ticket write(const void* from, std::size_t bytes, Stream stream = nullptr) override;
  void read(Ticket ticket, void* to, Stream stream = nullptr) override;
  void wait(Ticket ticket) override;
  void drop(Ticket ticket) noexcept override;
  TierStatistics statistics() const override;

  /// Bytes of the bounce buffers of a tier with these options.
  static std::size_t workspace_bytes(const Options& options) noexcept;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble::memory
