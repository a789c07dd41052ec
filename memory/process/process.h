#pragma once
// Process figures, read from the kernel, to compare the library's books with.
//
// Policy
// - Every figure is read anew from /proc; nothing is cached or estimated. Throws Error without /proc.
//
// Terms
//   resident   pages in physical memory now (VmRSS)
//   data       private writable mappings (VmData), limited by RLIMIT_DATA
//   available  bytes that the kernel can still give without swapping or killing, and the control group still permits

#include <cstddef>
#include <vector>

#include <thimble/memory/process/host_limits.h>

namespace thimble::process {

/// Resident bytes of this process (VmRSS).
std::size_t rss_bytes();

/// Largest resident bytes so far (VmHWM).
std::size_t peak_rss_bytes();

/// Makes the present resident bytes the peak (5 to /proc/self/clear_refs). False where that is forbidden: the peak then
/// covers the whole life of the process.
bool reset_peak_rss() noexcept;

/// Addresses of this process (VmSize), limited by RLIMIT_AS.
std::size_t address_space_bytes();

/// Bytes mapped from files, except unreadable ones: the program and its libraries, touched or not.
std::size_t file_mapped_bytes();

/// Resident bytes of no file: heap, stacks, arenas (Anonymous of smaps_rollup). Exact where rss_bytes() need not be:
/// the kernel counts VmRSS in parts, one for each processor, and takes a program's file pages in and out as it likes.
std::size_t anonymous_rss_bytes();

/// Private writable bytes (VmData), limited by RLIMIT_DATA.
std::size_t data_bytes();

/// Resident bytes of the mappings in [begin, begin + bytes) (Rss of smaps).
std::size_t mapping_rss_bytes(const void* begin, std::size_t bytes);

/// Bytes of the machine's memory; 0 if unknown.
std::size_t physical_bytes() noexcept;

/// Bytes still available: the smaller of the machine's available memory and the rest of the process's control group;
/// the largest std::size_t where neither can be read.
std::size_t available_bytes() noexcept;

/// Milliseconds of processor time of all threads of this process so far, together: a clock that stops while others have
/// the cores.
double processor_ms() noexcept;

}  // namespace thimble::process

// ---- Planning in bounded memory: requests beyond the limits of the host get std::bad_alloc, where the kernel would
// end the process.

namespace thimble::memory {

/// Private writable bytes that planning may hold in this process, by the smallest of the limits. Code counts by half:
/// the kernel drops the rest and reads it again.
std::size_t heap_room(const std::vector<HostLimit>& limits = host_limits());

/// For a scope limits this process to so many private writable bytes (RLIMIT_DATA), or fewer if it was limited to fewer
/// already. A setting of the process, not of a thread. With a sanitizer, whose shadow exceeds any bound, there is none.
class HeapBound {
 public:
  explicit HeapBound(std::size_t bytes) noexcept;
  ~HeapBound();
  HeapBound(const HeapBound&) = delete;
  HeapBound& operator=(const HeapBound&) = delete;

  /// The bound in force.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_, before_;
};

}  // namespace thimble::memory
