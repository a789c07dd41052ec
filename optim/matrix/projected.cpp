#include <thimble/optim/matrix/projected.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>

namespace thimble::optim {

ApolloMini::ApolloMini(std::vector<Named> parameters, ApolloOptions options)
    : MatrixOptimizer(std::move(parameters), std::move(options.matrix)),
      scale_(options.scale),
      growth_(options.growth),
      period_(options.period) {
  require(scale_ > 0, "scale > 0", scale_);
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
  // (1, rows) x (rows, columns), or (rows, columns) x (columns, 1).
  const Tensor seen = rows <= columns ? matmul(p, gradient) : matmul(gradient, p, false, true);
  const Tensor r = view::reshape(seen, {longer});
  const Tensor u =
      adam_direction(state_of(index, "first_moment"), state_of(index, "second_moment"), r, options(), step_count());
  const Tensor along = gradient * (norm(u) / (norm(r) + 1e-8) * scale_);
  const Tensor before = state_of(index, "norm"), now = view::reshape(norm(along), {1});
  // The first update has no previous norm.
  const Tensor allowed = where(equal(before, zeros({1}, DType::f32, before.device())), now, before * growth_);
  const Tensor shortened = minimum(now, allowed);
  copy_into(before, shortened);
  return along * (shortened / maximum(now, full({1}, 1e-30, DType::f32, before.device())));
}

namespace {

// Makes columns orthonormal in place, from the first to the last, by Gram-Schmidt applied twice ("twice is enough"). A
// column that the others span up to rounding becomes 0.
void orthonormalize(const Tensor& columns) {
  const std::int64_t n = columns.shape()[0], count = columns.shape()[1];
  for (std::int64_t j = 0; j < count; ++j) {
    const Tensor column = view::slice(columns, 1, j, j + 1);
    const Tensor before = norm(column);
    Tensor rest = contiguous(column);
    for (int turn = 0; turn < 2 && j > 0; ++turn) {
      const Tensor others = view::slice(columns, 1, 0, j);
      rest = rest - matmul(others, matmul(others, rest, true, false));
    }
    const Tensor left = norm(rest);
    const Tensor is_left = greater(left, before * 1e-5);
    const Tensor nothing = zeros({n, 1}, DType::f32, columns.device());
    copy_into(column, where(is_left, rest / maximum(left, full({}, 1e-30, DType::f32, columns.device())), nothing));
  }
}

}  // namespace

Galore::Galore(std::vector<Named> parameters, GaloreOptions options)
    : MatrixOptimizer(std::move(parameters), std::move(options.matrix)),
      rank_(options.rank),
      period_(options.period),
      scale_(options.scale) {
  require(rank_ >= 1, "rank >= 1", static_cast<double>(rank_));
  require(period_ >= 1, "period >= 1", static_cast<double>(period_));
  require(scale_ > 0, "scale > 0", scale_);
  make_all_state();
}

std::vector<Setting> Galore::settings() const {
  std::vector<Setting> all = MatrixOptimizer::settings();
  all.insert(all.end(),
             {{"rank", static_cast<double>(rank_)}, {"period", static_cast<double>(period_)}, {"scale", scale_}});
  return all;
}

void Galore::add_matrix_state(std::size_t index, std::int64_t rows, std::int64_t columns) {
  const std::int64_t shorter = std::min(rows, columns), rank = std::min(rank_, shorter);
  const Shape seen = rows <= columns ? Shape{rank, columns} : Shape{rows, rank};
  add_zeros(index, "first_moment", seen);
  add_zeros(index, "second_moment", seen);
  add_zeros(index, "projection", {shorter, rank});
}

Tensor Galore::direction(std::size_t index, const Tensor& gradient) {
  const bool is_wide = gradient.shape()[0] <= gradient.shape()[1];
  const Tensor p = state_of(index, "projection");
  if ((step_count() - 1) % period_ == 0) {
    const auto chosen = static_cast<std::uint64_t>((step_count() - 1) / period_);
    const Tensor begin =
        normal(p.shape(), 0, 1, DType::f32, p.device(), random_site(parameters()[index], "subspace", chosen));
    copy_into(p, leading_vectors(is_wide ? gradient : contiguous(view::transpose(gradient)), begin));
  }
  const Tensor seen = is_wide ? matmul(p, gradient, true, false) : matmul(gradient, p);
  const Tensor u =
      adam_direction(state_of(index, "first_moment"), state_of(index, "second_moment"), seen, options(), step_count());
  return is_wide ? matmul(p, u, false, false, scale_) : matmul(u, p, false, true, scale_);
}

Tensor leading_vectors(const Tensor& x, const Tensor& begin, int iterations) {
  Tensor p = clone(begin);
  for (int i = 0; i < iterations; ++i) {
    p = contiguous(matmul(x, matmul(x, p, true, false)));
    orthonormalize(p);
  }
  return p;
}

}  // namespace thimble::optim
