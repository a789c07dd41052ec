#pragma once
// Pages of the emulated device, and its memory figures.

#include <cstddef>
#include <cstdint>
#include <memory>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/memory/arena/backing.h>

namespace thimble::emulated {

/// Pages with the alignment of a CUDA device, in a file in memory, so that a page can change its address: a granule is
/// a range of the file.
std::unique_ptr<memory::Backing> make_backing(memory::Device device);

/// 8 GiB in all, 256 MiB for a context, 64 MiB for libraries, and all live pages.
kernels::DeviceMemory memory(memory::Device device);

/// Counts a wait of the host for the device, which is always done. Afterwards all uploads have arrived.
void count_wait() noexcept;
std::uint64_t count_of_waits() noexcept;

}  // namespace thimble::emulated
