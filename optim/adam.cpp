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
  end_step();
}

std::vector<Named> Adam::state() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < first_.size(); ++i) {
    list.push_back({parameters()[i].name + ".first_moment", first_[i]});
    list.push_back({parameters()[i].name + ".second_moment", second_[i]});
    narrow_.list(i, parameters()[i].name, list);
  }
  return list;
}

std::vector<Tensor*> Adam::state_of(std::size_t index) {
  std::vector<Tensor*> list{&first_[index], &second_[index]};
  if (Tensor* const extra = narrow_.state_of(index)) list.push_back(extra);
  return list;
}

void Adam::update(std::size_t index, const Tensor& parameter, const Tensor& gradient) {
  const Tensor &m = first_[index], &v = second_[index];
  launch(parameter.device(), [&](const Addresses& at) {
    kernels::AdamArgs args = adam_arguments(*this, options_, parameter, gradient, m, v, at);
    args.narrow = narrow_.arguments(index, parameter, parameters()[index].name, step_count(), at);
    kernels::optimizer_kernels(parameter.device()).adam(args);
  });
  m.storage()->bump_version();
  v.storage()->bump_version();
  narrow_.bump_version(index);
}

}  // namespace thimble::optim
