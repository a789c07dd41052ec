#include <thimble/optim/sgd.h>

#include <thimble/optim/arguments.h>

namespace thimble::optim {

Sgd::Sgd(std::vector<Named> parameters, SgdOptions options)
    : Optimizer(std::move(parameters), options.rate), options_(options), narrow_(options.narrow) {
  check_options("sgd", options, true);
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
    kernels::SgdArgs args = sgd_arguments(*this, options_, parameter, gradient, state, at);
    if (options_.narrow != NarrowUpdate::rounded) {
      args.narrow = narrow_.arguments(index, parameter, parameters()[index].name, step_count(), at);
    }
    kernels::optimizer_kernels(parameter.device()).sgd(args);
  });
  if (state.defined()) state.storage()->bump_version();
  if (options_.narrow != NarrowUpdate::rounded) narrow_.bump_version(index);
}

}  // namespace thimble::optim
