#include <thimble/nn/layers/weight_average.h>

#include <string>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble::nn {

WeightAverage::WeightAverage(const std::vector<Named>& parameters, double decay) : decay_(decay) {
  if (!(decay >= 0 && decay < 1)) {
    throw ValueError("weight average: expected 0 <= decay < 1, got " + std::to_string(decay));
  }
  const NoGrad off;
  const ParameterUse use;
  for (const Named& p : parameters) {
    const DType dtype = p.tensor.dtype() == DType::f64 ? DType::f64 : DType::f32;
    Tensor value = Tensor::empty(p.tensor.shape(), dtype, p.tensor.device(), memory::Category::parameter);
    copy_into(value, cast(p.tensor.detach(), dtype));
    parameters_.push_back(p.tensor);
    averages_.push_back(add_buffer(p.name, std::move(value)));
  }
}

void WeightAverage::update() {
  const NoGrad off;
  const ParameterUse use;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& average = averages_[i];
    copy_into(average, average * decay_ + cast(parameters_[i].detach(), average.dtype()) * (1 - decay_));
  }
}

void WeightAverage::exchange() {
  const NoGrad off;
  const ParameterUse use;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor parameter = parameters_[i].detach();
    const Tensor before = clone(parameter);
    copy_into(parameter, cast(averages_[i], parameter.dtype()));
    copy_into(averages_[i], cast(before, averages_[i].dtype()));
  }
}

}  // namespace thimble::nn
