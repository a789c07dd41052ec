#include <thimble/optim/clip.h>

#include <cmath>

#include <thimble/core/copy.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>

namespace thimble::optim {

namespace clip_detail {

std::vector<Tensor> gradients_of(const std::vector<Named>& parameters) {
  std::vector<Tensor> gradients;
  for (const Named& p : parameters) {
    const Tensor& gradient = p.tensor.grad();
    if (gradient.defined() && gradient.elements() > 0) gradients.push_back(gradient);
  }
  return gradients;
}

Tensor square_sums(const std::vector<Tensor>& gradients) {
  if (gradients.empty()) return Tensor();
  const Device device = gradients[0].device();
  const Tensor sums =
      Tensor::empty({static_cast<std::int64_t>(gradients.size())}, DType::f64, device, Category::workspace);
  launch(device, [&](const Addresses& at) {
    double* const sum = at.as<double>(sums);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      kernels::optimizer_kernels(device).square_sum(
          {gradients[i].elements(), at(gradients[i]), gradients[i].dtype(), sum + i});
    }
  });
  return sums;
}

}  // namespace clip_detail

Tensor gradient_square_sums(const std::vector<Named>& parameters) {
  return clip_detail::square_sums(clip_detail::gradients_of(parameters));
}

Tensor clip_grad_norm(const std::vector<Named>& parameters, double max_norm) {
  if (!(max_norm > 0)) throw ValueError("clip_grad_norm: norm " + std::to_string(max_norm) + " is not positive");
  const std::vector<Tensor> gradients = clip_detail::gradients_of(parameters);
  const Tensor sums = clip_detail::square_sums(gradients);
  if (!sums.defined()) return sums;
  launch(sums.device(), [&](const Addresses& at) {
    for (const Tensor& g : gradients) {
      kernels::optimizer_kernels(sums.device())
          .clip({g.elements(), at(g), g.dtype(), at.as<double>(sums), sums.elements(), max_norm});
    }
  });
  for (const Tensor& g : gradients) g.storage()->bump_version();
  return sums;
}

double norm_of(const Tensor& square_sums) {
  if (!square_sums.defined()) return 0;
  double sum = 0;
  for (const double s : to_host<double>(square_sums)) sum += s;
  return std::sqrt(sum);
}

}  // namespace thimble::optim
