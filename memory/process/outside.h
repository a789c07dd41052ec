#pragma once
// A bound, stated before a run, of the bytes that a process takes beside its arena: code, heap, threads, staging, data.
//
//   outside = base + bytes per thread x further threads + bytes per node x nodes + staging + data
//
// Policy
// - The bound holds for both ways in which the kernel counts: resident pages (VmRSS, control groups) and private
//   writable addresses (VmData, RLIMIT_DATA). Each term is the larger of the two.
// - The base is measured during set-up, all else follows from the run's sizes. It grows with no step.
// - The machine's page cache of files is no part of it: the kernel takes it back.
//
// Terms
//   base      code and libraries, all of their pages, touched or not; the heap and other writable memory at that moment
//   thread    its stack, all of it, and the first pages of its heap
//   node      an operator of a step's recording: its entries in tapes, plans, books of the arena, names
//   staging   buffers between files and tensors, and between a host and a GPU
//   data      a data set's bytes on the heap

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble::memory {

/// The present process, without its arenas. Throws Error without /proc.
struct ProcessBase {
  std::size_t code_bytes = 0;      ///< mapped from files: the program, its libraries
  std::size_t writable_bytes = 0;  ///< not mapped from files: the larger of resident and private writable bytes. The
                                   ///< latter count up to the machine's memory: more is reserved, not for use

  /// Gives free pages of the heap back to the kernel, then measures. `arena_bytes` are committed by arenas, which the
  /// base excludes.
  static ProcessBase measure(std::size_t arena_bytes = 0);
};

/// A run's bytes in the process, from its set-up on.
class ProcessWatch {
 public:
  /// Measures the base, and makes the present the peak if the kernel allows that. `arena_bytes` as above.
  explicit ProcessWatch(std::size_t arena_bytes = 0);
  const ProcessBase& base() const noexcept { return base_; }
  /// Largest resident bytes of the process since then; 0 when unknown, because the earlier peak was higher and could
  /// not be reset.
  std::size_t peak_bytes() const;

 private:
  ProcessBase base_;
  std::size_t peak_before_ = 0;  // 0 if it was reset
};

/// The facts of a run that determine its bytes beside the arena.
struct OutsideFacts {
  int threads = 1;          ///< of kernels, including the caller's
  int tier_threads = 0;     ///< of tiers: FileTier::Options::workers of each
  std::size_t nodes = 0;    ///< of a step's recording
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

/// Address space of a new thread's stack, by the process's default; workers of kernels have another size
/// (core/threads/parallel.h).
std::size_t thread_stack_bytes() noexcept;

/// For programs, first thing in main: new threads get stacks of 256 KiB (kernels' workers have their own size) and
/// share one heap, whose large blocks go back to the kernel as soon as they are freed. These are settings of the
/// process.
void bound_heap_and_stacks() noexcept;

}  // namespace thimble::memory
