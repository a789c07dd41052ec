#include <thimble/optim/optimizer.h>

#include <cmath>

#include <thimble/core/context.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>

namespace thimble::optim {

Optimizer::Optimizer(std::vector<Named> parameters, double rate) : parameters_(std::move(parameters)) {
  set_rate(rate);
  for (const Named& p : parameters_) {
    if (!p.tensor.requires_grad()) throw AutogradError("optimizer: " + p.name + " is not a leaf");
  }
}

void Optimizer::step() {
  ++step_count_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradient.defined() || gradient.elements() == 0) continue;
    update(i, parameters_[i].tensor, gradient);
    parameters_[i].tensor.storage()->bump_version();
  }
}

void Optimizer::zero_grad() {
  for (const Named& p : parameters_) p.tensor.grad() = Tensor();
}

void Optimizer::set_rate(double rate) {
  if (!(rate >= 0) || !std::isfinite(rate)) {
    throw ValueError("optimizer: learning rate " + std::to_string(rate) + " is not a finite number >= 0");
  }
  rate_ = rate;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const Named& s : state()) bytes += s.tensor.bytes();
  return bytes;
}

Tensor make_state(const Tensor& parameter) {
  const PathScope path(parameter.storage() ? parameter.storage()->path() : PathId{0});
  const DType dtype = parameter.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return zeros(parameter.shape(), dtype, parameter.device(), Category::optimizer);
}

}  // namespace thimble::optim
