#include <thimble/autograd/gradcheck.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>

namespace thimble {
namespace {

// Fixed weights in [-1, 1]: equal weights would hide errors that cancel.
std::vector<double> contraction_weights(std::int64_t n) {
  std::vector<double> weights(static_cast<std::size_t>(n));
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  for (double& weight : weights) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    weight = static_cast<double>(state >> 11) * 0x1p-52 - 1;
  }
  return weights;
}

double contract(const Tensor& y, const std::vector<double>& weights) {
  const std::vector<double> values = to_host<double>(y);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

}  // namespace

GradcheckResult gradcheck(FunctionRef<Tensor(std::span<const Tensor>)> function, std::span<const Tensor> inputs,
                          GradcheckOptions options) {
  std::vector<Tensor> leaves;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    leaves.push_back(t.defined() ? clone(t) : t);
    const bool is_asked_for = (options.operands >> i) & 1u;
    if (t.defined() && t.dtype() == DType::f64 && is_asked_for) leaves.back().require_grad();
  }
  const PassScope pass(current_generator());
  const auto call = [&] {
    current_generator().start_pass();
    return function(leaves);
  };
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = call();
  }
  const std::vector<double> weights = contraction_weights(y.elements());
  tape.backward(y, to_dtype(from_host(weights, y.shape(), y.device()), y.dtype()));

  GradcheckResult result;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].requires_grad()) continue;
    const std::vector<double> values = to_host<double>(leaves[i]);
    std::vector<double> gradient(values.size());
    if (leaves[i].grad().defined()) gradient = to_host<double>(leaves[i].grad());
    for (std::size_t e = 0; e < values.size(); ++e) {
      const auto evaluate = [&](double value) {
        std::vector<double> moved = values;
        moved[e] = value;
        copy_into(leaves[i], from_host(moved, leaves[i].shape(), leaves[i].device()));
        return contract(call(), weights);
      };
      const double numerical =
          (evaluate(values[e] + options.step) - evaluate(values[e] - options.step)) / (2 * options.step);
      const double error = std::abs(numerical - gradient[e]);
      const double allowed = options.absolute_tolerance + options.relative_tolerance * std::abs(numerical);
      result.largest_error = std::max(result.largest_error, error);
      if (!(error <= allowed) && result.passed) {
        result.passed = false;
        result.report = "operand " + std::to_string(i) + " " + to_string(leaves[i].shape()) + ", element " +
                        std::to_string(e) + ": numerical " + std::to_string(numerical) + ", analytical " +
                        std::to_string(gradient[e]);
      }
    }
    copy_into(leaves[i], from_host(values, leaves[i].shape(), leaves[i].device()));
  }
  return result;
}

}  // namespace thimble
