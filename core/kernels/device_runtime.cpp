#include <thimble/core/kernels/device_runtime.h>

#include <thimble/core/error.h>

namespace thimble::kernels {

const DeviceRuntime& device_runtime(memory::Device device) {
  if (!device.is_cuda() || device.is_dry || !device_runtime_cuda) {
    throw DeviceError(to_string(device) + ": no copies between it and the host in this build");
  }
  return *device_runtime_cuda;
}

}  // namespace thimble::kernels
