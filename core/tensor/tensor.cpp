#include <thimble/core/tensor/tensor.h>

#include <limits>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/settings.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/recycled.h>
#include <thimble/core/tensor/unrecorded.h>

namespace thimble {

Tensor Tensor::empty(const Shape& shape, DType dtype, memory::Device device, memory::Category category) {
  check_environment();
  Tensor result;
  result.shape_ = shape;
  result.elements_ = shape.elements();
  if (result.elements_ > std::numeric_limits<std::int64_t>::max() / 8) {
    throw ShapeError("tensor: " + to_string(shape) + " has more bytes than 63 bits can count");
  }
  result.strides_ = contiguous_strides(shape);
  result.dtype_ = dtype;
  result.device_ = device;
  result.defined_ = true;
  if (result.elements_ > 0) {
    result.storage_ = std::allocate_shared<memory::Storage>(Recycled<memory::Storage>(), current_resource(device),
                                                            result.bytes(), category);
  }
  return result;
}

Tensor Tensor::empty_like(const Tensor& like, memory::Category category) {
  return empty_like(like, like.shape(), category);
}

Tensor Tensor::empty_like(const Tensor& like, const Shape& shape, memory::Category category) {
  if (!like.defined()) throw ShapeError("empty_like: the tensor is undefined");
  return empty(shape, like.dtype(), like.device(), category);
}

bool Tensor::is_contiguous() const noexcept {
  std::int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != expected) return elements_ == 0;
    expected *= shape_[i];
  }
  return true;
}

Tensor Tensor::window(const Shape& shape, const Shape& strides, std::int64_t offset) const {
  check_unrecorded("a view of core", *this, "the recorded function of its name (autograd/functions/view.h)");
  Tensor result = detach();
  result.origin_ = origin_unrecorded();
  result.shape_ = shape;
  result.strides_ = strides;
  result.offset_ = offset;
  result.elements_ = shape.elements();
  return result;
}

void Tensor::set_scale(Tensor scale) { scale_ = std::make_shared<const Tensor>(std::move(scale)); }

Tensor& Tensor::require_grad() {
  if (!defined_) throw ShapeError("require_grad: the tensor is undefined");
  if (!is_floating(dtype_)) {
    throw DTypeError("require_grad: " + describe(*this) + " is not floating, so it has no gradient");
  }
  if (!leaf_) leaf_ = std::make_shared<tape::Leaf>();
  set_requires_grad(true);
  set_tape_ref({}, tape::Origin::constant);
  return *this;
}

void Tensor::set_requires_grad(bool requires_grad) const {
  if (!leaf_) {
    throw AutogradError("set_requires_grad: " + describe(*this) + " is not a leaf; call require_grad() first");
  }
  if (leaf_->is_frozen == !requires_grad) return;
  leaf_->is_frozen = !requires_grad;
  leaf_->tape_ref = {};  // so that a recording tape looks again
  leaf_->grad = Tensor();
}

Tensor& Tensor::grad() const {
  if (!leaf_) throw AutogradError("grad: " + describe(*this) + " is not a leaf; call require_grad() first");
  return leaf_->grad;
}

Tensor Tensor::without_bytes() const {
  Tensor result = *this;
  result.storage_ = nullptr;
  return result;
}

Tensor Tensor::detach() const {
  Tensor result = *this;
  result.leaf_ = nullptr;
  result.set_tape_ref({}, tape::Origin::constant);
  return result;
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined tensor";
  return std::string(to_string(tensor.dtype())) + " " + to_string(tensor.shape()) + " on " + to_string(tensor.device());
}

void check_one_device(std::string_view operation, const Tensor& a, const Tensor& b) {
  if (a.device() == b.device() || !a.defined() || !b.defined()) return;
  const bool plans = a.device().is_dry || b.device().is_dry;
  throw DeviceError(std::string(operation) + ": operands on different devices, " + describe(a) + " and " + describe(b) +
                    (plans ? "; a step is planned on a dry device: create both tensors on the device that the trainer "
                             "passes to model and batch, or move one with to_device"
                           : "; move one with to_device"));
}

}  // namespace thimble
