#pragma once
// Backing: the pages under an arena.
//
// Policy
// - One contiguous address range is reserved once; reserving costs addresses, not memory.
// - `commit` takes pages and `decommit` gives them back, always in whole granules. Commit touches the pages, so that
//   committed bytes are the process's real growth and no access faults later.
// - A refusal is a return value, not an exception, and changes nothing.
// - The range stores nothing about blocks, so the same interface fits a device that the host cannot address (CUDA,
//   dry).
//
// Terms
//   reserve    take a range of addresses, not yet usable
//   commit     put pages under a part of the range
//   granule    smallest unit of commit; offsets and sizes here are multiples of it
//   remap      give pages, with their contents, another address within the range
//   dry        counts only: same granule and range as the device it represents, no pages

#include <cstddef>
#include <memory>
#include <string>
#include <system_error>

#include <thimble/core/device.h>
#include <thimble/core/tensor/resource.h>

namespace thimble::memory {

/// A device's time for moves. All times compare equal, so comparisons of statistics ignore them.
struct MoveTime {
  double ms = 0;                  ///< of the finished moves
  std::size_t unknown_moves = 0;  ///< groups of moves that may still be running
  friend bool operator==(const MoveTime&, const MoveTime&) { return true; }
};

class Backing {
 public:
  virtual ~Backing() = default;

  virtual Device device() const noexcept = 0;

  /// Smallest unit of commit in bytes, a power of two (2 MiB: a huge page on x86, the mapping granularity on CUDA).
  virtual std::size_t granule() const noexcept = 0;

  /// Alignment in bytes of every block on this device: 64 (a cache line) on CPU, 512 on CUDA.
  virtual std::size_t alignment() const noexcept = 0;

  /// Reserves `bytes` (a multiple of the granule) and returns their first address, aligned to the granule; nullptr when
  /// refused. Called until it succeeds, then never again. The host cannot access another device's address.
  virtual std::byte* reserve(std::size_t bytes) noexcept = 0;

  /// Puts pages with unspecified contents under [offset, offset + bytes) of the range. Returns std::errc{}, or the
  /// error (e.g. std::errc::not_enough_memory) with nothing changed.
  virtual std::errc commit(std::size_t offset, std::size_t bytes) noexcept = 0;

  /// The last refusal of commit in words; on a GPU, the driver's call with its arguments.
  virtual std::string refusal_text(std::errc error) const { return std::make_error_code(error).message(); }

  /// Gives the pages of [offset, offset + bytes) back; contents are lost.
  virtual void decommit(std::size_t offset, std::size_t bytes) noexcept = 0;

  /// Copies `bytes` committed bytes from offset `from` to offset `to`, in stream order if there are streams; the ranges
  /// may overlap. Does nothing on a dry device.
  virtual void move(std::size_t from, std::size_t to, std::size_t bytes, Stream stream) noexcept = 0;

  /// Called around a group of moves, to measure the time of copies that the host only enqueues.
  virtual void begin_moves() noexcept {}
  virtual void end_moves() noexcept {}
  /// The time so far, zero where the host makes the moves itself. Queries the device without waiting.
  virtual MoveTime move_time() noexcept { return {}; }

  /// Whether `remap` works; on a dry device, whether it works on the device it represents.
  virtual bool can_remap() const noexcept { return false; }

  /// Maps the pages of [from, from + bytes), whole granules, at `to` < `from`, and the pages displaced there at the
  /// rest of [from, from + bytes) (memory/arena/granules.h). A granule without pages moves as one without pages. Waits
  /// for the device first. False, with nothing changed, when refused.
  virtual bool remap([[maybe_unused]] std::size_t from, [[maybe_unused]] std::size_t to,
                     [[maybe_unused]] std::size_t bytes) noexcept {
    return false;
  }

  /// Sets committed bytes to `value`, in stream order if there are streams. Does nothing on a dry device.
  virtual void fill(std::size_t offset, std::size_t bytes, std::byte value, Stream stream) noexcept = 0;
};

/// Host memory: mmap without reservation, with huge pages where the kernel offers them.
std::unique_ptr<Backing> make_cpu_backing();

/// Counts only. `device` is the real or dry device to represent; device() of the result is its dry twin.
std::unique_ptr<Backing> make_dry_backing(Device device);

/// Memory of a GPU: CUDA virtual memory. Throws DeviceError when this build or machine has no such device.
std::unique_ptr<Backing> make_cuda_backing(Device device);

/// The backing of any device. Throws DeviceError when this build or machine has no such device.
std::unique_ptr<Backing> make_backing(Device device);

}  // namespace thimble::memory
