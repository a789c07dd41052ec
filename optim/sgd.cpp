#include <thimble/optim/sgd.h>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch.h>

namespace thimble::optim {

Sgd::Sgd(std::vector<Named> parameters, SgdOptions options)
    : Optimizer(std::move(parameters), options.rate), options_(options), narrow_(options.narrow) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    throw ValueError("sgd: momentum " + std::to_string(options.momentum) + " is not in [0, 1)");
  }
  if (!(options.weight_decay >= 0)) {
    throw ValueError("sgd: weight decay " + std::to_string(options.weight_decay) + " is negative");
  }
  if (options.nesterov && options.momentum == 0) throw ValueError("sgd: nesterov needs momentum > 0");
  const bool has_state = options.momentum > 0 || options.narrow != NarrowUpdate::rounded;
  if (has_state) set_tier(options.tier);
  for (std::size_t i = 0; has_state && i < this->parameters().size(); ++i) {
    const Named& p = this->parameters()[i];
    if (options.momentum > 0) momentum_.push_back(make_state(p.tensor));
    narrow_.add(p);
    put_away(i);
  }
  end_step();
}

std::vector<Named> Sgd::state() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    if (!momentum_.empty()) list.push_back({parameters()[i].name + ".momentum", momentum_[i]});
    if (options_.narrow != NarrowUpdate::rounded) narrow_.list(i, parameters()[i].name, list);
  }
  return list;
}

std::vector<Tensor*> Sgd::state_of(std::size_t index) {
  std::vector<Tensor*> list;
  if (!momentum_.empty()) list.push_back(&momentum_[index]);
  if (Tensor* const extra = narrow_.state_of(index)) list.push_back(extra);
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
    args.gradient_factor = gradient_factor();
    if (options_.narrow != NarrowUpdate::rounded) {
      args.narrow = narrow_.arguments(index, parameter, parameters()[index].name, step_count(), at);
    }
    kernels::optimizer_kernels(parameter.device()).sgd(args);
  });
  if (options_.narrow != NarrowUpdate::rounded) narrow_.bump_version(index);
}

}  // namespace thimble::optim
