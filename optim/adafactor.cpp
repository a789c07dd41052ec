#include <thimble/optim/adafactor.h>

#include <algorithm>
#include <cmath>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer8.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::optim {
namespace factored_detail {

struct Matrix {
  std::int64_t rows, columns;
  bool is_factored() const noexcept { return rows > 1 && columns > 1; }
};

Matrix matrix_of(const Tensor& p) {
  const std::int64_t columns = p.rank() > 1 ? p.shape().back() : p.elements();
  return {columns > 0 ? p.elements() / columns : 0, columns};
}

}  // namespace factored_detail

Adafactor::Adafactor(std::vector<Named> parameters, AdafactorOptions options)
    : Optimizer(std::move(parameters), options.rate), options_(options), narrow_(options.narrow) {
  const auto check = [](bool is_fine, const char* what, double value) {
    if (!is_fine)
      throw ValueError(std::string("adafactor: ") + what + " " + std::to_string(value) + " is out of range");
  };
  check(options.beta1 >= 0 && options.beta1 < 1, "beta1 (allowed: [0, 1))", options.beta1);
  check(options.decay > 0 && options.decay <= 1, "decay (allowed: (0, 1])", options.decay);
  check(options.epsilon1 > 0, "epsilon1 (allowed: > 0)", options.epsilon1);
  check(options.epsilon2 >= 0, "epsilon2 (allowed: >= 0)", options.epsilon2);
  check(options.clip > 0, "clip (allowed: > 0)", options.clip);
  check(options.weight_decay >= 0, "weight decay (allowed: >= 0)", options.weight_decay);
  for (const Named& p : this->parameters()) {
    if (p.tensor.dtype() != DType::f64) continue;
    throw DTypeError("adafactor: " + p.name + " is " + describe(p.tensor) + "; allowed are dtypes up to f32");
  }
  set_tier(options.tier);
  list_.reserve(this->parameters().size());
  for (const Named& p : this->parameters()) {
    const factored_detail::Matrix matrix = factored_detail::matrix_of(p.tensor);
    const PathScope path(p.tensor.storage() ? p.tensor.storage()->path() : PathId{0});
    const auto make = [&](const Shape& shape) {
      return zeros(shape, DType::f32, p.tensor.device(), Category::optimizer);
    };
    Moments m;
    if (matrix.is_factored()) m.rows = make({matrix.rows});
    m.columns = matrix.is_factored() ? make({matrix.columns}) : make(p.tensor.shape());
    if (options.beta1 > 0) m.first = make(p.tensor.shape());
    moments_.push_back(std::move(m));
    narrow_.add(p);
    put_away(moments_.size() - 1);
  }
  end_step();
}

void Adafactor::list_state(std::size_t index, std::vector<Named>& list) const {
  const auto& [name, parameter] = parameters()[index];
  const bool is_factored = factored_detail::matrix_of(parameter).is_factored();
  if (is_factored) list.push_back({name + ".row_moment", moments_[index].rows});
  list.push_back({name + (is_factored ? ".column_moment" : ".second_moment"), moments_[index].columns});
  if (options_.beta1 > 0) list.push_back({name + ".first_moment", moments_[index].first});
  narrow_.list(index, name, list);
}

std::vector<Tensor*> Adafactor::state_of(std::size_t index) {
  std::vector<Tensor*> list{&moments_[index].rows, &moments_[index].columns, &moments_[index].first};
  if (Tensor* const extra = narrow_.state_of(index)) list.push_back(extra);
  return list;
}

void Adafactor::update(std::span<const std::size_t> indices) {
  const Device device = parameters()[indices.front()].tensor.device();
  list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t index : indices) list_.push_back(arguments(index, at));
    kernels::optimizer8_kernels(device).adafactor(list_);
  });
  for (const std::size_t index : indices) {
    const Moments& m = moments_[index];
    for (const Tensor* t : {&m.rows, &m.columns, &m.first}) {
      if (t->storage()) t->storage()->bump_version();
    }
    narrow_.bump_version(index);
  }
}

kernels::AdafactorArgs Adafactor::arguments(std::size_t index, const Addresses& at) const {
  const auto& [name, parameter] = parameters()[index];
  const Tensor& gradient = parameter.grad();
  const Moments& m = moments_[index];
  const factored_detail::Matrix matrix = factored_detail::matrix_of(parameter);
  kernels::AdafactorArgs args;
  args.rows = matrix.rows;
  args.columns = matrix.columns;
  args.parameter = at(parameter);
  args.dtype = parameter.dtype();
  args.gradient = at(gradient);
  args.gradient_dtype = gradient.dtype();
  args.row_moment = at.as<float>(m.rows);
  args.column_moment = at.as<float>(m.columns);
  args.momentum = at.as<float>(m.first);
  args.rate = rate();
  args.has_relative_step = options_.has_relative_step;
  args.beta1 = options_.beta1;
  args.decay = options_.decay;
  args.epsilon1 = options_.epsilon1;
  args.epsilon2 = options_.epsilon2;
  args.clip = options_.clip;
  args.weight_decay = parameter.rank() >= options_.smallest_decayed_rank ? options_.weight_decay : 0;
  args.scales_by_parameter = options_.scales_by_parameter;
  args.gradient_factor = gradient_factor();
  args.step = step_count();
  args.narrow = narrow_.arguments(index, parameter, name, step_count(), at);
  return args;
}

}  // namespace thimble::optim
