#pragma once
// A nameless file on a disk, read and written past the page cache.
//
// Policy
// - Bytes that are offloaded to make room must not come back as cached pages: the file is opened for direct I/O
//   (O_DIRECT), and a file system that keeps its files in memory (tmpfs, ramfs) or cannot do direct I/O is refused.
//   There is no fallback.
// - The file loses its name as soon as it is open, so that nothing stays behind, however the process ends.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <thimble/memory/offload/tier.h>

namespace thimble {

class DirectFile {
 public:
  /// Offsets, lengths and addresses are multiples of this.
  static constexpr std::size_t alignment = 4096;

  /// Makes the file in `folder`. Throws FileError naming the folder and the supported file systems.
  explicit DirectFile(const std::string& folder);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Allocates [offset, offset + bytes) on the disk now, not at the first write. Throws FileError when the disk (or the
  /// process's limit of a file's size) has no room.
  void reserve(std::uint64_t offset, std::uint64_t bytes);

  /// Both return 0 or an errno, and may be called by several threads at once.
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
// - One nameless file. A write takes a slot: the last one freed of the same size, or a
//   new one at the file's end, reserved on the disk before anything is copied, so that write() detects a full disk at
//   once. A training step writes the same sizes again and again: the file stops growing after the first.
// - Worker threads move chunks of `chunk_bytes`, first come, first served; several share one large transfer. Direct I/O
//   needs aligned memory, which tensors need not be: each worker copies through a bounce buffer of one chunk. The
//   buffers are one tensor, taken from the context's resource when the tier is made and booked as workspace under
//   "offload".
// - On a dry device there are no file and no threads; slots, capacity and bounce buffers are as on a real one.
// - The destructor waits for running transfers.

class FileTier final : public Tier {
 public:
  struct Options {
    std::string folder;                              ///< defaults to $TMPDIR, or /var/tmp
    std::uint64_t capacity_bytes = 0;                ///< bound of the file's length; defaults to the disk's room
    std::size_t chunk_bytes = std::size_t{1} << 20;  ///< a multiple of 4096
    int workers = 2;                                 ///< 1 .. 16
  };

  /// For the memory of `device`, the cpu or a dry one. Throws FileError (the folder does not exist, is in memory,
  /// cannot do direct I/O), ValueError, DeviceError, OutOfMemory.
  FileTier(memory::Device device, const Options& options);
  explicit FileTier(memory::Device device = cpu) : FileTier(device, Options()) {}
  ~FileTier() override;
  FileTier(const FileTier&) = delete;
  FileTier& operator=(const FileTier&) = delete;

  memory::Device device() const noexcept override;
  Ticket write(const void* from, std::size_t bytes, Stream stream = nullptr) override;
  void read(Ticket ticket, void* to, Stream stream = nullptr) override;
  void wait(Ticket ticket) override;
  void drop(Ticket ticket) noexcept override;
  TierStatistics statistics() const override;

  /// Bytes of the bounce buffers that a tier with these options takes.
  static std::size_t workspace_bytes(const Options& options) noexcept;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble
