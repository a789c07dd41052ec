#pragma once
// The table of a kernel family for a device.

#include <string>

#include <thimble/core/device.h>
#include <thimble/core/error.h>

namespace thimble::kernels {

/// The CPU's table, or CUDA's, which is null in a build without it. Throws DeviceError, naming the family, when this
/// build has no kernels for the device.
template <class Table>
const Table& table_for(memory::Device device, const char* family, const Table& cpu, const Table* cuda) {
  if (device.is_cpu()) return cpu;
  if (cuda == nullptr) throw DeviceError(std::string(family) + ": " + to_string(device) + " is not in this build");
  return *cuda;
}

/// The same for a family whose kernels take workspaces: a dry CUDA device uses `sizes`, which every build has.
template <class Table>
const Table& table_for(memory::Device device, const char* family, const Table& cpu, const Table* cuda,
                       const Table& sizes) {
  if (!device.is_cpu() && device.is_dry) return sizes;
  return table_for(device, family, cpu, cuda);
}

}  // namespace thimble::kernels
