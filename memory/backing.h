#pragma once
// Backing: the pages under an arena.
//
// Policy
// - One contiguous address range is reserved once; reserving costs addresses, not memory.
// - Pages are had by `commit` and given back by `decommit`, always in whole granules. A page is paid for when it is
//   committed (and touched then, never again by a fault) so that committed bytes are the process's real growth.
// - A refusal is a value, not an exception: the arena decides what it means, and nothing has changed.
// - Nothing about blocks is stored in the range, so a device that the host cannot address (CUDA, dry) fits the same
//   interface.
//
// Terms
//   reserve    own a range of addresses that cannot be used yet
//   commit     put pages under a part of it
//   granule    smallest unit of commit; offsets and sizes given here are multiples of it
//   dry        counts only: same granule and range as the device it stands for, no pages

#include <cstddef>
#include <memory>
#include <system_error>

#include <thimble/core/device.h>
#include <thimble/core/resource.h>

namespace thimble {

class Backing {
 public:
  virtual ~Backing() = default;

  virtual Device device() const noexcept = 0;

  /// Smallest unit of commit in bytes, a power of two (2 MiB: a huge page on x86, the mapping granularity on CUDA).
  virtual std::size_t granule() const noexcept = 0;

  /// Alignment in bytes that every block on this device has: 64 (a cache line) on CPU, 512 on CUDA.
  virtual std::size_t alignment() const noexcept = 0;

  /// Reserves `bytes` (a multiple of the granule) and returns their first address, aligned to the granule; nullptr when
  /// refused. Called once, until it succeeds. On a device that is not the host the address is a number.
  virtual std::byte* reserve(std::size_t bytes) noexcept = 0;

  /// Puts pages under [offset, offset + bytes) of the range. Returns std::errc{} or why not, e.g.
  /// std::errc::not_enough_memory; then nothing has changed. Contents are unspecified.
  virtual std::errc commit(std::size_t offset, std::size_t bytes) noexcept = 0;

  /// Gives the pages of [offset, offset + bytes) back; contents are lost.
  virtual void decommit(std::size_t offset, std::size_t bytes) noexcept = 0;

  /// Copies `bytes` committed bytes from offset `from` to offset `to` (in stream order where there are streams); the
  /// two may overlap. Nothing on a dry device.
  virtual void move(std::size_t from, std::size_t to, std::size_t bytes, Stream stream) noexcept = 0;

  /// Sets committed bytes to `value` (in stream order where there are streams); nothing on a dry device.
  virtual void fill(std::size_t offset, std::size_t bytes, std::byte value, Stream stream) noexcept = 0;
};

/// Host memory: mmap without reservation, huge pages where the kernel offers them.
std::unique_ptr<Backing> make_cpu_backing();

/// Counts only. `device` is the real or dry device to stand for; device() of the result is its dry twin.
std::unique_ptr<Backing> make_dry_backing(Device device);

/// Memory of a GPU: CUDA virtual memory. Throws DeviceError when this build or machine has no such device.
std::unique_ptr<Backing> make_cuda_backing(Device device);

/// The backing of any device. Throws DeviceError when this build or machine has no such device.
std::unique_ptr<Backing> make_backing(Device device);

}  // namespace thimble
