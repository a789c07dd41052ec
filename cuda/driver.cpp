#include <thimble/cuda/driver.h>

#include <string>

#include <thimble/cuda/runtime.h>

namespace thimble::gpu {
namespace driver_detail {

// The entry point `name` as CUDA 10.2, which brought virtual memory, defined it.
template <class Function>
void find(const char* name, Function& to) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &address, 10020, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion", name, 10020);
#else
  check(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &result), "cudaGetDriverEntryPoint", name);
#endif
  if (result != cudaDriverEntryPointSuccess || address == nullptr) {
    throw DeviceError(std::string("cuda: this driver has no ") + name + "; one of CUDA 10.2 or later is needed");
  }
  to = reinterpret_cast<Function>(address);
}

Driver load() {
  Driver all;
  find("cuMemAddressReserve", all.reserve);
  find("cuMemAddressFree", all.free);
  find("cuMemCreate", all.create);
  find("cuMemRelease", all.release);
  find("cuMemMap", all.map);
  find("cuMemUnmap", all.unmap);
  find("cuMemSetAccess", all.set_access);
  find("cuMemGetAllocationGranularity", all.granularity);
  return all;
}

}  // namespace driver_detail

const Driver& driver() {
  static const Driver all = driver_detail::load();
  return all;
}

}  // namespace thimble::gpu
