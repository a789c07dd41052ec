#pragma once
// The streams that work is put in: one for kernels and one for transfers per device, made at first use.

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <thimble/core/tensor/device.h>

namespace thimble::gpu {

/// The stream of kernels of the launching device (core/launch/launch.h), which it makes the current one. Throws
/// DeviceError.
cudaStream_t compute_stream();
/// Those of a given device, which they make the current one. Throw DeviceError.
cudaStream_t compute_stream(Device device);
cudaStream_t copy_stream(Device device);

/// After a kernel's launch. Throws DeviceError with its sizes, of what report_later() was told, too.
void check_launch(std::int64_t count, int threads, std::size_t shared_bytes);

/// A failure where nothing may be thrown: the next check_launch throws it.
void report_later(cudaError_t error) noexcept;

/// What every kernel may have of shared memory, its own static part included; for more `bytes` of it are asked for, of
/// the current device. Throws DeviceError where the device has less.
inline constexpr std::size_t plain_shared_bytes = 48 << 10;
void allow_shared_bytes(const void* kernel, std::size_t bytes);

}  // namespace thimble::gpu
