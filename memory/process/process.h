#pragma once
// The kernel's figures of this process, to compare the library's books with.
//
// Policy
// - Every call reads its figure anew. Functions that are not noexcept throw Error without /proc.
//
// Terms
//   resident   pages in physical memory now (VmRSS)
//   data       private writable mappings (VmData), limited by RLIMIT_DATA
//   available  bytes that the kernel can give without swapping or killing, within the control group's limit

#include <cstddef>
#include <vector>

#include <thimble/memory/process/host_limits.h>

namespace thimble::process {

/// Resident bytes of this process (VmRSS).
std::size_t rss_bytes();

/// Largest resident bytes so far (VmHWM).
std::size_t peak_rss_bytes();

/// Makes the current resident bytes the peak (writes 5 to /proc/self/clear_refs). False where that is forbidden: the
/// peak then covers the whole life of the process.
bool reset_peak_rss() noexcept;

/// Bytes of address space (VmSize), limited by RLIMIT_AS.
std::size_t address_space_bytes();

/// Bytes mapped from files, except unreadable ones: the program and its libraries, touched or not.
std::size_t file_mapped_bytes();

/// Resident bytes of heap, stacks and arenas, without files (Anonymous of smaps_rollup). Exact, unlike rss_bytes(): the
/// kernel counts VmRSS per processor, and loads and drops a program's file pages at will.
std::size_t anonymous_rss_bytes();

/// Private writable bytes (VmData), limited by RLIMIT_DATA.
std::size_t data_bytes();

/// Resident bytes of the mappings in [begin, begin + bytes) (Rss of smaps).
std::size_t mapping_rss_bytes(const void* begin, std::size_t bytes);

/// Bytes of the machine's memory; 0 if unknown.
std::size_t physical_bytes() noexcept;

/// The smaller of the machine's available memory and the rest of the control group's limit; the largest std::size_t if
/// neither can be read.
std::size_t available_bytes() noexcept;

/// Processor time of all threads of this process so far, in ms: a clock that stops while other processes have the
/// cores.
double processor_ms() noexcept;

}  // namespace thimble::process

// ---- Planning in bounded memory: requests beyond the host's limits get std::bad_alloc before the kernel would kill
// the process.

namespace thimble::memory {

/// Private writable bytes that the smallest limit leaves for planning. Half of the code counts: the kernel can drop the
/// other half and read it again.
std::size_t heap_room(const std::vector<HostLimit>& limits = host_limits());

/// Limits the private writable bytes of the whole process (RLIMIT_DATA) for a scope, never above an existing limit.
/// Does nothing under a sanitizer, whose shadow exceeds any bound.
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
