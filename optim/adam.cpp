#include <thimble/optim/adam.h>

namespace thimble::optim {

Adam::Adam(std::vector<Named> parameters, AdamOptions options)
    : Optimizer(std::move(parameters), options.rate, options.tier, options.narrow, options.moments),
      options_(std::move(options)) {
  require(options_.beta1 >= 0 && options_.beta1 < 1, "beta1 in [0, 1)", options_.beta1);
  require(options_.beta2 >= 0 && options_.beta2 < 1, "beta2 in [0, 1)", options_.beta2);
  require(options_.epsilon >= 0, "epsilon >= 0", options_.epsilon);
  require(options_.weight_decay >= 0, "weight decay >= 0", options_.weight_decay);
  list_.reserve(this->parameters().size());
  make_state([this](std::size_t index) {
    add_moment(index, "first_moment", true);
    add_moment(index, "second_moment", false);
  });
}

const char* Adam::name() const noexcept {
  if (options_.moments.dtype == DType::u8) return options_.is_decoupled ? "adamw8" : "adam8";
  if (options_.moments.dtype == DType::bf16) return options_.is_decoupled ? "adamw_bf16" : "adam_bf16";
  return options_.is_decoupled ? "adamw" : "adam";
}

std::vector<Setting> Adam::settings() const {
  return {{"beta1", options_.beta1},
          {"beta2", options_.beta2},
          {"epsilon", options_.epsilon},
          {"weight_decay", options_.weight_decay},
          {"smallest_decayed_rank", static_cast<double>(options_.smallest_decayed_rank)}};
}

kernels::AdamArgs Adam::arguments(std::size_t index, const Addresses& at) const {
  const bool is_decayed = parameters()[index].tensor.rank() >= options_.smallest_decayed_rank;
  kernels::AdamArgs args;
  set_arguments(args, index, is_decayed ? options_.weight_decay : 0, at, "first_moment", "second_moment");
  args.beta1 = options_.beta1;
  args.beta2 = options_.beta2;
  args.epsilon = options_.epsilon;
  args.is_decoupled = options_.is_decoupled;
  return args;
}

void Adam::update(std::span<const std::size_t> indices) {
  const memory::Device device = parameters()[indices.front()].tensor.device();
  list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) list_.push_back(arguments(i, at));
    kernels::optimizer_kernels(device).update_elements({.adam = list_});
  });
}

}  // namespace thimble::optim
