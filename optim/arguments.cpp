#include <thimble/optim/arguments.h>

#include <thimble/core/error.h>

namespace thimble::optim {
namespace arguments_detail {

void check(bool is_fine, const char* optimizer, const char* what, double value) {
  if (is_fine) return;
  throw ValueError(std::string(optimizer) + ": " + what + " " + std::to_string(value) + " is out of range");
}

}  // namespace arguments_detail

void check_options(const char* optimizer, const AdamOptions& options) {
  using arguments_detail::check;
  check(options.beta1 >= 0 && options.beta1 < 1, optimizer, "beta1 (allowed: [0, 1))", options.beta1);
  check(options.beta2 >= 0 && options.beta2 < 1, optimizer, "beta2 (allowed: [0, 1))", options.beta2);
  check(options.epsilon >= 0, optimizer, "epsilon (allowed: >= 0)", options.epsilon);
  check(options.weight_decay >= 0, optimizer, "weight decay (allowed: >= 0)", options.weight_decay);
}

void check_options(const char* optimizer, const SgdOptions& options, bool is_plain) {
  using arguments_detail::check;
  const double momentum = options.momentum;
  if (is_plain) {
    check(momentum >= 0 && momentum < 1, optimizer, "momentum (allowed: [0, 1))", momentum);
  } else {
    check(momentum > 0 && momentum < 1, optimizer, "momentum (allowed: (0, 1))", momentum);
  }
  check(options.weight_decay >= 0, optimizer, "weight decay (allowed: >= 0)", options.weight_decay);
  if (options.nesterov && momentum == 0) throw ValueError(std::string(optimizer) + ": nesterov needs momentum > 0");
}

kernels::AdamArgs adam_arguments(const Optimizer& optimizer, const AdamOptions& options, const Tensor& parameter,
                                 const Tensor& gradient, const Tensor& first, const Tensor& second,
                                 const Addresses& at) {
  kernels::AdamArgs args;
  args.n = parameter.elements();
  args.parameter = at(parameter);
  args.dtype = parameter.dtype();
  args.gradient = at(gradient);
  args.gradient_dtype = gradient.dtype();
  args.first_moment = at(first);
  args.second_moment = at(second);
  args.state_dtype = first.dtype();
  args.rate = optimizer.rate();
  args.beta1 = options.beta1;
  args.beta2 = options.beta2;
  args.epsilon = options.epsilon;
  args.weight_decay = parameter.rank() >= options.smallest_decayed_rank ? options.weight_decay : 0;
  args.is_decoupled = options.is_decoupled;
  args.step = optimizer.step_count();
  args.gradient_factor = optimizer.gradient_factor();
  return args;
}

kernels::SgdArgs sgd_arguments(const Optimizer& optimizer, const SgdOptions& options, const Tensor& parameter,
                               const Tensor& gradient, const Tensor& momentum, const Addresses& at) {
  kernels::SgdArgs args;
  args.n = parameter.elements();
  args.parameter = at(parameter);
  args.dtype = parameter.dtype();
  args.gradient = at(gradient);
  args.gradient_dtype = gradient.dtype();
  args.momentum_buffer = at(momentum);
  args.state_dtype = momentum.dtype();
  args.rate = optimizer.rate();
  args.gradient_factor = optimizer.gradient_factor();
  args.momentum = options.momentum;
  args.weight_decay = options.weight_decay;
  args.nesterov = options.nesterov;
  return args;
}

}  // namespace thimble::optim
