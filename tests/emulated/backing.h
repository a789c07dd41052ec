#pragma once
// Pages of the emulated device, and what it says of its memory.

#include <cstddef>
#include <cstdint>
#include <memory>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/memory/arena/backing.h>

namespace thimble::emulated {

/// Pages with the alignment of a CUDA device, in a file in memory, so that a page can have another address: a granule
/// is a stretch of the file.
std::unique_ptr<Backing> make_backing(memory::Device device);

/// 8 GiB in all, 256 MiB for a context, 64 MiB for libraries, and every page that lives.
kernels::DeviceMemory memory(memory::Device device);

/// A wait of the host for the device, which has nothing to wait for: counted. What was uploaded is there then.
void count_wait() noexcept;
std::uint64_t count_of_waits() noexcept;

}  // namespace thimble::emulated
