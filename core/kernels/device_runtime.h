#pragma once
// Functions of a CUDA device other than kernels: copies between its memory and the host's, and facts about it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/device.h>

namespace thimble::kernels {

/// One GPU, as its driver describes it.
struct GpuFacts {
  std::string name;
  int capability_major = 0, capability_minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;  ///< of the device
  std::size_t free_bytes = 0;    ///< at present
  int driver_version = 0;        ///< newest CUDA version that the driver supports: 1000 major + 10 minor
  int runtime_version = 0;       ///< CUDA version of this build
};

/// A device's memory as the driver counts it, other processes included.
struct DeviceMemory {
  std::size_t total_bytes = 0;
  std::size_t free_bytes = 0;
  std::size_t context_bytes = 0;  ///< in use when this process had only its context and streams there
  std::size_t handle_bytes = 0;   ///< increase of the bytes in use by the libraries' handles

  std::size_t used_bytes() const noexcept { return total_bytes - free_bytes; }
};

/// Operations that the rules of core/kernels/cuda_workspace.h leave to a library.
struct LibraryCounts {
  std::uint64_t calls = 0;     ///< to the library
  std::uint64_t refusals = 0;  ///< operations that the project's kernels computed instead, because the library has no
                               ///< algorithm within the declared workspace, or this build lacks it
  std::string first_refused;   ///< the operation with its sizes and dtype; empty if there is none
};

/// Counts of this process, over all devices; replays of captured steps add nothing.
struct LibraryUse {
  LibraryCounts cublaslt, cudnn;
};

/// Copies run on the device of the calling launch (core/launch/launch.h), in the order of its kernels. All functions
/// throw DeviceError, naming the CUDA call that failed.
struct DeviceRuntime {
  /// Copies host bytes to the device. The caller may change them after the return, even though the copy itself may
  /// still be under way.
  void (*upload)(void* to, const void* from, std::size_t bytes) = nullptr;
  /// Copies device bytes to the host, and waits for all earlier kernels and for the copy.
  void (*download)(void* to, const void* from, std::size_t bytes) = nullptr;
  /// Waits until the device has finished all work.
  void (*synchronize)(memory::Device device) = nullptr;
  /// How often the host has waited for a device in this process.
  std::uint64_t (*synchronization_count)() = nullptr;
  /// Pinned host memory, for transfers that overlap kernels. Throws OutOfMemory.
  void* (*allocate_pinned)(std::size_t bytes) = nullptr;
  void (*free_pinned)(void* memory) noexcept = nullptr;
  /// Begins a copy between pinned and device memory, which waits for earlier kernels and overlaps later ones. Each
  /// result must go to end_transfer once.
  void* (*begin_transfer)(memory::Device device, void* to, const void* from, std::size_t bytes) = nullptr;
  /// Makes later kernels wait for the transfer. The host does not wait.
  void (*end_transfer)(memory::Device device, void* transfer) = nullptr;
  /// All usable GPUs. Throws DeviceError without a driver.
  std::vector<GpuFacts> (*devices)() = nullptr;
  /// Captures this thread's launches on a device instead of running them, until end_capture, which returns a handle (or
  /// with `is_wanted` false drops the capture and does not throw). Meanwhile uploads, downloads and synchronizations
  /// throw DeviceError.
  void (*begin_capture)(memory::Device device) = nullptr;
  void* (*end_capture)(memory::Device device, bool is_wanted) = nullptr;
  /// Launches a captured graph, after earlier launches.
  void (*replay)(memory::Device device, void* capture) = nullptr;
  /// Number of kernels and copies in a captured graph.
  std::size_t (*captured_launches)(void* capture) = nullptr;
  /// Waits for a graph's replays and frees it.
  void (*forget)(memory::Device device, void* capture) noexcept = nullptr;
  /// Queries the device; creates the process's context there if it has none. Does not wait for kernels.
  DeviceMemory (*memory)(memory::Device device) = nullptr;
  /// Number of the project's kernels that the host has launched in this process; replays add nothing.
  std::uint64_t (*launch_count)() = nullptr;
  /// Compute capability of GPU `index`, 10 major + minor; 0 without such a GPU. Creates no context.
  int (*capability)(int index) = nullptr;
  /// Counts of the libraries' calls and refusals so far.
  LibraryUse (*library_use)() = nullptr;
};

extern const DeviceRuntime* const device_runtime_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no runtime for the device.
const DeviceRuntime& device_runtime(memory::Device device);

}  // namespace thimble::kernels
