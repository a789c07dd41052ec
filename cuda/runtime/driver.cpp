#include <thimble/cuda/runtime/driver.h>

#include <string>

#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {
namespace driver_detail {

// The entry point `name` as `version` of CUDA defined it; 10.2 introduced virtual memory.
template <class Function>
void find(const char* name, Function& to, [[maybe_unused]] unsigned version = 10020) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion", name, version);
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
  find("cuGetErrorName", all.error_name, 6000);
  find("cuGetErrorString", all.error_string, 6000);
  return all;
}

}  // namespace driver_detail

const Driver& driver() {
  static const Driver all = driver_detail::load();
  return all;
}

std::string driver_failure(const std::string& call, CUresult result) {
  const char *name = nullptr, *meaning = nullptr;
  driver().error_name(result, &name);
  driver().error_string(result, &meaning);
  return failure_text(call, name != nullptr ? name : "CUresult " + std::to_string(result),
                      meaning != nullptr ? meaning : "");
}

}  // namespace thimble::gpu
