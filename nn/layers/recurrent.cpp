#include <thimble/nn/layers/recurrent.h>

#include <cmath>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/nn/layers/init.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::nn {

Recurrent::Recurrent(bool is_lstm, std::int64_t in, std::int64_t width, const RecurrentOptions& options,
                     const TensorOptions& on)
    : is_lstm_(is_lstm), width_(width), options_(options), compute_(on.compute) {
  const std::string name = is_lstm ? "lstm" : "gru";
  check_fp8_strict(on.fp8, on.fp8 ? "recurrent layers have no FP8 form" : "");
  if (in < 1 || width < 1 || options.layers < 1 || !(options.dropout >= 0 && options.dropout < 1)) {
    throw ValueError(name + ": " + std::to_string(in) + " inputs, " + std::to_string(width) + " units, " +
                     std::to_string(options.layers) + " layers, dropout " + std::to_string(options.dropout) +
                     "; expected at least 1 of each, and a probability in [0, 1)");
  }
  const std::int64_t rows = (is_lstm ? 4 : 3) * width, directions = options.is_bidirectional ? 2 : 1;
  const double bound = 1 / std::sqrt(static_cast<double>(width));
  directions_.reserve(static_cast<std::size_t>(options.layers * directions));
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    for (std::int64_t d = 0; d < directions; ++d) {
      const std::string end = "_l" + std::to_string(layer) + (d == 1 ? "_reverse" : "");
      const auto add = [&](const char* of, const Shape& shape) {
        return add_parameter(of + end, init::uniform(shape, bound, on.dtype, on.device));
      };
      Direction& made = directions_.emplace_back();
      made.weight_ih = add("weight_ih", {rows, layer == 0 ? in : directions * width});
      made.weight_hh = add("weight_hh", {rows, width});
      if (!options.has_bias) continue;
      made.bias_ih = add("bias_ih", {rows});
      made.bias_hh = add("bias_hh", {rows});
    }
  }
}

Tensor Recurrent::forward(const Tensor& x) { return run_all(x, nullptr); }

Tensor Recurrent::run(const Tensor& x, RecurrentState& state) {
  const PathScope scope(path());
  const EvaluationScope mode(!is_training());
  return run_all(x, &state);
}

Tensor Recurrent::run_all(const Tensor& x, RecurrentState* state) {
  const RecurrentState before = state ? *state : RecurrentState();
  const auto count = static_cast<std::int64_t>(directions_.size());
  const auto check_state = [&](const Tensor& t) {
    if (!t.defined() || (t.rank() == 3 && t.size(0) == count)) return;
    throw ShapeError(std::string(is_lstm_ ? "lstm" : "gru") + ": the state is " + describe(t) + ", expected (" +
                     std::to_string(count) + ", N, " + std::to_string(width_) + ")");
  };
  check_state(before.h);
  check_state(before.c);
  Tensor y = as_operand(options_.is_batch_first ? transpose(x, 0, 1) : x, compute_);  // (T, N, C)
  const std::int64_t steps = y.rank() == 3 ? y.size(0) : 0;
  const std::size_t together = options_.is_bidirectional ? 2 : 1;
  std::vector<Tensor> last_h, last_c;
  for (std::size_t i = 0; i < directions_.size(); i += together) {
    if (i > 0 && is_training() && options_.dropout > 0) y = dropout(y, options_.dropout);
    std::vector<Tensor> states;
    for (std::size_t k = i; k < i + together; ++k) {
      const Direction& d = directions_[k];
      const RecurrentWeights weights{as_operand(d.weight_ih, compute_), as_operand(d.weight_hh, compute_),
                                     as_operand(d.bias_ih, compute_), as_operand(d.bias_hh, compute_)};
      const auto of = [&](const Tensor& all) {
        return all.defined() ? as_operand(select(all, 0, static_cast<std::int64_t>(k)), compute_) : Tensor();
      };
      const bool is_reverse = k > i;
      if (is_lstm_) {
        const LstmResult result = lstm(y, of(before.h), of(before.c), weights, is_reverse);
        states.push_back(result.output);
        last_c.push_back(result.cell);
      } else {
        states.push_back(gru(y, of(before.h), weights, is_reverse));
      }
      if (state) last_h.push_back(select(states.back(), 0, is_reverse ? 0 : steps - 1));
    }
    y = states.size() == 1 ? states[0] : concat(states, 2);
  }
  if (state) *state = {stack(last_h, 0), is_lstm_ ? stack(last_c, 0) : Tensor()};
  return options_.is_batch_first ? transpose(y, 0, 1) : y;
}

}  // namespace thimble::nn
