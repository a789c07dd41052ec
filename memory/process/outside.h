#pragma once
// An upper bound, known before a run, of the bytes that a process takes outside its arena.
//
//   outside = base + bytes per thread x further threads + bytes per node x nodes + bytes per event x events + staging
//             + data
//
// Policy
// - The bound holds for both of the kernel's counts: resident pages (VmRSS, control groups) and private writable
//   addresses (VmData, RLIMIT_DATA). Each term is the larger of the two.
// - The base is measured during set-up, all else follows from the run's sizes. It does not grow with the steps.
// - The kernel's cache of files does not count: the kernel takes it back.
//
// Terms
//   base      all pages of code and libraries, touched or not; the heap and other writable memory at set-up
//   thread    its whole stack, and the first pages of its heap
//   node      a recorded operator of a step: its entries in tapes, plans, the arena's books, names
//   event     an allocation or free of a placed step (memory/policies/placed.h)
//   staging   buffers between files and tensors, and between a host and a GPU
//   data      a data set's bytes on the heap

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble::memory {

/// The process without its arenas, at one moment.
struct ProcessBase {
  std::size_t code_bytes = 0;      ///< mapped from files: the program, its libraries
  std::size_t writable_bytes = 0;  ///< not mapped from files: the larger of resident and private writable bytes. If
                                   ///< the latter exceed the machine's memory they are only reserved: resident ones

  /// Gives free pages of the heap back to the kernel, then measures. The base excludes the `arena_bytes` committed by
  /// arenas. Throws Error without /proc.
  static ProcessBase measure(std::size_t arena_bytes = 0);
};

/// Measures a run's process from set-up on.
class ProcessWatch {
 public:
  /// Measures the base, and resets the peak to now if the kernel allows that. `arena_bytes` as above.
  explicit ProcessWatch(std::size_t arena_bytes = 0);
  const ProcessBase& base() const noexcept { return base_; }
  /// Largest resident bytes of the process since construction; 0 if unknown, because the earlier peak was higher and
  /// could not be reset.
  std::size_t peak_bytes() const;

 private:
  ProcessBase base_;
  std::size_t peak_before_ = 0;  // 0 if the peak was reset
};

/// The facts of a run that determine its bytes outside the arena.
struct OutsideFacts {
  int threads = 1;          ///< that run kernels, including the caller's
  int tier_threads = 0;     ///< sum of the tiers' FileTier::Options::workers
  std::size_t nodes = 0;    ///< recorded in a step
  std::size_t events = 0;   ///< of all placed steps (memory/policies/placed.h)
  std::size_t staging = 0;  ///< bytes
  std::size_t data = 0;     ///< bytes
  bool holds_data = true;   ///< whether the data existed when the base was measured
};

struct OutsideBytes {
  std::size_t code = 0, heap = 0, threads = 0, nodes = 0, staging = 0, data = 0;

  std::size_t total() const noexcept { return code + heap + threads + nodes + staging + data; }
  /// The terms by name, in this order.
  std::vector<std::pair<std::string_view, std::size_t>> parts() const;
  friend bool operator==(const OutsideBytes&, const OutsideBytes&) = default;
};

/// The bound of a run that begins with this base.
OutsideBytes outside_bytes(const ProcessBase& base, const OutsideFacts& facts);

/// "10.20 MiB (code 6.10 MiB, heap 2.00 MiB, ...)", without terms of 0 bytes.
std::string to_string(const OutsideBytes& outside);

/// The process's default stack size in bytes; workers of kernels have another size (core/threads/parallel.h).
std::size_t thread_stack_bytes() noexcept;

/// For the start of main: new threads get stacks of 256 KiB (except kernels' workers) and share one heap, whose large
/// blocks go back to the kernel as soon as they are freed. Applies to the whole process.
void bound_heap_and_stacks() noexcept;

}  // namespace thimble::memory
