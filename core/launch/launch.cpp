#include <thimble/core/launch/launch.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble {
namespace launch_detail {

constexpr std::uint32_t moving = std::uint32_t{1} << 31;

constinit thread_local int depth = 0;
constinit thread_local memory::Device device_in_use = cpu;
std::atomic<std::uint32_t> gate{0};  // number of launching threads, and the bit `moving`

Guard::Guard(memory::Device device) noexcept : before_(device_in_use) {
  device_in_use = device;
  if (depth++ > 0) return;
  while ((gate.fetch_add(1, std::memory_order_acquire) & moving) != 0) {
    gate.fetch_sub(1, std::memory_order_release);
    while ((gate.load(std::memory_order_relaxed) & moving) != 0) std::this_thread::yield();
  }
}

Guard::~Guard() {
  device_in_use = before_;
  if (--depth == 0) gate.fetch_sub(1, std::memory_order_release);
}

void refuse_away(const Tensor& t) {
  throw AwayError("launch: " + describe(t) + " in '" + std::string(path_name(t.storage()->path())) +
                  "' is away, in a parameter store; apply an operator, or call fetch_parameters() before");
}

}  // namespace launch_detail

NoLaunches::NoLaunches(memory::Device device) noexcept : is_real_(!device.is_dry) {
  using namespace launch_detail;
  if (!is_real_) return;
  while ((gate.fetch_or(moving, std::memory_order_acquire) & moving) != 0) std::this_thread::yield();
  while ((gate.load(std::memory_order_acquire) & ~moving) != 0) std::this_thread::yield();
}

NoLaunches::~NoLaunches() {
  if (is_real_) launch_detail::gate.fetch_and(~launch_detail::moving, std::memory_order_release);
}

bool is_launching() noexcept { return launch_detail::depth > 0; }

memory::Device launching_device() noexcept { return launch_detail::device_in_use; }

bool is_any_thread_launching() noexcept {
  return (launch_detail::gate.load(std::memory_order_relaxed) & ~launch_detail::moving) != 0;
}

memory::Pin::Pin(const Tensor& tensor) : tensor_(tensor), addresses_(AccessMaker::make()) {
  if (!tensor.defined()) throw ShapeError("pin: the tensor is undefined");
  if (tensor.device().is_dry) {
    throw DeviceError("pin: " + describe(tensor) + " has no data: a dry device runs no kernels");
  }
  fetch_parameters(tensor);
  const launch_detail::Guard guard(tensor.device());  // no block moves meanwhile
  if (tensor_.storage()) tensor_.storage()->pin(AccessMaker::make());
}

memory::Pin::~Pin() {
  if (tensor_.storage()) tensor_.storage()->unpin();
}

memory::WritePin::WritePin(const Tensor& tensor) : memory::Pin((keep_state(tensor), tensor)) {
  if (tensor_.storage()) tensor_.storage()->begin_write();
}

memory::WritePin::~WritePin() {
  if (tensor_.storage()) tensor_.storage()->end_write();
}

void memory::Pin::check_dtype(DType dtype) const {
  if (!tensor_.device().is_cpu()) {
    throw DeviceError("pin: " + describe(tensor_) + " cannot be read by the host; copy it to the cpu first");
  }
  if (dtype != tensor_.dtype()) {
    throw DTypeError("pin: asked for " + std::string(to_string(dtype)) + ", tensor is " + describe(tensor_));
  }
}

}  // namespace thimble
