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

/// After a kernel's launch. Throws DeviceError with its sizes, and the errors of report_later().
void check_launch(std::int64_t count, int threads, std::size_t shared_bytes);

/// Stores a failure where nothing may be thrown: the next check_launch throws it.
void report_later(cudaError_t error) noexcept;

/// Shared memory of every kernel, its static part included; more `bytes` are requested for the current device. Throws
/// DeviceError where the device has less.
inline constexpr std::size_t plain_shared_bytes = 48 << 10;
void allow_shared_bytes(const void* kernel, std::size_t bytes);

}  // namespace thimble::gpu
