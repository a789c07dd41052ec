#include <thimble/optim/adam8.h>

#include <thimble/core/error.h>
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

void check_update(const char* optimizer, NarrowUpdate update) {
  if (update == NarrowUpdate::rounded) return;
  throw ValueError(std::string(optimizer) + ": updates of narrow parameters by '" + to_string(update) +
                   "'; allowed with narrow state is 'rounded'");
}

void wrote(const Moment& moment) {
  moment.values.storage()->bump_version();
  if (moment.scales.storage()) moment.scales.storage()->bump_version();
}

}  // namespace adam8_detail

Adam8::Adam8(std::vector<Named> parameters, AdamOptions options, NarrowState narrow)
    : Optimizer(std::move(parameters), options.rate), options_(options), narrow_(std::move(narrow)) {
  check_options("adam8", options);
  adam8_detail::check_update("adam8", options.narrow);
  check_narrow_state("adam8", narrow_, this->parameters());
  set_tier(options.tier);
  for (const Named& p : this->parameters()) {
    first_.push_back(make_moment(p, narrow_, true));
    second_.push_back(make_moment(p, narrow_, false));
    put_away(first_.size() - 1);
  }
  end_step();
}

std::vector<Named> Adam8::state() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < first_.size(); ++i) {
    adam8_detail::add_state(list, parameters()[i], narrow_, first_[i], ".first_moment");
    adam8_detail::add_state(list, parameters()[i], narrow_, second_[i], ".second_moment");
  }
  return list;
}

const char* Adam8::name() const noexcept {
  if (narrow_.dtype == DType::u8) return options_.is_decoupled ? "adamw8" : "adam8";
  return options_.is_decoupled ? "adamw_bf16" : "adam_bf16";
}

std::vector<std::string> Adam8::kept_full() const { return adam8_detail::names_kept_full(parameters(), narrow_); }

std::vector<Tensor*> Adam8::state_of(std::size_t index) {
  return {&first_[index].values, &first_[index].scales, &second_[index].values, &second_[index].scales};
}

void Adam8::update(std::size_t index, const Tensor& parameter, const Tensor& gradient) {
  const Moment &first = first_[index], &second = second_[index];
  launch(parameter.device(), [&](const Addresses& at) {
    const kernels::AdamArgs args =
        adam_arguments(*this, options_, parameter, gradient, first.values, second.values, at);
    if (first.scales.defined()) {
      kernels::optimizer8_kernels(parameter.device())
          .adam8({args, at.as<float>(first.scales), at.as<float>(second.scales)});
    } else {
      kernels::optimizer_kernels(parameter.device()).adam(args);
    }
  });
  adam8_detail::wrote(first);
  adam8_detail::wrote(second);
}

Momentum8::Momentum8(std::vector<Named> parameters, SgdOptions options, NarrowState narrow)
    : Optimizer(std::move(parameters), options.rate), options_(options), narrow_(std::move(narrow)) {
  check_options("momentum8", options, false);
  adam8_detail::check_update("momentum8", options.narrow);
  check_narrow_state("momentum8", narrow_, this->parameters());
  set_tier(options.tier);
  for (const Named& p : this->parameters()) {
    momentum_.push_back(make_moment(p, narrow_, true));
    put_away(momentum_.size() - 1);
  }
  end_step();
}

std::vector<Named> Momentum8::state() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < momentum_.size(); ++i) {
    adam8_detail::add_state(list, parameters()[i], narrow_, momentum_[i], ".momentum");
  }
  return list;
}

const char* Momentum8::name() const noexcept { return narrow_.dtype == DType::u8 ? "momentum8" : "momentum_bf16"; }

std::vector<std::string> Momentum8::kept_full() const { return adam8_detail::names_kept_full(parameters(), narrow_); }

std::vector<Tensor*> Momentum8::state_of(std::size_t index) {
  return {&momentum_[index].values, &momentum_[index].scales};
}

void Momentum8::update(std::size_t index, const Tensor& parameter, const Tensor& gradient) {
  const Moment& moment = momentum_[index];
  launch(parameter.device(), [&](const Addresses& at) {
    const kernels::SgdArgs args = sgd_arguments(*this, options_, parameter, gradient, moment.values, at);
    if (moment.scales.defined()) {
      kernels::optimizer8_kernels(parameter.device()).momentum8({args, at.as<float>(moment.scales)});
    } else {
      kernels::optimizer_kernels(parameter.device()).sgd(args);
    }
  });
  adam8_detail::wrote(moment);
}

std::vector<std::string> names_kept_full(const Optimizer& optimizer) {
  if (const auto* adam = dynamic_cast<const Adam8*>(&optimizer)) return adam->kept_full();
  if (const auto* momentum = dynamic_cast<const Momentum8*>(&optimizer)) return momentum->kept_full();
  return {};
}

}  // namespace thimble::optim
