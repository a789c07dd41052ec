// The CUDA runtime: streams, copies between host and device, facts about devices.
//
// Policy
// - Each device has two streams, made at first use and never destroyed: one for kernels, one for concurrent transfers.
//   The null stream is never used.
// - An upload goes through pinned memory of a fixed size, alternating between two halves; the host goes on once its
//   bytes are there. The copy waits for earlier launches, because the block may have had another user, and later
//   launches wait for the copy.
// - Every wait of the host is counted.

#include <thimble/cuda/runtime/runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/cuda/runtime/library.h>

namespace thimble {
namespace gpu {
namespace runtime_detail {

constexpr std::size_t half_bytes = std::size_t{4} << 20;

/// The process's state of one device.
struct DeviceState {
  cudaStream_t compute = nullptr, copy = nullptr;
  cudaEvent_t compute_reached = nullptr;  // recorded in the compute stream at the request of an upload
  std::byte* staging = nullptr;           // two halves
  std::array<cudaEvent_t, 2> uploaded{};  // a half is free again
  int next_half = 0;
  std::mutex upload_mutex;
  std::size_t context_bytes = 0;  // device bytes in use once all of the above was made
  std::atomic<std::size_t> handle_bytes{0};
};

std::atomic<std::uint64_t> waits{0}, launches{0};
std::atomic<cudaError_t> reported_later{cudaSuccess};

kernels::DeviceMemory ask_memory(memory::Device device) {
  kernels::DeviceMemory memory;
  check(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes), "cudaMemGetInfo", device);
  return memory;
}

DeviceState& state_of(memory::Device device) {
  static std::array<std::atomic<DeviceState*>, 256> states{};
  static std::mutex mutex;
  std::atomic<DeviceState*>& state = states[device.index];
  if (DeviceState* const known = device.is_cuda() && !device.is_dry ? state.load(std::memory_order_acquire) : nullptr) {
    check(cudaSetDevice(device.index), "cudaSetDevice", static_cast<int>(device.index));
    return *known;
  }
  make_current(device);
  const std::lock_guard guard(mutex);
  if (DeviceState* const known = state.load(std::memory_order_acquire)) return *known;
  auto made = std::make_unique<DeviceState>();
  check(cudaStreamCreateWithFlags(&made->compute, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", "compute",
        device);
  check(cudaStreamCreateWithFlags(&made->copy, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", "copy", device);
  check(cudaEventCreateWithFlags(&made->compute_reached, cudaEventDisableTiming), "cudaEventCreateWithFlags", device);
  for (cudaEvent_t& event : made->uploaded) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", device);
  }
  void* staging = nullptr;
  check(cudaHostAlloc(&staging, 2 * half_bytes, cudaHostAllocDefault), "cudaHostAlloc", 2 * half_bytes, device);
  made->staging = static_cast<std::byte*>(staging);
  made->context_bytes = ask_memory(device).used_bytes();
  state.store(made.get(), std::memory_order_release);
  return *made.release();  // lives as long as the process
}

// True between begin_capture and end_capture of this thread.
constinit thread_local bool is_capturing = false;

void refuse_while_capturing(const char* what) {
  if (is_capturing) throw DeviceError(std::string(what) + ": launches are being captured, and it is none");
}

void upload(void* to, const void* from, std::size_t bytes) {
  refuse_while_capturing("upload");
  const memory::Device device = launching_device();
  DeviceState& state = state_of(device);
  const std::lock_guard guard(state.upload_mutex);
  check(cudaEventRecord(state.compute_reached, state.compute), "cudaEventRecord", "compute", device);
  check(cudaStreamWaitEvent(state.copy, state.compute_reached, 0), "cudaStreamWaitEvent", "copy", device);
  for (std::size_t done = 0; done < bytes; done += half_bytes) {
    const auto half = static_cast<std::size_t>(state.next_half);
    state.next_half = 1 - state.next_half;
    const std::size_t count = std::min(half_bytes, bytes - done);
    std::byte* const staged = state.staging + half * half_bytes;
    if (cudaEventQuery(state.uploaded[half]) == cudaErrorNotReady) {
      cudaGetLastError();  // not an error; the next launch would report it
      waits.fetch_add(1, std::memory_order_relaxed);
      check(cudaEventSynchronize(state.uploaded[half]), "cudaEventSynchronize", "uploaded", device);
    }
    std::memcpy(staged, static_cast<const std::byte*>(from) + done, count);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, staged, count, cudaMemcpyHostToDevice, state.copy),
          "cudaMemcpyAsync", to, from, count, "host to device", device);
    check(cudaEventRecord(state.uploaded[half], state.copy), "cudaEventRecord", "copy", device);
    check(cudaStreamWaitEvent(state.compute, state.uploaded[half], 0), "cudaStreamWaitEvent", "compute", device);
  }
}

void download(void* to, const void* from, std::size_t bytes) {
  refuse_while_capturing("download");
  const memory::Device device = launching_device();
  const DeviceState& state = state_of(device);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, state.compute), "cudaMemcpyAsync", to, from, bytes,
        "device to host", device);
  waits.fetch_add(1, std::memory_order_relaxed);
  check(cudaStreamSynchronize(state.compute), "cudaStreamSynchronize", "compute", device);
}

