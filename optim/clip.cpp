#include <thimble/optim/clip.h>

#include <array>
#include <cmath>
#include <span>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/ops/copy.h>

namespace thimble::optim {

namespace {

// The parameter's gradient; null if there is none to clip.
const Tensor* gradient_of(const Named& parameter) {
  check_gradient("clip_grad_norm", parameter);
  const Tensor& gradient = parameter.tensor.grad();
  return gradient.defined() && gradient.elements() > 0 ? &gradient : nullptr;
}

/// Calls run(args) for all gradients in the largest lists that a launch takes; make(gradient) gives a gradient's
/// arguments. Does not allocate on the heap.
template <class Args, class Make, class Run>
void for_each_list(const std::vector<Named>& parameters, const Make& make, const Run& run) {
  std::array<Args, kernels::most_listed> list;
  std::size_t count = 0;
  for (const Named& p : parameters) {
    const Tensor* const g = gradient_of(p);
    if (g == nullptr) continue;
    list[count++] = make(*g);
    if (count < list.size()) continue;
    run(std::span<const Args>(list));
    count = 0;
  }
  if (count > 0) run(std::span<const Args>(list.data(), count));
}

}  // namespace

Tensor gradient_square_sums(const std::vector<Named>& parameters) {
  std::int64_t count = 0;
  memory::Device device = cpu;
  for (const Named& p : parameters) {
    const Tensor* const gradient = gradient_of(p);
    if (gradient == nullptr) continue;
    if (count++ == 0) device = gradient->device();
  }
  if (count == 0) return Tensor();
  Tensor sums = Tensor::empty({count}, DType::f64, device, memory::Category::workspace);
  sums.set_tape_ref({}, tape::Origin::gradient);
  launch(device, [&](const Addresses& at) {
    double* sum = at.as<double>(sums);
    for_each_list<kernels::SquareSumArgs>(
        parameters,
        [&](const Tensor& g) {
          return kernels::SquareSumArgs{g.elements(), at(g), g.dtype(), sum++};
        },
        kernels::optimizer_kernels(device).square_sums);
  });
  return sums;
}

Tensor clip_grad_norm(const std::vector<Named>& parameters, double max_norm) {
  if (!(max_norm > 0)) throw ValueError("clip_grad_norm: norm " + std::to_string(max_norm) + " is not positive");
  check_distinct("clip_grad_norm", parameters);
  const Tensor sums = gradient_square_sums(parameters);
  if (sums.defined()) clip_gradients(parameters, sums, max_norm);
  return sums;
}

void clip_gradients(const std::vector<Named>& parameters, const Tensor& square_sums, double max_norm) {
  launch(square_sums.device(), [&](const Addresses& at) {
    const kernels::ClipNorm norm{at.as<double>(square_sums), square_sums.elements(), max_norm};
    for_each_list<kernels::ClipArgs>(
        parameters,
        [&](const Tensor& g) {
          return kernels::ClipArgs{g.elements(), at(g), g.dtype()};
        },
        [&](std::span<const kernels::ClipArgs> list) {
          kernels::optimizer_kernels(square_sums.device()).clip(norm, list);
        });
  });
  for (const Named& p : parameters) {
    if (const Tensor* const g = gradient_of(p)) g->storage()->bump_version();
  }
}

double norm_of(const Tensor& square_sums) {
  if (!square_sums.defined()) return 0;
  double sum = 0;
  const auto add = [&](std::span<const double> sums) {
    for (const double s : sums) sum += s;
  };
  if (square_sums.device() == cpu) {  // in place: a steady step does not allocate
    launch(cpu, [&](const Addresses& at) {
      add({at.as<double>(square_sums), static_cast<std::size_t>(square_sums.elements())});
    });
  } else {
    add(to_host<double>(square_sums));
  }
  return std::sqrt(sum);
}

}  // namespace thimble::optim
