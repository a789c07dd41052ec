#pragma once
// A tier on a disk.
//
// Policy
// - One nameless file (memory/offload/direct_file.h). A write takes a slot: the last one freed of the same size, or a
//   new one at the file's end, reserved on the disk before anything is copied, so that write() detects a full disk at
//   once. A training step writes the same sizes again and again: the file stops growing after the first.
// - Worker threads move chunks of `chunk_bytes`, first come, first served; several share one large transfer. Direct I/O
//   needs aligned memory, which tensors need not be: each worker copies through a bounce buffer of one chunk. The
//   buffers are one tensor, taken from the context's resource when the tier is made and booked as workspace under
//   "offload".
// - On a dry device there are no file and no threads; slots, capacity and bounce buffers are as on a real one.
// - The destructor waits for running transfers.

#include <memory>
#include <string>

#include <thimble/memory/offload/tier.h>

namespace thimble {

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
