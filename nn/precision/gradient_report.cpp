#include <thimble/nn/precision/gradient_report.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/units.h>

namespace thimble::nn {
namespace {

struct Sums {
  double exact = 0, lossy = 0, product = 0, difference = 0;
  void add(const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      exact += a[i] * a[i];
      lossy += b[i] * b[i];
      product += a[i] * b[i];
      difference += (a[i] - b[i]) * (a[i] - b[i]);
    }
  }
  void add(const Sums& other) {
    exact += other.exact;
    lossy += other.lossy;
    product += other.product;
    difference += other.difference;
  }
  GradientError error(std::string name) const {
    GradientError e;
    e.name = std::move(name);
    e.norm = without_sign_of_nan(std::sqrt(exact));
    const bool is_zero = exact == 0 && lossy == 0;
    if (is_zero) return e;
    e.relative_error =
        exact == 0 ? std::numeric_limits<double>::infinity() : without_sign_of_nan(std::sqrt(difference / exact));
    e.cosine = exact == 0 || lossy == 0 ? 0 : without_sign_of_nan(product / std::sqrt(exact) / std::sqrt(lossy));
    return e;
  }
};

// The gradients of one recording, on the host; empty for a parameter without one.
std::vector<std::vector<double>> gradients(const std::vector<optim::Named>& parameters,
                                           FunctionRef<Tensor(std::int64_t)> loss_of,
                                           const optim::RecordingOptions& recording, std::int64_t count,
                                           std::int64_t samples, std::optional<double> loss_scale,
                                           std::span<const optim::MicroBatch> parts, double& loss) {
  const tape::Transaction undone;  // never committed
  for (const optim::Named& p : parameters) p.tensor.grad() = Tensor();
  loss = without_sign_of_nan(
      item(optim::accumulate_gradients(count, samples, loss_of, recording, nullptr, loss_scale, parts)));
  std::vector<std::vector<double>> list;
  for (const optim::Named& p : parameters) {
    const Tensor& gradient = p.tensor.grad();
    list.push_back(gradient.defined() ? to_host<double>(gradient) : std::vector<double>());
    if (loss_scale) {
      for (double& value : list.back()) value /= *loss_scale;
    }
    p.tensor.grad() = Tensor();
  }
  return list;
}

}  // namespace

double GradientReport::smallest_cosine(double share) const {
  double least = 1;
  for (const GradientError& e : parameters) {
    if (e.norm > share * all.norm) least = std::min(least, e.cosine);
  }
  return least;
}

GradientReport compare_gradients(const std::vector<optim::Named>& parameters, FunctionRef<Tensor(std::int64_t)> loss_of,
                                 const optim::RecordingOptions& exact, const optim::RecordingOptions& lossy,
                                 std::int64_t count, std::int64_t samples, std::optional<double> loss_scale,
                                 std::span<const optim::MicroBatch> parts) {
  struct Restore {
    explicit Restore(const std::vector<optim::Named>& list) : parameters(list) {
      for (const optim::Named& p : parameters) before.push_back(p.tensor.grad());
    }
    ~Restore() {
      for (std::size_t i = 0; i < before.size(); ++i) parameters[i].tensor.grad() = before[i];
    }
    const std::vector<optim::Named>& parameters;
    std::vector<Tensor> before;
  } const restore(parameters);
  GradientReport report;
  const auto a = gradients(parameters, loss_of, exact, count, samples, loss_scale, parts, report.exact_loss);
  const auto b = gradients(parameters, loss_of, lossy, count, samples, loss_scale, parts, report.lossy_loss);
  Sums all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (a[i].empty() || a[i].size() != b[i].size()) continue;
    Sums sums;
    sums.add(a[i], b[i]);
    all.add(sums);
    report.parameters.push_back(sums.error(parameters[i].name));
  }
  report.all = all.error("");
  return report;
}

}  // namespace thimble::nn
