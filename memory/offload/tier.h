#pragma once
// A slower, larger place for bytes of a device: a disk for the host's memory, the host's pinned memory for a GPU's.
//
// Terms
//   tier       takes copies of bytes and gives them back, bit by bit
//   ticket     names written bytes, until it is dropped
//   transfer   one running write or read
//
// Policy
// - A tier never allocates or frees the caller's memory. It takes its device memory when it is constructed.
// - Transfers run beside the program; a program sees their end only in wait(). So no allocation of a program depends on
//   their speed, and a dry run makes the very same requests.
// - The memory of a transfer must not move: its block is pinned from write() or read() to wait() or drop().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <thimble/core/tensor/resource.h>

namespace thimble {

/// Returned by a write; 0 is never a ticket.
using Ticket = std::uint64_t;

/// A tier's counts since it was made. On a dry device everything but the times is as on a real one.
struct TierStatistics {
  std::uint64_t writes = 0, reads = 0;
  std::uint64_t bytes_written = 0, bytes_read = 0;  ///< of the callers; not rounded
  std::uint64_t live_bytes = 0;                     ///< of tickets that are not dropped; not rounded
  std::uint64_t committed_bytes = 0;                ///< bytes that the tier occupies: the file's length, or pinned
                                                    ///< memory
  double transfer_ms = 0;                           ///< time spent in transfers, summed over concurrent ones
  double wait_ms = 0;                               ///< time that callers waited in wait() and drop()
};

/// All calls are thread-safe; calls for one ticket come one after the other.
class Tier {
 public:
  virtual ~Tier() = default;

  /// The device of the bytes' memory.
  virtual memory::Device device() const noexcept = 0;

  /// Begins to copy `bytes` > 0 bytes from `from`, which must not change until wait(). Throws FileError when there is
  /// no room, OutOfMemory when the host's memory has none; nothing has changed then. Ignores `from` on a dry device.
  virtual Ticket write(const void* from, std::size_t bytes, Stream stream = nullptr) = 0;
  /// Begins to copy all of the written bytes to `to`; waits for the write first. An early read hides the tier's
  /// latency. May be repeated. Throws FileError when the write has failed.
  virtual void read(Ticket ticket, void* to, Stream stream = nullptr) = 0;
  /// Returns when the ticket's transfer is done. Throws FileError when it failed: after a write the ticket can only be
  /// dropped, after a read the read can be repeated.
  virtual void wait(Ticket ticket) = 0;
  /// Frees the ticket's room. Cuts off a running transfer, which touches no memory after the return.
  virtual void drop(Ticket ticket) noexcept = 0;

  virtual TierStatistics statistics() const = 0;
};

namespace memory {

struct TierOptions {
  std::string folder;                ///< of the cpu's file; defaults to $TMPDIR, or /var/tmp. Not with a GPU
  std::uint64_t capacity_bytes = 0;  ///< bound of the tier's bytes; defaults to the room of the disk or the host
};

/// The tier of a device, for its offloaded tensors.
///
///   cpu    a file on a disk                   memory/offload/file_tier.h
///   cuda   the host's pinned memory           memory/offload/pinned_tier.h
///   dry    as the device it represents
///
/// Throws ValueError for a folder where the tier is memory; FileError, DeviceError as the tiers do.
std::shared_ptr<Tier> make_tier(Device device, const TierOptions& options = {});

}  // namespace memory

}  // namespace thimble
