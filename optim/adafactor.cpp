#include <thimble/optim/adafactor.h>

namespace thimble::optim {
namespace {

struct Matrix {
  std::int64_t rows, columns;
  bool is_factored() const noexcept { return rows > 1 && columns > 1; }
};

Matrix matrix_of(const Tensor& p) {
  const std::int64_t columns = p.rank() > 1 ? p.shape().back() : p.elements();
  return {columns > 0 ? p.elements() / columns : 0, columns};
}

}  // namespace

Adafactor::Adafactor(std::vector<Named> parameters, AdafactorOptions options)
    : Optimizer(std::move(parameters), options.rate, options.tier, options.narrow), options_(std::move(options)) {
  require(options_.beta1 >= 0 && options_.beta1 < 1, "beta1 in [0, 1)", options_.beta1);
  require(options_.decay > 0 && options_.decay <= 1, "decay in (0, 1]", options_.decay);
  require(options_.epsilon1 > 0, "epsilon1 > 0", options_.epsilon1);
  require(options_.epsilon2 >= 0, "epsilon2 >= 0", options_.epsilon2);
  require(options_.clip > 0, "clip > 0", options_.clip);
  require(options_.weight_decay >= 0, "weight decay >= 0", options_.weight_decay);
  refuse_f64();
  list_.reserve(this->parameters().size());
  make_state([this](std::size_t index) {
    const Tensor& p = this->parameters()[index].tensor;
    const Matrix matrix = matrix_of(p);
    if (matrix.is_factored()) {
      add_zeros(index, "row_moment", {matrix.rows});
      add_zeros(index, "column_moment", {matrix.columns});
    } else {
      add_zeros(index, "second_moment", p.shape());
    }
    if (options_.beta1 > 0) add_zeros(index, "first_moment", p.shape());
  });
}

void Adafactor::update(std::span<const std::size_t> indices) {
  const memory::Device device = parameters()[indices.front()].tensor.device();
  list_.clear();
  launch(device, [&](const Addresses& at) {
    for (const std::size_t i : indices) list_.push_back(arguments(i, at));
    kernels::optimizer_kernels(device).adafactor(list_);
  });
}

std::vector<Setting> Adafactor::settings() const {
  return {{"has_relative_step", options_.has_relative_step ? 1.0 : 0.0},
          {"scales_by_parameter", options_.scales_by_parameter ? 1.0 : 0.0},
          {"beta1", options_.beta1},
          {"decay", options_.decay},
          {"epsilon1", options_.epsilon1},
          {"epsilon2", options_.epsilon2},
          {"clip", options_.clip},
          {"weight_decay", options_.weight_decay},
          {"smallest_decayed_rank", static_cast<double>(options_.smallest_decayed_rank)}};
}

kernels::AdafactorArgs Adafactor::arguments(std::size_t index, const Addresses& at) const {
  const Tensor& parameter = parameters()[index].tensor;
  const Matrix matrix = matrix_of(parameter);
  kernels::AdafactorArgs args;
  set_arguments(args, index, parameter.rank() >= options_.smallest_decayed_rank ? options_.weight_decay : 0, at);
  args.rows = matrix.rows;
  args.columns = matrix.columns;
  args.row_moment = at.as<float>(state_of(index, "row_moment"));
  args.column_moment = at.as<float>(state_of(index, matrix.is_factored() ? "column_moment" : "second_moment"));
  args.momentum = at.as<float>(state_of(index, "first_moment"));
  args.has_relative_step = options_.has_relative_step;
  args.beta1 = options_.beta1;
  args.decay = options_.decay;
  args.epsilon1 = options_.epsilon1;
  args.epsilon2 = options_.epsilon2;
  args.clip = options_.clip;
  args.scales_by_parameter = options_.scales_by_parameter;
  return args;
}

}  // namespace thimble::optim
