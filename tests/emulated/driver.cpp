#include "driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

// The class of cuda/runtime/backing.cpp under another name: this program's emulated GPU uses backing.cpp.
#define make_cuda_backing make_backing_of_driver
#include <thimble/memory/arena/backing.h>

namespace thimble::memory {
std::unique_ptr<Backing> make_backing_of_driver(Device device);
}  // namespace thimble::memory
#include "../../cuda/runtime/backing.cpp"
#undef make_cuda_backing

struct EmulatedEvent {};

namespace thimble {
namespace driver_emulation_detail {

using emulated::driver_books;
constexpr std::size_t granule_bytes = std::size_t{2} << 20;

struct Page {
  CUmemGenericAllocationHandle handle;
  bool has_access;
};

struct Memory {
  int file = memfd_create("thimble-emulated-driver", MFD_CLOEXEC);
  std::map<CUdeviceptr, Page> pages;
  std::vector<CUmemGenericAllocationHandle> free;
  CUmemGenericAllocationHandle made = 0;  // handle h is granule h - 1 of the file
};
Memory& memory() {
  static Memory all;
  return all;
}

bool is_refused() { return driver_books().fail_at > 0 && --driver_books().fail_at == 0; }
void* at(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }
void* nothing(void* where, std::size_t bytes, int flags) {
  return mmap(where, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

CUresult reserve(CUdeviceptr* base, std::size_t bytes, std::size_t alignment, CUdeviceptr, unsigned long long) {
  void* const mapping = nothing(nullptr, bytes + alignment, 0);
  if (mapping == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto first = reinterpret_cast<std::uintptr_t>(mapping);
  *base = first + (alignment - first % alignment) % alignment;
  ++driver_books().ranges;
  return CUDA_SUCCESS;
}
CUresult free_range(CUdeviceptr base, std::size_t bytes) {
  --driver_books().ranges;
  return munmap(at(base), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  if (is_refused()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (memory().free.empty()) {
    if (ftruncate(memory().file, static_cast<off_t>((memory().made + 1) * bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    memory().free.push_back(++memory().made);
  }
  *handle = memory().free.back();
  memory().free.pop_back();
  ++driver_books().handles;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  memory().free.push_back(handle);
  --driver_books().handles;
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr where, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  if (is_refused()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (memory().pages.count(where) != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const got = mmap(at(where), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory().file,
                         static_cast<off_t>((handle - 1) * bytes));
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  memory().pages[where] = {handle, false};
  ++driver_books().mapped;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr where, std::size_t bytes) {
  if (memory().pages.erase(where) == 0) return CUDA_ERROR_INVALID_VALUE;
  nothing(at(where), bytes, MAP_FIXED);
  --driver_books().mapped;
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr where, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
  if (is_refused()) return CUDA_ERROR_INVALID_VALUE;
  for (CUdeviceptr page = where; page < where + bytes; page += granule_bytes) {
    if (memory().pages.count(page) == 0) return CUDA_ERROR_INVALID_VALUE;
    memory().pages[page].has_access = true;
  }
  return mprotect(at(where), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = granule_bytes;
  return CUDA_SUCCESS;
}
CUresult name_of(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
  return CUDA_SUCCESS;
}

/// Whether all of it may be read and written; counts a failure.
bool is_accessible(const void* from, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(from);
  for (std::uintptr_t page = first & ~(granule_bytes - 1); page < first + bytes; page += granule_bytes) {
    const auto found = memory().pages.find(page);
    if (found == memory().pages.end() || !found->second.has_access) {
      ++driver_books().bad_copies;
      return false;
    }
  }
  return true;
}

}  // namespace driver_emulation_detail

namespace gpu {

const Driver& driver() {
  using namespace driver_emulation_detail;
  static const Driver all{reserve, free_range, create, release, map, unmap, set_access, granularity, name_of, name_of};
  return all;
}
std::string driver_failure(const std::string& call, CUresult result) {
  const char* name = nullptr;
  driver().error_name(result, &name);
  return failure_text(call, name, "");
}
void make_current(memory::Device) {}
void synchronize(memory::Device) { emulated::driver_books().is_behind = false; }
cudaStream_t compute_stream(memory::Device) { return nullptr; }
void report_later(cudaError_t error) noexcept { emulated::driver_books().reported_later += error != cudaSuccess; }

}  // namespace gpu

emulated::DriverBooks& emulated::driver_books() {
  static DriverBooks books;
  return books;
}
std::unique_ptr<memory::Backing> emulated::make_driver_backing() { return memory::make_backing_of_driver(cuda()); }

}  // namespace thimble

using thimble::driver_emulation_detail::is_accessible;
using thimble::emulated::driver_books;

const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t) { return ""; }
cudaError_t cudaGetLastError() {
  driver_books().has_pending_error = false;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (!is_accessible(to, bytes) || !is_accessible(from, bytes)) return cudaErrorInvalidValue;
  const auto a = reinterpret_cast<std::uintptr_t>(to), b = reinterpret_cast<std::uintptr_t>(from);
  if (a < b + bytes && b < a + bytes) {  // a device may copy in any order
    ++driver_books().bad_copies;
    return cudaErrorInvalidValue;
  }
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* where, int value, std::size_t bytes, cudaStream_t) {
  if (!is_accessible(where, bytes)) return cudaErrorInvalidValue;
  std::memset(where, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  ++driver_books().events;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --driver_books().events;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) {
  if (!driver_books().is_behind) return cudaSuccess;
  driver_books().has_pending_error = true;
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
