#include <thimble/optim/sgd.h>

#include <thimble/core/error.h>

namespace thimble::optim {
namespace {

// Without state there is nothing to offload, so updates need not be one by one.
bool has_state(const SgdOptions& options) { return options.momentum > 0 || options.narrow != NarrowUpdate::rounded; }

}  // namespace

Sgd::Sgd(std::vector<Named> parameters, SgdOptions options)
    : Optimizer(std::move(parameters), options.rate, has_state(options) ? options.tier : nullptr, options.narrow,
                options.moments),
      options_(std::move(options)) {
  const double momentum = options_.momentum;
  if (options_.moments.dtype == DType::f32) {
    require(momentum >= 0 && momentum < 1, "momentum in [0, 1)", momentum);
  } else {
    require(momentum > 0 && momentum < 1, "momentum in (0, 1)", momentum);
  }
  require(options_.weight_decay >= 0, "weight decay >= 0", options_.weight_decay);
  if (options_.nesterov && momentum == 0) throw ValueError("sgd: nesterov needs momentum > 0");
  list_.reserve(this->parameters().size());
  make_state([this](std::size_t index) {
    if (options_.momentum > 0) add_moment(index, "momentum", true);
  });
}

const char* Sgd::name() const noexcept {
  if (options_.moments.dtype == DType::u8) return "momentum8";
  return options_.moments.dtype == DType::bf16 ? "momentum_bf16" : "sgd";
}

std::vector<Setting> Sgd::settings() const {
  return {{"momentum", options_.momentum},
          {"weight_decay", options_.weight_decay},
          {"nesterov", options_.nesterov ? 1.0 : 0.0}};
}

kernels::SgdArgs Sgd::arguments(std::size_t index, const Addresses& at) const {
  kernels::SgdArgs args;
  set_arguments(args, index, options_.weight_decay, at, "momentum", "");
  args.momentum = options_.momentum;
  args.nesterov = options_.nesterov;
  return args;
}

void Sgd::update(std::span<const std::size_t> indices) {
  const memory::Device device = parameters()[indices.front()].tensor.device();
  list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) list_.push_back(arguments(i, at));
    kernels::optimizer_kernels(device).update_elements({.sgd = list_});
  });
}

}  // namespace thimble::optim
