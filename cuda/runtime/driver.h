#pragma once
// The driver's calls for virtual memory, looked up by name through the runtime, because only machines with a driver
// have libcuda to link.

#include <string>

#include <cuda.h>
#include <cudaTypedefs.h>

namespace thimble::gpu {

struct Driver {
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuGetErrorName_v6000 error_name = nullptr;
  PFN_cuGetErrorString_v6000 error_string = nullptr;
};

/// Throws DeviceError that names a call this driver lacks.
const Driver& driver();

/// "CALL: CUDA_ERROR_NAME: meaning", `call` with its arguments (cuda/runtime/library.h).
std::string driver_failure(const std::string& call, CUresult result);

}  // namespace thimble::gpu
