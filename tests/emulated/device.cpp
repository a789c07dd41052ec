// A CUDA device without a GPU: its memory is the host's, its kernels' bodies run on the host (cuda/kernel.h), and there
// is no cuBLASLt and no cuDNN, so that the own kernels are tested. In place of cuda/none.cpp in the tests' program.

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/cuda/kernel.h>
#include <thimble/cuda/library.h>
#include <thimble/memory/backing.h>

#include "backing.h"

namespace thimble {
namespace emulated_detail {

std::atomic<std::uint64_t> waits{0};

using Recording = std::vector<std::function<void()>>;

// What CUDA refuses while launches are recorded, too.
void refuse_recording(const char* what) {
  if (cuda_kernels::recorded_launches != nullptr) {
    throw DeviceError(std::string(what) + ": launches are being recorded, and it is none");
  }
}

void upload(void* to, const void* from, std::size_t bytes) {
  refuse_recording("upload");
  std::memcpy(to, from, bytes);
}
void download(void* to, const void* from, std::size_t bytes) {
  refuse_recording("download");
  emulated::count_wait();
  std::memcpy(to, from, bytes);
}
void synchronize(Device) {
  refuse_recording("synchronize");
  emulated::count_wait();
}
std::uint64_t synchronization_count() { return waits.load(std::memory_order_relaxed); }
std::uint64_t launch_count() { return cuda_kernels::launches.load(std::memory_order_relaxed); }
void* allocate_pinned(std::size_t bytes) { return ::operator new(bytes); }
void free_pinned(void* memory) noexcept { ::operator delete(memory); }

// A transfer is made when it is waited for: a program that does not wait finds nothing.
struct Transfer {
  void* to;
  const void* from;
  std::size_t bytes;
};
void* begin_transfer(Device, void* to, const void* from, std::size_t bytes) { return new Transfer{to, from, bytes}; }
void end_transfer(Device, void* transfer) {
  const std::unique_ptr<Transfer> own(static_cast<Transfer*>(transfer));
  std::memcpy(own->to, own->from, own->bytes);
}

void begin_recording(Device) {
  refuse_recording("begin_recording");
  cuda_kernels::recorded_launches = new Recording;
}
void* end_recording(Device, bool is_wanted) {
  std::unique_ptr<Recording> recording(std::exchange(cuda_kernels::recorded_launches, nullptr));
  return is_wanted ? recording.release() : nullptr;
}
void replay(Device, void* recording) {
  cuda_kernels::is_replaying = true;
  for (const std::function<void()>& launch : *static_cast<Recording*>(recording)) launch();
  cuda_kernels::is_replaying = false;
}
std::size_t recorded_launches(void* recording) { return static_cast<Recording*>(recording)->size(); }
void forget(Device, void* recording) noexcept {
  emulated::count_wait();
  delete static_cast<Recording*>(recording);
}

std::vector<kernels::GpuFacts> devices() {
  kernels::GpuFacts facts;
  facts.name = "emulated on the host";
  return {facts};
}

const kernels::DeviceRuntime runtime{upload,
                                     download,
                                     synchronize,
                                     synchronization_count,
                                     allocate_pinned,
                                     free_pinned,
                                     begin_transfer,
                                     end_transfer,
                                     devices,
                                     begin_recording,
                                     end_recording,
                                     replay,
                                     recorded_launches,
                                     forget,
                                     emulated::memory,
                                     launch_count};

}  // namespace emulated_detail

void emulated::count_wait() noexcept { emulated_detail::waits.fetch_add(1, std::memory_order_relaxed); }

const kernels::DeviceRuntime* const kernels::device_runtime_cuda = &emulated_detail::runtime;

std::unique_ptr<Backing> make_cuda_backing(Device device) {
  if (device.index != 0) throw DeviceError(to_string(device) + ": there is one emulated device, cuda:0");
  return emulated::make_backing(device);
}

namespace gpu {

bool library_gemm(const kernels::GemmArgs&, void*, std::size_t) { return false; }
bool library_conv_forward(const kernels::ConvForwardArgs&, void*, std::size_t) { return false; }
bool library_conv_input_grad(const kernels::ConvInputGradArgs&, void*, std::size_t) { return false; }
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs&, void*, std::size_t) { return false; }

}  // namespace gpu
}  // namespace thimble
