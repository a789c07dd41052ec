#include <thimble/optim/adam.h>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch.h>

namespace thimble::optim {

Adam::Adam(std::vector<Named> parameters, AdamOptions options)
    : Optimizer(std::move(parameters), options.rate), options_(options), narrow_(options.narrow) {
  const auto check = [](bool is_fine, const char* what, double value) {
    if (!is_fine) throw ValueError(std::string("adam: ") + what + " " + std::to_string(value) + " is out of range");
  };
  check(options.beta1 >= 0 && options.beta1 < 1, "beta1 (allowed: [0, 1))", options.beta1);
  check(options.beta2 >= 0 && options.beta2 < 1, "beta2 (allowed: [0, 1))", options.beta2);
  check(options.epsilon >= 0, "epsilon (allowed: >= 0)", options.epsilon);
  check(options.weight_decay >= 0, "weight decay (allowed: >= 0)", options.weight_decay);
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
    kernels::AdamArgs args;
    args.n = parameter.elements();
    args.parameter = at(parameter);
    args.dtype = parameter.dtype();
    args.gradient = at(gradient);
    args.gradient_dtype = gradient.dtype();
    args.first_moment = at(m);
    args.second_moment = at(v);
    args.state_dtype = m.dtype();
    args.rate = rate();
    args.beta1 = options_.beta1;
    args.beta2 = options_.beta2;
    args.epsilon = options_.epsilon;
    args.weight_decay = parameter.rank() >= options_.smallest_decayed_rank ? options_.weight_decay : 0;
    args.is_decoupled = options_.is_decoupled;
    args.step = step_count();
    args.gradient_factor = gradient_factor();
    args.narrow = narrow_.arguments(index, parameter, parameters()[index].name, step_count(), at);
    kernels::optimizer_kernels(parameter.device()).adam(args);
  });
  m.storage()->bump_version();
  v.storage()->bump_version();
  narrow_.bump_version(index);
}

}  // namespace thimble::optim
