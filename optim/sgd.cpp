#include <thimble/optim/sgd.h>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch.h>

namespace thimble::optim {

Sgd::Sgd(std::vector<Named> parameters, SgdOptions options)
    : Optimizer(std::move(parameters), options.rate), options_(options) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    throw ValueError("sgd: momentum " + std::to_string(options.momentum) + " is not in [0, 1)");
  }
  if (!(options.weight_decay >= 0)) {
    throw ValueError("sgd: weight decay " + std::to_string(options.weight_decay) + " is negative");
  }
  if (options.nesterov && options.momentum == 0) throw ValueError("sgd: nesterov needs momentum > 0");
  if (options.momentum > 0) {
    set_tier(options.tier);
    for (const Named& p : this->parameters()) {
      momentum_.push_back(make_state(p.tensor));
      put_away(momentum_.size() - 1);
    }
    end_step();
  }
}

std::vector<Named> Sgd::state() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < momentum_.size(); ++i) {
    list.push_back({parameters()[i].name + ".momentum", momentum_[i]});
  }
  return list;
}

void Sgd::update(std::size_t index, const Tensor& parameter, const Tensor& gradient) {
  const Tensor state = momentum_.empty() ? Tensor() : momentum_[index];
  launch(parameter.device(), [&](const Addresses& at) {
    kernels::SgdArgs args;
    args.n = parameter.elements();
    args.parameter = at(parameter);
    args.dtype = parameter.dtype();
    args.gradient = at(gradient);
    args.gradient_dtype = gradient.dtype();
    args.momentum_buffer = at(state);
    args.state_dtype = state.dtype();
    args.rate = rate();
    args.momentum = options_.momentum;
    args.weight_decay = options_.weight_decay;
    args.nesterov = options_.nesterov;
    kernels::optimizer_kernels(parameter.device()).sgd(args);
  });
}

}  // namespace thimble::optim