void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // a refusal is not a failure of the device
    throw OutOfMemory("cudaHostAlloc(" + std::to_string(bytes) + "): the host has no such amount of pinned memory",
                      {.requested_bytes = bytes});
  }
  check(error, "cudaHostAlloc", bytes);
  return memory;
}

void free_pinned(void* memory) noexcept { cudaFreeHost(memory); }

void* begin_transfer(memory::Device device, void* to, const void* from, std::size_t bytes) {
  const DeviceState& state = state_of(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", device);
  check(cudaEventRecord(event, state.compute), "cudaEventRecord", "compute", device);
  check(cudaStreamWaitEvent(state.copy, event, 0), "cudaStreamWaitEvent", "copy", device);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, state.copy), "cudaMemcpyAsync", to, from, bytes, device);
  check(cudaEventRecord(event, state.copy), "cudaEventRecord", "copy", device);
  return event;
}

void end_transfer(memory::Device device, void* transfer) {
  const auto event = static_cast<cudaEvent_t>(transfer);
  check(cudaStreamWaitEvent(state_of(device).compute, event, 0), "cudaStreamWaitEvent", "compute", device);
  check(cudaEventDestroy(event), "cudaEventDestroy", device);
}

struct Capture {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::size_t nodes = 0;
  ~Capture() {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
  }
};

void begin_capture(memory::Device device) {
  refuse_while_capturing("begin_capture");
  check(cudaStreamBeginCapture(state_of(device).compute, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture",
        "compute", device);
  is_capturing = true;
}

void* end_capture(memory::Device device, bool is_wanted) {
  is_capturing = false;
  auto capture = std::make_unique<Capture>();
  const cudaError_t error = cudaStreamEndCapture(state_of(device).compute, &capture->graph);
  if (!is_wanted) {
    cudaGetLastError();  // an aborted capture is not a failure of the device
    return nullptr;
  }
  check(error, "cudaStreamEndCapture", "compute", device);
  check(cudaGraphInstantiate(&capture->executable, capture->graph, 0), "cudaGraphInstantiate", device);
  check(cudaGraphGetNodes(capture->graph, nullptr, &capture->nodes), "cudaGraphGetNodes", device);
  return capture.release();
}

void replay(memory::Device device, void* capture) {
  const auto* const own = static_cast<Capture*>(capture);
  check(cudaGraphLaunch(own->executable, state_of(device).compute), "cudaGraphLaunch", own->nodes, device);
}

std::size_t captured_launches(void* capture) { return static_cast<Capture*>(capture)->nodes; }

void forget(memory::Device device, void* capture) noexcept {
  try {
    synchronize(device);  // a replay may still run
  } catch (const DeviceError&) {
  }
  delete static_cast<Capture*>(capture);
}

std::vector<kernels::GpuFacts> devices() {
  int count = 0, current = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  check(cudaGetDevice(&current), "cudaGetDevice");
  std::vector<kernels::GpuFacts> all;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties", i);
    kernels::GpuFacts facts;
    facts.name = properties.name;
    facts.capability_major = properties.major;
    facts.capability_minor = properties.minor;
    facts.multiprocessors = properties.multiProcessorCount;
    facts.memory_bytes = properties.totalGlobalMem;
    check(cudaSetDevice(i), "cudaSetDevice", i);
    std::size_t total = 0;
    check(cudaMemGetInfo(&facts.free_bytes, &total), "cudaMemGetInfo", i);
    check(cudaDriverGetVersion(&facts.driver_version), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&facts.runtime_version), "cudaRuntimeGetVersion");
    all.push_back(std::move(facts));
  }
  cudaSetDevice(current);
  return all;
}

