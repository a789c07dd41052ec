#include <thimble/optim/matrix/apollo.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::optim {

ApolloMini::ApolloMini(std::vector<Named> parameters, ApolloOptions options)
    : MatrixOptimizer(std::move(parameters), std::move(options.matrix)),
      scale_(options.scale),
      growth_(options.growth),
      period_(options.period) {
  require(scale_ > 0 && std::isfinite(scale_), "scale > 0", scale_);
  require(growth_ >= 1, "growth >= 1", growth_);
  require(period_ >= 1, "period >= 1", static_cast<double>(period_));
  make_all_state();
}

std::vector<Setting> ApolloMini::settings() const {
  std::vector<Setting> all = MatrixOptimizer::settings();
  all.insert(all.end(), {{"scale", scale_}, {"period", static_cast<double>(period_)}, {"growth", growth_}});
  return all;
}

void ApolloMini::add_matrix_state(std::size_t index, std::int64_t rows, std::int64_t columns) {
  const std::int64_t longer = std::max(rows, columns);
  add_zeros(index, "first_moment", {longer});
  add_zeros(index, "second_moment", {longer});
  add_zeros(index, "norm", {1});
}

Tensor ApolloMini::projection(std::size_t index, std::int64_t step) const {
  const Named& p = parameters()[index];
  const std::int64_t rows = p.tensor.shape()[0], columns = p.tensor.elements() / rows;
  const auto drawn = static_cast<std::uint64_t>((step - 1) / period_);
  return normal({1, std::min(rows, columns)}, 0, 1, DType::f32, p.tensor.device(), random_site(p, "project", drawn));
}

Tensor ApolloMini::direction(std::size_t index, const Tensor& gradient) {
  const std::int64_t rows = gradient.shape()[0], columns = gradient.shape()[1], longer = std::max(rows, columns);
  const Tensor p = projection(index, step_count());
  // (1, rows) (rows, columns), or (rows, columns) (columns, 1).
  const Tensor seen = rows <= columns ? matmul(p, gradient) : matmul(gradient, p, false, true);
  const Tensor r = view::reshape(seen, {longer});
  const Tensor u =
      adam_direction(state_of(index, "first_moment"), state_of(index, "second_moment"), r, options(), step_count());
  const Tensor along = gradient * (frobenius_norm(u) / (frobenius_norm(r) + 1e-8) * scale_);
  const Tensor before = state_of(index, "norm"), now = view::reshape(frobenius_norm(along), {1});
  // The first update has no earlier norm.
  const Tensor allowed = where(equal(before, zeros({1}, DType::f32, before.device())), now, before * growth_);
  const Tensor shortened = minimum(now, allowed);
  copy_into(before, shortened);
  return along * (shortened / maximum(now, full({1}, 1e-30, DType::f32, before.device())));
}

}  // namespace thimble::optim
