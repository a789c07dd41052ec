#include <thimble/optim/adam.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>

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

namespace {

// Limit of elements updated at once, and the multiple of their rows: stochastic rounding draws random bits for 8
// elements.
constexpr std::int64_t most_elements = 1 << 20, row_multiple = 8;

std::int64_t blocks_of(const Tensor& p) { return p.rank() >= 2 ? p.shape()[0] : 1; }

Tensor rows_of(const Tensor& t, std::int64_t columns, std::int64_t first, std::int64_t count) {
  return view::slice(view::reshape(t, {t.elements() / columns, columns}), 0, first, first + count);
}

}  // namespace

AdamMini::AdamMini(std::vector<Named> parameters, AdamMiniOptions options)
    : Optimizer(std::move(parameters), options.rate, options.tier, options.narrow), options_(std::move(options)) {
  require(options_.beta1 >= 0 && options_.beta1 < 1, "beta1 in [0, 1)", options_.beta1);
  require(options_.beta2 >= 0 && options_.beta2 < 1, "beta2 in [0, 1)", options_.beta2);
  require(options_.epsilon >= 0, "epsilon >= 0", options_.epsilon);
  require(options_.weight_decay >= 0, "weight decay >= 0", options_.weight_decay);
  refuse_f64();
  make_state([this](std::size_t index) {
    const Tensor& p = this->parameters()[index].tensor;
    add_zeros(index, "first_moment", p.shape());
    add_zeros(index, "second_moment", {blocks_of(p)});
  });
}

std::vector<Setting> AdamMini::settings() const {
  return {{"beta1", options_.beta1},
          {"beta2", options_.beta2},
          {"epsilon", options_.epsilon},
          {"weight_decay", options_.weight_decay},
          {"smallest_decayed_rank", static_cast<double>(options_.smallest_decayed_rank)}};
}

void AdamMini::update(std::span<const std::size_t> indices) {
  for (const std::size_t i : indices) {
    const Tensor& p = parameters()[i].tensor;
    const PathScope path(p.storage()->path());
    const std::int64_t rows = blocks_of(p), columns = p.elements() / rows;
    const std::int64_t fit = most_elements / columns / row_multiple;
    const std::int64_t most = std::max<std::int64_t>(1, fit) * row_multiple;
    for (std::int64_t row = 0; row < rows; row += most) update_rows(i, row, std::min(most, rows - row), columns);
  }
}

void AdamMini::update_rows(std::size_t index, std::int64_t first, std::int64_t count, std::int64_t columns) {
  const Tensor& p = parameters()[index].tensor;
  const auto rows = [&](const Tensor& t, std::int64_t width) { return rows_of(t, width, first, count); };
  Tensor g = to_dtype(rows(contiguous(p.grad()), columns), DType::f32);
  if (gradient_factor() != 1) g = g * gradient_factor();
  const Tensor m = rows(state_of(index, "first_moment"), columns), v = rows(state_of(index, "second_moment"), 1);
  copy_into(v, v * options_.beta2 + mean(square(g), 1, true) * (1 - options_.beta2));
  copy_into(m, m * options_.beta1 + g * (1 - options_.beta1));
  g = Tensor();
  const auto step = static_cast<double>(step_count());
  const double c1 = 1 - std::pow(options_.beta1, step), c2 = 1 - std::pow(options_.beta2, step);
  const Tensor along = m / ((sqrt(v) * (1 / std::sqrt(c2)) + options_.epsilon) * c1);
  move_along(index, p.rank() >= options_.smallest_decayed_rank ? options_.weight_decay : 0, along, first * columns);
}

}  // namespace thimble::optim
