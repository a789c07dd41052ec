#pragma once
// Calls of the CUDA runtime that may fail, and facts about devices.

#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

#include <thimble/core/device.h>
#include <thimble/core/error.h>
#include <thimble/cuda/runtime/library.h>
#include <thimble/cuda/runtime/stream.h>

namespace thimble::gpu {

/// Throws DeviceError "CALL(ARGUMENTS): cudaErrorName: meaning" unless the call succeeded
/// (cuda/runtime/library.h).
template <class... Arguments>
void check(cudaError_t error, const char* call, const Arguments&... arguments) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the next launch must not report it again; an error that cannot be cleared stays
  throw DeviceError(failure_text(call_text(call, arguments...), cudaGetErrorName(error), cudaGetErrorString(error)));
}

/// Makes a device the current one of this thread. Throws DeviceError when it does not exist.
void make_current(memory::Device device);

/// Waits for both streams of a device; counted.
void synchronize(memory::Device device);

/// Number of the host's waits for a device in this process.
std::uint64_t synchronization_count();

/// Makes a library's handle for a device. The increase of the device's used bytes is its size.
std::size_t used_bytes(memory::Device device);
void book_handle(memory::Device device, std::size_t used_bytes_before);
template <class Make>
void make_handle(memory::Device device, const Make& make) {
  const std::size_t before = used_bytes(device);
  make();
  book_handle(device, before);
}

}  // namespace thimble::gpu
