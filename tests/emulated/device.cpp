// A CUDA device without a GPU: its memory is the host's, its kernels' bodies run on the host (emulated/kernel.h), and
// cuBLASLt and cuDNN are absent, so that the own kernels are tested (emulated/library.h can add a library). Replaces
// cuda/none.cpp in the tests' program.

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/runtime/library.h>
#include <thimble/memory/arena/backing.h>

#include "backing.h"
#include "emulated/library.h"

namespace thimble {
namespace emulated_detail {

std::atomic<std::uint64_t> waits{0};

using Capture = std::vector<std::function<void()>>;

// CUDA also refuses these calls during a capture.
void refuse_while_capturing(const char* what) {
  if (emulated::captured_launches != nullptr) {
    throw DeviceError(std::string(what) + ": launches are being captured, and it is none");
  }
}

// As on a GPU (cuda/runtime/runtime.cpp), bytes go alternately through two 4 MiB halves of a staging memory, and the
// host waits for a half that is still being read. This device reads none before a wait: a GPU waits at most as often.
constexpr std::size_t half_bytes = std::size_t{4} << 20;
std::mutex staging_mutex;
std::array<bool, 2> is_half_full{};
std::size_t next_half = 0;

void upload(void* to, const void* from, std::size_t bytes) {
  refuse_while_capturing("upload");
  const std::lock_guard guard(staging_mutex);
  for (std::size_t done = 0; done < bytes; done += half_bytes) {
    const std::size_t half = std::exchange(next_half, 1 - next_half);
    if (std::exchange(is_half_full[half], true)) waits.fetch_add(1, std::memory_order_relaxed);
  }
  std::memcpy(to, from, bytes);
}
void download(void* to, const void* from, std::size_t bytes) {
  refuse_while_capturing("download");
  emulated::count_wait();
  std::memcpy(to, from, bytes);
}
void synchronize(memory::Device) {
  refuse_while_capturing("synchronize");
  emulated::count_wait();
}
std::uint64_t synchronization_count() { return waits.load(std::memory_order_relaxed); }
std::uint64_t launch_count() { return emulated::launches.load(std::memory_order_relaxed); }
int capability(int) { return emulated::capability; }
void* allocate_pinned(std::size_t bytes) {
  if (bytes <= emulated::largest_pinned_block) return ::operator new(bytes);
  throw OutOfMemory("emulated host: " + std::to_string(bytes) + " bytes of pinned memory are more than it was told",
                    {.requested_bytes = bytes});
}
void free_pinned(void* memory) noexcept { ::operator delete(memory); }

// A transfer happens at the wait for it: a program that does not wait finds nothing.
struct Transfer {
  void* to;
  const void* from;
  std::size_t bytes;
};
void* begin_transfer(memory::Device, void* to, const void* from, std::size_t bytes) {
  return new Transfer{to, from, bytes};
}
void end_transfer(memory::Device, void* transfer) {
  const std::unique_ptr<Transfer> own(static_cast<Transfer*>(transfer));
  std::memcpy(own->to, own->from, own->bytes);
}

void begin_capture(memory::Device) {
  refuse_while_capturing("begin_capture");
  emulated::captured_launches = new Capture;
}
void* end_capture(memory::Device, bool is_wanted) {
  std::unique_ptr<Capture> capture(std::exchange(emulated::captured_launches, nullptr));
  return is_wanted ? capture.release() : nullptr;
}
void replay(memory::Device, void* capture) {
  emulated::is_replaying = true;
  for (const std::function<void()>& launch : *static_cast<Capture*>(capture)) launch();
  emulated::is_replaying = false;
}
std::size_t captured_launches(void* capture) { return static_cast<Capture*>(capture)->size(); }
void forget(memory::Device, void* capture) noexcept {
  emulated::count_wait();
  delete static_cast<Capture*>(capture);
}

std::vector<kernels::GpuFacts> devices() {
  kernels::GpuFacts facts;
  facts.name = "emulated on the host";
  facts.capability_major = emulated::capability / 10;
  facts.capability_minor = emulated::capability % 10;
  facts.multiprocessors = 1;
  const kernels::DeviceMemory memory = emulated::memory(cuda());
  facts.memory_bytes = memory.total_bytes;
  facts.free_bytes = memory.free_bytes;
  facts.driver_version = 13'010, facts.runtime_version = 12'000;
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
                                     begin_capture,
                                     end_capture,
                                     replay,
                                     captured_launches,
                                     forget,
                                     emulated::memory,
                                     launch_count,
                                     capability,
                                     gpu::library_use};

}  // namespace emulated_detail

void emulated::count_wait() noexcept {
  using namespace emulated_detail;
  waits.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard guard(staging_mutex);
  is_half_full = {};
}

std::uint64_t emulated::count_of_waits() noexcept { return emulated_detail::synchronization_count(); }

const kernels::DeviceRuntime* const kernels::device_runtime_cuda = &emulated_detail::runtime;

std::unique_ptr<memory::Backing> memory::make_cuda_backing(memory::Device device) {
  if (device.index != 0) throw DeviceError(to_string(device) + ": there is one emulated device, cuda:0");
  return emulated::make_backing(device);
}

namespace gpu {

using cuda_kernels::load_any;
using cuda_kernels::store_any;

bool is_aligned(const void* bias) { return reinterpret_cast<std::uintptr_t>(bias) % 16 == 0; }

// Accepts the calls that cuBLASLt gets: no gelu, and at most one batch dimension.
bool library_gemm(const kernels::GemmArgs& a, void*, std::size_t bytes) {
  if (!emulated::has_library || a.pre_activation || !kernels::is_library_gemm(a) || bytes == 0) return false;
  if (!is_aligned(a.bias)) return false;
  if (a.activation != kernels::Activation::none && a.activation != kernels::Activation::relu) return false;
  const kernels::GemmBatchDim batch = a.batch_rank == 1 ? a.batch[0] : kernels::GemmBatchDim{1, 0, 0, 0, 0};
  for (std::int64_t matrix = 0; matrix < batch.size; ++matrix) {
    for (std::int64_t i = 0; i < a.m; ++i) {
      for (std::int64_t j = 0; j < a.n; ++j) {
        float sum = 0;
        for (std::int64_t p = 0; p < a.k; ++p) {
          sum += load_any<float>(a.a, a.dtype, matrix * batch.a + i * a.a_row_stride + p * a.a_column_stride) *
                 load_any<float>(a.b, a.dtype, matrix * batch.b + p * a.b_row_stride + j * a.b_column_stride);
        }
        const std::int64_t at = matrix * batch.c + i * a.c_row_stride + j;
        sum *= static_cast<float>(a.alpha);
        if (a.bias) sum += load_any<float>(a.bias, a.c_dtype, j);
        if (a.activation == kernels::Activation::relu && sum < 0) sum = 0;
        if (a.accumulate) sum += load_any<float>(a.c, a.c_dtype, at);
        store_any<float>(a.c, a.c_dtype, at, sum);
      }
    }
  }
  return true;
}

// Accepts the calls that cuBLASLt gets: no activation, and no f32 bias.
bool library_fp8_gemm(const kernels::Fp8GemmArgs& a, void*, std::size_t bytes) {
  if (!emulated::has_library || a.pre_activation || a.activation != kernels::Activation::none) return false;
  if (!kernels::is_library_fp8_gemm(a) || bytes == 0 || (a.bias && a.c_dtype == DType::f32)) return false;
  if (!is_aligned(a.bias)) return false;
  if (a.in_blocks && emulated::capability != 90) return false;
  emulated::block_products += a.in_blocks;
  const auto value = [](std::uint8_t code, DType dtype) {
    return dtype == DType::f8e4m3 ? static_cast<float>(bit_cast<f8e4m3>(code))
                                  : static_cast<float>(bit_cast<f8e5m2>(code));
  };
  for (std::int64_t i = 0; i < a.m; ++i) {
    for (std::int64_t j = 0; j < a.n; ++j) {
      // With block scales, each block's sum is multiplied with its two scales.
      const std::int64_t part = a.in_blocks ? 128 : a.k, stride = (a.k + 511) / 512 * 4;
      float sum = 0;
      for (std::int64_t first = 0; first < a.k; first += part) {
        float own = 0;
        for (std::int64_t p = first; p < first + part && p < a.k; ++p) {
          own += value(a.a[i * a.a_row_stride + p], a.a_dtype) * value(a.b[j * a.b_row_stride + p], a.b_dtype);
        }
        const float* const a_scale = a.in_blocks ? a.a_scale + first / 128 * a.m + i : a.a_scale;
        const float* const b_scale = a.in_blocks ? a.b_scale + j / 128 * stride + first / 128 : a.b_scale;
        sum += own * (*a_scale * *b_scale);
      }
      if (a.bias) sum += load_any<float>(a.bias, a.c_dtype, j);
      store_any<float>(a.c, a.c_dtype, i * a.c_row_stride + j, sum);
    }
  }
  return true;
}

bool library_has_fp8_blocks() noexcept { return true; }

bool library_int8_gemm(const Int8Gemm& a) {
  if (!emulated::has_library || a.k % 16 != 0 || a.n % 16 != 0) return false;
  for (std::int64_t i = 0; i < a.m; ++i) {
    for (std::int64_t j = 0; j < a.n; ++j) {
      std::int32_t sum = 0;
      for (std::int64_t p = 0; p < a.k; ++p) sum += a.a[i * a.k + p] * a.b[j * a.k + p];
      a.c[i * a.n + j] = sum;
    }
  }
  return true;
}

// cuDNN's descriptors take no size of 0.
void check_sizes(const kernels::ConvShape& s) {
  if (s.images < 1 || s.channels < 1 || s.filters < 1 || s.out_height() < 1 || s.out_width() < 1) {
    throw DeviceError("emulated cuDNN: a size is 0");
  }
}

// Accepts the calls that cuDNN gets: no activation, and the caller adds the bias. It refuses groups.
bool library_conv_forward(const kernels::ConvForwardArgs& a, void*, std::size_t) {
  const kernels::ConvShape& s = a.shape;
  check_sizes(s);
  if (!emulated::has_library || a.activation != kernels::Activation::none || a.pre_activation || s.groups != 1) {
    return false;
  }
  const std::int64_t row = s.kernel_w * s.channels, out_h = s.out_height(), out_w = s.out_width();
  for (std::int64_t at = 0; at < s.images * out_h * out_w * s.filters; ++at) {
    const std::int64_t o = at % s.filters, w = at / s.filters % out_w, h = at / s.filters / out_w % out_h,
                       image = at / s.filters / out_w / out_h;
    float sum = 0;
    for (std::int64_t p = 0; p < s.kernel_h * row; ++p) {
      const std::int64_t ih = h * s.stride_h + p / row * s.dilation_h - s.pad_top;
      const std::int64_t iw = w * s.stride_w + p % row / s.channels * s.dilation_w - s.pad_left;
      if (ih < 0 || ih >= s.height || iw < 0 || iw >= s.width) continue;
      const std::int64_t from = ((image * s.height + ih) * s.width + iw) * s.channels + p % s.channels;
      sum += load_any<float>(a.x, a.dtype, from) * load_any<float>(a.weight, a.dtype, o * s.kernel_h * row + p);
    }
    store_any<float>(a.y, a.dtype, at, sum);
  }
  return true;
}
bool library_conv_input_grad(const kernels::ConvInputGradArgs& a, void*, std::size_t) {
  check_sizes(a.shape);
  return false;
}
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs& a, void*, std::size_t) {
  check_sizes(a.shape);
  return false;
}

}  // namespace gpu
}  // namespace thimble
