#pragma once
// Process figures, read from the kernel: what the library's own books are held against.
//
// Policy
// - Every figure is read afresh from /proc; nothing is cached or estimated. Throws Error where there is no /proc.
//
// Terms
//   resident   pages in physical memory now (VmRSS)
//   data       private writable mappings (VmData): what RLIMIT_DATA limits
//   available  what the kernel can still give without swapping or killing, and the control group still allows

#include <cstddef>

namespace thimble::process {

/// Resident bytes of this process (VmRSS).
std::size_t rss_bytes();

/// Largest resident bytes so far (VmHWM).
std::size_t peak_rss_bytes();

/// Makes the present resident bytes the peak (5 to /proc/self/clear_refs). False where that is not allowed: the peak is
/// then that of the whole life of the process.
bool reset_peak_rss() noexcept;

/// Addresses of this process (VmSize): what RLIMIT_AS is held against.
std::size_t address_space_bytes();

/// Bytes mapped from files, those that may not be read left out: the program and its libraries, touched or not.
std::size_t file_mapped_bytes();

/// Resident bytes of no file: heap, stacks, arenas (Anonymous of smaps_rollup). Exact where rss_bytes() need not be:
/// the kernel counts VmRSS in parts, one for each processor, and takes a program's own file pages in and out as it
/// likes.
std::size_t anonymous_rss_bytes();

/// Private writable bytes (VmData): what RLIMIT_DATA is held against.
std::size_t data_bytes();

/// Resident bytes of the mappings that lie in [begin, begin + bytes) (Rss of smaps).
std::size_t mapping_rss_bytes(const void* begin, std::size_t bytes);

/// Bytes of memory that the machine has; 0 where the system does not say.
std::size_t physical_bytes() noexcept;

/// Bytes that can still be had: the smaller of the machine's available memory and what the process's control group
/// leaves; the largest std::size_t where neither can be read.
std::size_t available_bytes() noexcept;

/// Milliseconds of processor time that all threads of this process have had so far, together: a clock that does not run
/// while others have the cores.
double processor_ms() noexcept;

}  // namespace thimble::process
