#pragma once
// Process-wide settings. Each changes bits or workspaces, so a plan's key includes it (kernels::describe_compute). All
// other ambient state is per thread (core/tensor/context.h).

#include <atomic>
#include <optional>
#include <string_view>

namespace thimble {

/// Set through the functions named here, and read by every launch.
struct Settings {
  std::atomic<int> threads;  ///< of kernels: set_thread_count (core/threads/parallel.h)
  static constexpr int max_threads = 1024, unreadable_threads = 0;
  std::atomic<int> isa;  ///< a kernels::Isa: kernels::set_isa (core/kernels/cpu/base/isa.h)
  /// A kernels::DotUnit, or one of these: kernels::set_unit_choice (core/kernels/cpu/base/units.h).
  static constexpr int automatic_unit = -2, no_unit = -1;
  std::atomic<int> bf16_unit, int8_unit;
};

/// The process's settings. Defaults: OMP_NUM_THREADS or all available processors, the best instruction set, units by
/// measured rates.
Settings& settings() noexcept;

/// The first of a list of numbers from 1 to max_threads, as in "8,2": OpenMP has one for each level of nested regions,
/// and kernels have one level. nullopt for other texts.
std::optional<int> read_thread_count(std::string_view text);

/// Throws ValueError if OMP_NUM_THREADS has no such list and is not empty, until set_thread_count() sets a number. The
/// program calls it first, Tensor::empty as well.
void check_environment();

}  // namespace thimble
