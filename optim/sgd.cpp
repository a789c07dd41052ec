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
  list_.reserve(this->parameters().size());
  end_step();
}

void Sgd::list_state(std::size_t index, std::vector<Named>& list) const {
  const std::string& name = parameters()[index].name;
  if (!momentum_.empty()) list.push_back({name + ".momentum", momentum_[index]});
  if (options_.narrow != NarrowUpdate::rounded) narrow_.list(index, name, list);
}

std::vector<Tensor*> Sgd::state_of(std::size_t index) {
  std::vector<Tensor*> list;
  if (!momentum_.empty()) list.push_back(&momentum_[index]);
  if (Tensor* const extra = narrow_.state_of(index)) list.push_back(extra);
  return list;
}

kernels::SgdArgs Sgd::arguments(std::size_t index, const Addresses& at) const {
  const auto& [name, parameter] = parameters()[index];
  const Tensor state = momentum_.empty() ? Tensor() : momentum_[index];
  kernels::SgdArgs args = sgd_arguments(*this, options_, parameter, parameter.grad(), state, at);
  if (options_.narrow != NarrowUpdate::rounded) {
    args.narrow = narrow_.arguments(index, parameter, name, step_count(), at);
  }
  return args;
}

void Sgd::update(std::span<const std::size_t> indices) {
  const Device device = parameters()[indices.front()].tensor.device();
  list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) list_.push_back(arguments(i, at));
    kernels::optimizer_kernels(device).sgd(list_);
  });
  for (const std::size_t i : indices) wrote(i);
}

void Sgd::wrote(std::size_t index) const {
  if (!momentum_.empty()) momentum_[index].storage()->bump_version();
  if (options_.narrow != NarrowUpdate::rounded) narrow_.bump_version(index);
}

}  // namespace thimble::optim
