#include <thimble/core/launch.h>

#include <atomic>
#include <string>

namespace thimble {
namespace launch_detail {

thread_local int depth = 0;
std::atomic<int> launches{0};  // of all threads

Guard::Guard() noexcept {
  ++depth;
  launches.fetch_add(1, std::memory_order_relaxed);
}
Guard::~Guard() {
  launches.fetch_sub(1, std::memory_order_relaxed);
  --depth;
}

}  // namespace launch_detail

bool is_launching() noexcept { return launch_detail::depth > 0; }

bool is_any_thread_launching() noexcept { return launch_detail::launches.load(std::memory_order_relaxed) > 0; }

Pin::Pin(const Tensor& tensor) : tensor_(tensor), addresses_(AccessMaker::make()) {
  if (!tensor.defined()) throw ShapeError("pin: the tensor is undefined");
  if (tensor.device().is_dry) {
    throw DeviceError("pin: " + describe(tensor) + " has no data: a dry device runs no kernels");
  }
  if (!tensor.device().is_cpu()) {
    throw DeviceError("pin: " + describe(tensor) + " cannot be read by the host; copy it to the cpu first");
  }
}

void Pin::check_dtype(DType dtype) const {
  if (dtype != tensor_.dtype()) {
    throw DTypeError("pin: asked for " + std::string(to_string(dtype)) + ", tensor is " + describe(tensor_));
  }
}

}  // namespace thimble
