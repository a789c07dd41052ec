#pragma once
// A slower, larger place for bytes of a device: a disk for the host's memory, the host's pinned memory for a GPU's.
//
// Terms
//   tier       takes copies of bytes and gives them back, bit by bit
//   ticket     names what was written, until it is dropped
//   transfer   one write or read under way
//
// Policy
// - A tier never allocates or frees the caller's memory. The device memory that it needs itself it takes when it is
//   constructed.
// - Transfers run beside the program; a program sees their end only in wait(). So nothing that a program allocates or
//   frees depends on how fast they are, and a dry run makes the very same requests.
// - The memory of a transfer must stay where it is: its block is pinned from write() or read() to wait() or drop().

#include <cstddef>
#include <cstdint>

#include <thimble/core/tensor/resource.h>

namespace thimble {

/// Returned by a write; 0 is no ticket.
using Ticket = std::uint64_t;

/// What a tier has done, all counts since it was made. On a dry device everything but the times is as on a real one.
struct TierStatistics {
  std::uint64_t writes = 0, reads = 0;
  std::uint64_t bytes_written = 0, bytes_read = 0;  ///< of the callers; not rounded
  std::uint64_t live_bytes = 0;                     ///< of tickets that are not dropped; not rounded
  std::uint64_t committed_bytes = 0;                ///< what the tier occupies: the file's length, or pinned memory
  double transfer_ms = 0;                           ///< time spent in transfers, summed over those that ran at once
  double wait_ms = 0;                               ///< time that callers were held up in wait() and drop()
};

/// All calls are thread-safe; calls for one ticket come one after the other.
class Tier {
 public:
  virtual ~Tier() = default;

  /// The device whose memory the bytes are in.
  virtual Device device() const noexcept = 0;

  /// Begins to copy `bytes` > 0 bytes from `from`, which must not change until wait(). Throws FileError when there is
  /// no room for them, OutOfMemory when the host's memory has none; nothing has changed then. On a dry device `from` is
  /// not looked at.
  virtual Ticket write(const void* from, std::size_t bytes, Stream stream = nullptr) = 0;
  /// Begins to copy what was written to `to`, all bytes of it; waits for the write first. A read early enough is what
  /// hides the tier's latency. May be repeated. Throws FileError when the write has failed.
  virtual void read(Ticket ticket, void* to, Stream stream = nullptr) = 0;
  /// Returns when the ticket's transfer is done. Throws FileError when it failed: after a write the ticket can
  /// only be dropped, after a read the read can be tried again.
  virtual void wait(Ticket ticket) = 0;
  /// Frees the ticket's room. Cuts off a transfer under way, which touches no memory after the return.
  virtual void drop(Ticket ticket) noexcept = 0;

  virtual TierStatistics statistics() const = 0;
};

}  // namespace thimble
