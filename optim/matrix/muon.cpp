#include <thimble/optim/matrix/muon.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>

namespace thimble::optim {

Muon::Muon(std::vector<Named> parameters, MuonOptions options)
    : MatrixOptimizer(std::move(parameters), std::move(options.matrix)),
      momentum_(options.momentum),
      nesterov_(options.nesterov),
      iterations_(options.iterations) {
  require(momentum_ > 0 && momentum_ < 1, "momentum in (0, 1)", momentum_);
  require(iterations_ >= 1, "iterations >= 1", iterations_);
  make_all_state();
}

std::vector<Setting> Muon::settings() const {
  std::vector<Setting> all = MatrixOptimizer::settings();
  all.insert(
      all.end(),
      {{"momentum", momentum_}, {"nesterov", nesterov_ ? 1.0 : 0.0}, {"iterations", static_cast<double>(iterations_)}});
  return all;
}

void Muon::add_matrix_state(std::size_t index, std::int64_t rows, std::int64_t columns) {
  add_zeros(index, "momentum", {rows, columns});
}

Tensor Muon::direction(std::size_t index, const Tensor& gradient) {
  const Tensor m = state_of(index, "momentum");
  copy_into(m, m * momentum_ + gradient);
  const auto longer = static_cast<double>(std::max(gradient.shape()[0], gradient.shape()[1]));
  return orthogonalized(nesterov_ ? gradient + m * momentum_ : m, iterations_) * (0.2 * std::sqrt(longer));
}

// Products with the smaller of y y^T and y^T y: y commutes with neither, but (y y^T) y = y (y^T y).
Tensor orthogonalized(const Tensor& x, int iterations) {
  constexpr double a = 3.4445, b = -4.775, c = 2.0315;
  const bool is_tall = x.shape()[0] > x.shape()[1];
  Tensor y = x / (norm(x) + 1e-7);
  for (int i = 0; i < iterations; ++i) {
    const Tensor inner = matmul(y, y, is_tall, !is_tall);
    const Tensor factor = inner * b + matmul(inner, inner) * c;
    const Tensor rest = is_tall ? matmul(y, factor) : matmul(factor, y);
    y = y * a + rest;
  }
  return y;
}

}  // namespace thimble::optim
