#include <thimble/optim/adam.h>

#include <thimble/optim/arguments.h>

namespace thimble::optim {

Adam::Adam(std::vector<Named> parameters, AdamOptions options)
    : Optimizer(std::move(parameters), options.rate), options_(options), narrow_(options.narrow) {
  check_options("adam", options);
  set_tier(options.tier);
  for (const Named& p : this->parameters()) {
    first_.push_back(make_state(p.tensor));
    second_.push_back(make_state(p.tensor));
    narrow_.add(p);
    put_away(first_.size() - 1);
  }
  list_.reserve(this->parameters().size());
  end_step();
}

void Adam::list_state(std::size_t index, std::vector<Named>& list) const {
  const std::string& name = parameters()[index].name;
  list.push_back({name + ".first_moment", first_[index]});
  list.push_back({name + ".second_moment", second_[index]});
  narrow_.list(index, name, list);
}

std::vector<Tensor*> Adam::state_of(std::size_t index) {
  std::vector<Tensor*> list{&first_[index], &second_[index]};
  if (Tensor* const extra = narrow_.state_of(index)) list.push_back(extra);
  return list;
}

kernels::AdamArgs Adam::arguments(std::size_t index, const Addresses& at) const {
  const auto& [name, parameter] = parameters()[index];
  kernels::AdamArgs args =
      adam_arguments(*this, options_, parameter, parameter.grad(), first_[index], second_[index], at);
  args.narrow = narrow_.arguments(index, parameter, name, step_count(), at);
  return args;
}

void Adam::update(std::span<const std::size_t> indices) {
  const Device device = parameters()[indices.front()].tensor.device();
  list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) list_.push_back(arguments(i, at));
    kernels::optimizer_kernels(device).adam(list_);
  });
  for (const std::size_t i : indices) wrote(i);
}

void Adam::wrote(std::size_t index) const {
  first_[index].storage()->bump_version();
  second_[index].storage()->bump_version();
  narrow_.bump_version(index);
}

}  // namespace thimble::optim
