#pragma once
// The streams of each device: one for kernels and one for transfers, made at first use.

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <thimble/core/device.h>

namespace thimble::gpu {

/// The stream of kernels of the launching device (core/launch/launch.h), which it makes the current one. Throws
/// DeviceError.
cudaStream_t compute_stream();
/// The stream of a given device, which it makes the current one. Throws DeviceError.
cudaStream_t compute_stream(memory::Device device);

/// Call it after a kernel's launch. Throws DeviceError with the launch's sizes, and the errors of report_later().
void check_launch(std::int64_t count, int threads, std::size_t shared_bytes);

/// Stores a failure where nothing may be thrown: the next check_launch throws it.
void report_later(cudaError_t error) noexcept;

/// Every kernel may use plain_shared_bytes of shared memory, static memory included; allow_shared_bytes requests more
/// on the current device. Throws DeviceError if the device has less.
inline constexpr std::size_t plain_shared_bytes = 48 << 10;
void allow_shared_bytes(const void* kernel, std::size_t bytes);

}  // namespace thimble::gpu
