#include <thimble/optim/matrix/matrix_optimizer.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {
namespace {

Tensor as_matrix(const Tensor& t) {
  const std::int64_t rows = t.shape()[0];
  return view::reshape(t, {rows, t.elements() / rows});
}

}  // namespace

MatrixOptimizer::MatrixOptimizer(std::vector<Named> parameters, MatrixOptions options)
    : Optimizer(std::move(parameters), options.rate, options.tier, options.narrow), options_(std::move(options)) {
  list_.reserve(this->parameters().size());
}

void MatrixOptimizer::make_all_state() {
  require(options_.beta1 >= 0 && options_.beta1 < 1, "beta1 in [0, 1)", options_.beta1);
  require(options_.beta2 >= 0 && options_.beta2 < 1, "beta2 in [0, 1)", options_.beta2);
  require(options_.epsilon >= 0, "epsilon >= 0", options_.epsilon);
  require(options_.weight_decay >= 0, "weight decay >= 0", options_.weight_decay);
  require_named(options_.elementwise);
  refuse_f64();
  for (const Named& p : parameters()) {
    const bool is_left_out = std::any_of(options_.elementwise.begin(), options_.elementwise.end(),
                                         [&](const auto& name) { return is_named(p.name, name); });
    is_matrix_.push_back(p.tensor.rank() >= 2 && p.tensor.elements() > 0 && !is_left_out);
  }
  make_state([this](std::size_t index) {
    const Tensor& p = parameters()[index].tensor;
    if (is_matrix(index)) {
      const std::int64_t rows = p.shape()[0];
      return add_matrix_state(index, rows, p.elements() / rows);
    }
    add_moment(index, "first_moment", true);
    add_moment(index, "second_moment", false);
  });
}

std::vector<Setting> MatrixOptimizer::settings() const {
  return {{"beta1", options_.beta1},
          {"beta2", options_.beta2},
          {"epsilon", options_.epsilon},
          {"weight_decay", options_.weight_decay},
          {"smallest_decayed_rank", static_cast<double>(options_.smallest_decayed_rank)}};
}

double MatrixOptimizer::decay_of(std::size_t index) const {
  return parameters()[index].tensor.rank() >= options_.smallest_decayed_rank ? options_.weight_decay : 0;
}

void MatrixOptimizer::update(std::span<const std::size_t> indices) {
  const memory::Device device = parameters()[indices.front()].tensor.device();
  list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) {
      if (is_matrix(i)) continue;
      kernels::AdamArgs args;
      set_arguments(args, i, decay_of(i), at, "first_moment", "second_moment");
      args.beta1 = options_.beta1;
      args.beta2 = options_.beta2;
      args.epsilon = options_.epsilon;
      list_.push_back(args);
    }
    kernels::optimizer_kernels(device).update_elements({.adam = list_});
  });
  for (const std::size_t i : indices) {
    if (is_matrix(i)) update_matrix(i);
  }
}

void MatrixOptimizer::update_matrix(std::size_t index) {
  const Tensor& p = parameters()[index].tensor;
  const PathScope path(p.storage()->path());
  Tensor gradient = as_matrix(to_dtype(contiguous(p.grad()), DType::f32));
  if (gradient_factor() != 1) gradient = gradient * gradient_factor();
  const Tensor along = direction(index, gradient);
  gradient = Tensor();
  move_along(index, decay_of(index), along);
}

Tensor adam_direction(const Tensor& first_moment, const Tensor& second_moment, const Tensor& gradient,
                      const MatrixOptions& options, std::int64_t step) {
  const auto count = static_cast<double>(step);
  copy_into(first_moment, first_moment * options.beta1 + gradient * (1 - options.beta1));
  copy_into(second_moment, second_moment * options.beta2 + square(gradient) * (1 - options.beta2));
  const double c1 = 1 - std::pow(options.beta1, count), c2 = 1 - std::pow(options.beta2, count);
  return first_moment * (1 / c1) / (sqrt(second_moment) * (1 / std::sqrt(c2)) + options.epsilon);
}

}  // namespace thimble::optim
