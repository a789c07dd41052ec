#pragma once
// A slower, larger place for a device's bytes: a disk for the host's memory, the host's pinned memory for a GPU's.
//
// Terms
//   tier       takes copies of bytes and gives the same bits back
//   ticket     names written bytes until it is dropped
//   transfer   one running write or read
//
// Policy
// - A tier never allocates or frees the caller's memory. It takes its device memory when it is constructed.
// - Transfers run in the background; a program sees their end only in wait(). So no allocation depends on their speed,
//   and a dry run makes the same requests.
// - A transfer's memory must not move: its block is pinned from write() or read() to wait() or drop().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <thimble/core/tensor/resource.h>

namespace thimble::memory {

/// Returned by a write; 0 is never a ticket.
using Ticket = std::uint64_t;

/// A tier's counts since it was made. On a dry device all but the times are as on a real one.
struct TierStatistics {
  std::uint64_t writes = 0, reads = 0;
  std::uint64_t bytes_written = 0, bytes_read = 0;  ///< as requested, not rounded
  std::uint64_t live_bytes = 0;                     ///< of live tickets; not rounded
  std::uint64_t committed_bytes = 0;                ///< the file's length, or the pinned memory
  double transfer_ms = 0;                           ///< time spent in transfers, summed over concurrent ones
  double wait_ms = 0;                               ///< time that callers waited for transfers
};

/// Calls are thread-safe, except that calls for one ticket must not overlap.
class Tier {
 public:
  virtual ~Tier() = default;

  /// The device whose memory it serves.
  virtual Device device() const noexcept = 0;

  /// Begins to copy `bytes` > 0 bytes from `from`, which must not change until wait(). Throws FileError when the tier
  /// has no room, OutOfMemory when the host has none; nothing has changed then. Ignores `from` on a dry device.
  virtual Ticket write(const void* from, std::size_t bytes, Stream stream = nullptr) = 0;
  /// Waits for the write, then begins to copy all written bytes to `to`. An early read hides the tier's latency. May be
  /// repeated. Throws FileError when the write has failed.
  virtual void read(Ticket ticket, void* to, Stream stream = nullptr) = 0;
  /// Waits until the ticket's transfer is done (on a GPU, lets later kernels wait). Throws FileError when it failed:
  /// after a failed write the ticket can only be dropped, a failed read can be repeated.
  virtual void wait(Ticket ticket) = 0;
  /// Frees the ticket's room. A running transfer ends first, with its bytes undefined (on a GPU, before later kernels).
  virtual void drop(Ticket ticket) noexcept = 0;

  virtual TierStatistics statistics() const = 0;
};

struct TierOptions {
  std::string folder;                ///< of the cpu's file; defaults to $TMPDIR, or /var/tmp. Must be empty for a GPU
  std::uint64_t capacity_bytes = 0;  ///< largest number of committed bytes; defaults to the room of the disk or host
};

/// The tier for a device's offloaded tensors.
///
///   cpu    a file on a disk                   memory/offload/file_tier.h
///   cuda   the host's pinned memory           memory/offload/pinned_tier.h
///   dry    as the device it represents
///
/// Throws ValueError for a folder with a GPU; FileError and DeviceError as the tiers do.
std::shared_ptr<Tier> make_tier(Device device, const TierOptions& options = {});

}  // namespace thimble::memory
