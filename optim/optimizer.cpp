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
  begin_step();
  for (std::size_t i = 0; i < parameters_.size(); ++i) step_one(i);
}

void Optimizer::step_one(std::size_t index) {
  if (index >= parameters_.size()) {
    throw ValueError("optimizer: parameter " + std::to_string(index) + " of " + std::to_string(parameters_.size()));
  }
  const Tensor& parameter = parameters_[index].tensor;
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined() || gradient.elements() == 0) return;
  update(index, parameter, gradient);
  parameter.storage()->bump_version();
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
