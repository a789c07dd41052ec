#pragma once
// Backing: the pages under an arena.
//
// Policy
// - One contiguous address range is reserved once; reserving costs addresses, not memory.
// - `commit` takes pages and `decommit` gives them back, always in whole granules. A page is paid for when it is
//   committed (and touched then, never again by a fault) so that committed bytes are the process's real growth.
// - A refusal is a value, not an exception: the arena interprets it, and nothing has changed.
// - The range stores nothing about blocks, so the same interface fits a device that the host cannot address (CUDA,
//   dry).
//
// Terms
//   reserve    own a range of addresses that cannot be used yet
//   commit     put pages under a region of it
//   granule    smallest unit of commit; offsets and sizes here are multiples of it
//   remap      give pages another address within the range; their contents go with them
//   dry        counts only: same granule and range as the device it represents, no pages

#include <cstddef>
#include <memory>
#include <string>
#include <system_error>

#include <thimble/core/device.h>
#include <thimble/core/tensor/resource.h>

namespace thimble {

/// A device's time for moves, beside the host's. It is reported, and equal to any other: comparisons of figures ignore
/// it.
struct MoveTime {
  double ms = 0;                  ///< of the finished moves
  std::size_t unknown_moves = 0;  ///< groups of moves that may still be running
  friend bool operator==(const MoveTime&, const MoveTime&) { return true; }
};

class Backing {
 public:
  virtual ~Backing() = default;

  virtual memory::Device device() const noexcept = 0;

  /// Smallest unit of commit in bytes, a power of two (2 MiB: a huge page on x86, the mapping granularity on CUDA).
  virtual std::size_t granule() const noexcept = 0;

  /// Alignment in bytes of every block on this device: 64 (a cache line) on CPU, 512 on CUDA.
  virtual std::size_t alignment() const noexcept = 0;

  /// Reserves `bytes` (a multiple of the granule) and returns their first address, aligned to the granule; nullptr when
  /// refused. Called once, until it succeeds. On a device other than the host the address is a number.
  virtual std::byte* reserve(std::size_t bytes) noexcept = 0;

  /// Puts pages under [offset, offset + bytes) of the range. Returns std::errc{} or the error, e.g.
  /// std::errc::not_enough_memory; then nothing has changed. Contents are unspecified.
  virtual std::errc commit(std::size_t offset, std::size_t bytes) noexcept = 0;

  /// The last refusal of commit in words: for a GPU the driver's call, with its arguments.
  virtual std::string refusal_text(std::errc error) const { return std::make_error_code(error).message(); }

  /// Gives the pages of [offset, offset + bytes) back; contents are lost.
  virtual void decommit(std::size_t offset, std::size_t bytes) noexcept = 0;

  /// Copies `bytes` committed bytes from offset `from` to offset `to` (in stream order where there are streams); the
  /// two may overlap. Nothing on a dry device.
  virtual void move(std::size_t from, std::size_t to, std::size_t bytes, Stream stream) noexcept = 0;

  /// Around moves whose time on the device is measured: copies in stream order, which the host only enqueues.
  virtual void begin_moves() noexcept {}
  virtual void end_moves() noexcept {}
  /// That time so far; empty where the host makes the moves itself. Queries the device without waiting.
  virtual MoveTime move_time() noexcept { return {}; }

  /// Whether `remap` works. A dry device answers as the device it represents.
  virtual bool can_remap() const noexcept { return false; }

  /// Whole granules: maps the pages of [from, from + bytes) at `to` < `from`, with their contents, and the pages
  /// displaced there at the rest of [from, from + bytes) (memory/arena/granules.h); missing pages stay missing there.
  /// Waits for the device first. False when refused; then nothing has changed.
  virtual bool remap([[maybe_unused]] std::size_t from, [[maybe_unused]] std::size_t to,
                     [[maybe_unused]] std::size_t bytes) noexcept {
    return false;
  }

  /// Sets committed bytes to `value` (in stream order where there are streams); nothing on a dry device.
  virtual void fill(std::size_t offset, std::size_t bytes, std::byte value, Stream stream) noexcept = 0;
};

/// Host memory: mmap without reservation, huge pages where the kernel offers them.
std::unique_ptr<Backing> make_cpu_backing();

/// Counts only. `device` is the real or dry device to represent; device() of the result is its dry twin.
std::unique_ptr<Backing> make_dry_backing(memory::Device device);

/// Memory of a GPU: CUDA virtual memory. Throws DeviceError when this build or machine has no such device.
std::unique_ptr<Backing> make_cuda_backing(memory::Device device);

/// The backing of any device. Throws DeviceError when this build or machine has no such device.
std::unique_ptr<Backing> make_backing(memory::Device device);

}  // namespace thimble
