#include <thimble/optim/adam8.h>

#include <thimble/core/kernels/optimizer8.h>
#include <thimble/optim/arguments.h>

namespace thimble::optim {
namespace adam8_detail {

void add_state(std::vector<Named>& list, const Named& parameter, const NarrowState& narrow, const Moment& moment,
               const char* kind) {
  list.push_back({parameter.name + kind, moment.values});
  const bool has_scales = narrow.dtype == DType::u8 && !is_kept_full(parameter, narrow);
  if (has_scales) list.push_back({parameter.name + kind + "_scale", moment.scales});
}

std::vector<std::string> names_kept_full(const std::vector<Named>& parameters, const NarrowState& narrow) {
  std::vector<std::string> names;
  for (const Named& p : parameters) {
    if (is_kept_full(p, narrow)) names.push_back(p.name);
  }
  return names;
}

void wrote(const Moment& moment) {
  moment.values.storage()->bump_version();
  if (moment.scales.storage()) moment.scales.storage()->bump_version();
}

}  // namespace adam8_detail

Adam8::Adam8(std::vector<Named> parameters, AdamOptions options, NarrowState narrow)
    : Optimizer(std::move(parameters), options.rate),
      options_(options),
      narrow_(std::move(narrow)),
      update_(options.narrow) {
  check_options(name(), options);
  check_narrow_state(name(), narrow_, this->parameters());
  set_tier(options.tier);
  for (const Named& p : this->parameters()) {
    first_.push_back(make_moment(p, narrow_, true));
    second_.push_back(make_moment(p, narrow_, false));
    update_.add(p);
    put_away(first_.size() - 1);
  }
  list_.reserve(this->parameters().size()), full_list_.reserve(this->parameters().size());
  end_step();
}

void Adam8::list_state(std::size_t index, std::vector<Named>& list) const {
  adam8_detail::add_state(list, parameters()[index], narrow_, first_[index], ".first_moment");
  adam8_detail::add_state(list, parameters()[index], narrow_, second_[index], ".second_moment");
  update_.list(index, parameters()[index].name, list);
}

const char* Adam8::name() const noexcept {
  if (narrow_.dtype == DType::u8) return options_.is_decoupled ? "adamw8" : "adam8";
  return options_.is_decoupled ? "adamw_bf16" : "adam_bf16";
}

std::vector<std::string> Adam8::kept_full() const { return adam8_detail::names_kept_full(parameters(), narrow_); }

std::vector<Tensor*> Adam8::state_of(std::size_t index) {
  std::vector<Tensor*> list{&first_[index].values, &first_[index].scales, &second_[index].values,
                            &second_[index].scales};
  if (Tensor* const extra = update_.state_of(index)) list.push_back(extra);
  return list;
}

void Adam8::update(std::span<const std::size_t> indices) {
  const Device device = parameters()[indices.front()].tensor.device();
  list_.clear(), full_list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) {
      const auto& [name, p] = parameters()[i];
      const Moment &first = first_[i], &second = second_[i];
      kernels::AdamArgs args = adam_arguments(*this, options_, p, p.grad(), first.values, second.values, at);
      args.narrow = update_.arguments(i, p, name, step_count(), at);
      if (first.scales.defined()) {
        list_.push_back({args, at.as<float>(first.scales), at.as<float>(second.scales)});
      } else {
        full_list_.push_back(args);
      }
    }
    kernels::optimizer8_kernels(device).adam8(list_);
    kernels::optimizer_kernels(device).adam(full_list_);
  });
  for (const std::size_t i : indices) {
    adam8_detail::wrote(first_[i]), adam8_detail::wrote(second_[i]);
    update_.bump_version(i);
  }
}

Momentum8::Momentum8(std::vector<Named> parameters, SgdOptions options, NarrowState narrow)
    : Optimizer(std::move(parameters), options.rate),
      options_(options),
      narrow_(std::move(narrow)),
      update_(options.narrow) {
  check_options("momentum8", options, false);
  check_narrow_state("momentum8", narrow_, this->parameters());
  set_tier(options.tier);
  for (const Named& p : this->parameters()) {
    momentum_.push_back(make_moment(p, narrow_, true));
    update_.add(p);
    put_away(momentum_.size() - 1);
  }
  list_.reserve(this->parameters().size()), full_list_.reserve(this->parameters().size());
  end_step();
}

void Momentum8::list_state(std::size_t index, std::vector<Named>& list) const {
  adam8_detail::add_state(list, parameters()[index], narrow_, momentum_[index], ".momentum");
  update_.list(index, parameters()[index].name, list);
}

const char* Momentum8::name() const noexcept { return narrow_.dtype == DType::u8 ? "momentum8" : "momentum_bf16"; }

std::vector<std::string> Momentum8::kept_full() const { return adam8_detail::names_kept_full(parameters(), narrow_); }

std::vector<Tensor*> Momentum8::state_of(std::size_t index) {
  std::vector<Tensor*> list{&momentum_[index].values, &momentum_[index].scales};
  if (Tensor* const extra = update_.state_of(index)) list.push_back(extra);
  return list;
}

void Momentum8::update(std::span<const std::size_t> indices) {
  const Device device = parameters()[indices.front()].tensor.device();
  list_.clear(), full_list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) {
      const auto& [name, p] = parameters()[i];
      kernels::SgdArgs args = sgd_arguments(*this, options_, p, p.grad(), momentum_[i].values, at);
      args.narrow = update_.arguments(i, p, name, step_count(), at);
      if (momentum_[i].scales.defined()) {
        list_.push_back({args, at.as<float>(momentum_[i].scales)});
      } else {
        full_list_.push_back(args);
      }
    }
    kernels::optimizer8_kernels(device).momentum8(list_);
    kernels::optimizer_kernels(device).sgd(full_list_);
  });
  for (const std::size_t i : indices) {
    adam8_detail::wrote(momentum_[i]);
    update_.bump_version(i);
  }
}

std::vector<std::string> names_kept_full(const Optimizer& optimizer) {
  if (const auto* adam = dynamic_cast<const Adam8*>(&optimizer)) return adam->kept_full();
  if (const auto* momentum = dynamic_cast<const Momentum8*>(&optimizer)) return momentum->kept_full();
  return {};
}

}  // namespace thimble::optim