kernels::DeviceMemory device_memory(memory::Device device) {
  const DeviceState& state = state_of(device);
  kernels::DeviceMemory now = ask_memory(device);
  now.context_bytes = state.context_bytes;
  now.handle_bytes = state.handle_bytes.load(std::memory_order_relaxed);
  return now;
}

std::uint64_t launch_count() { return launches.load(std::memory_order_relaxed); }

int ask_capability(int index) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) == cudaSuccess) {
    return 10 * major + minor;
  }
  cudaGetLastError();  // a missing device is not a failure
  return 0;
}

int capability(int index) {
  static std::array<std::atomic<int>, 256> known{};  // plus 1
  std::atomic<int>& own = known[static_cast<std::size_t>(index)];
  if (own.load(std::memory_order_relaxed) == 0) own.store(1 + ask_capability(index), std::memory_order_relaxed);
  return own.load(std::memory_order_relaxed) - 1;
}

constexpr kernels::DeviceRuntime table{upload,
                                       download,
                                       synchronize,
                                       synchronization_count,
                                       allocate_pinned,
                                       free_pinned,
                                       begin_transfer,
                                       end_transfer,
                                       devices,
                                       begin_capture,
                                       end_capture,
                                       replay,
                                       captured_launches,
                                       forget,
                                       device_memory,
                                       launch_count,
                                       capability,
                                       library_use};

}  // namespace runtime_detail

void make_current(memory::Device device) {
  if (!device.is_cuda() || device.is_dry) throw DeviceError("cuda: " + to_string(device) + " is no GPU");
  int count = 0;
  try {
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  } catch (const DeviceError& error) {
    throw DeviceError(to_string(device) + ": this machine has no GPU that can be used; " + error.what());
  }
  if (device.index >= count) {
    throw DeviceError("cuda: " + to_string(device) + " is not there, this machine has " + std::to_string(count));
  }
  check(cudaSetDevice(device.index), "cudaSetDevice", static_cast<int>(device.index));
}

cudaStream_t compute_stream(memory::Device device) { return runtime_detail::state_of(device).compute; }
cudaStream_t compute_stream() { return compute_stream(launching_device()); }

void synchronize(memory::Device device) {
  runtime_detail::refuse_while_capturing("synchronize");
  const runtime_detail::DeviceState& state = runtime_detail::state_of(device);
  runtime_detail::waits.fetch_add(1, std::memory_order_relaxed);
  check(cudaStreamSynchronize(state.copy), "cudaStreamSynchronize", "copy", device);
  check(cudaStreamSynchronize(state.compute), "cudaStreamSynchronize", "compute", device);
}

std::size_t used_bytes(memory::Device device) { return runtime_detail::device_memory(device).used_bytes(); }

void book_handle(memory::Device device, std::size_t used_bytes_before) {
  const std::size_t now = used_bytes(device);  // other processes may have freed memory meanwhile
  if (now > used_bytes_before) runtime_detail::state_of(device).handle_bytes += now - used_bytes_before;
}

std::uint64_t synchronization_count() { return runtime_detail::waits.load(std::memory_order_relaxed); }

void report_later(cudaError_t error) noexcept {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // kept here, where querying an event does not clear it
  runtime_detail::reported_later.store(error, std::memory_order_relaxed);
}

void check_launch(std::int64_t count, int threads, std::size_t shared_bytes) {
  using runtime_detail::reported_later;
  runtime_detail::launches.fetch_add(1, std::memory_order_relaxed);
  if (reported_later.load(std::memory_order_relaxed) != cudaSuccess) {
    check(reported_later.exchange(cudaSuccess), "memory moved or filled before the kernel's launch",
          launching_device());
  }
  check(cudaGetLastError(), "kernel launch", count, threads, shared_bytes, launching_device());
}

void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  const std::size_t whole = bytes + attributes.sharedSizeBytes;
  if (whole <= plain_shared_bytes) return;
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute",
        "MaxSharedMemoryPerBlockOptin", device);
  if (whole > static_cast<std::size_t>(most)) {
    throw DeviceError("kernel with " + std::to_string(whole) + " bytes of shared memory: cuda:" +
                      std::to_string(device) + " allows a kernel at most " + std::to_string(most));
  }
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute", "MaxDynamicSharedMemorySize", bytes, launching_device());
}

}  // namespace gpu

const kernels::DeviceRuntime* const kernels::device_runtime_cuda = &gpu::runtime_detail::table;

}  // namespace thimble
