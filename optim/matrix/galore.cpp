#include <thimble/optim/matrix/galore.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::optim {
namespace galore_detail {

// Makes columns orthonormal in place, from the first to the last (Gram and Schmidt, each twice: "twice is enough"). A
// column that the others span up to rounding becomes 0.
void orthonormalize(const Tensor& columns) {
  const std::int64_t n = columns.shape()[0], count = columns.shape()[1];
  for (std::int64_t j = 0; j < count; ++j) {
    const Tensor column = view::slice(columns, 1, j, j + 1);
    const Tensor before = frobenius_norm(column);
    Tensor rest = contiguous(column);
    for (int turn = 0; turn < 2 && j > 0; ++turn) {
      const Tensor others = view::slice(columns, 1, 0, j);
      rest = rest - matmul(others, matmul(others, rest, true, false));
    }
    const Tensor norm = frobenius_norm(rest);
    const Tensor is_left = greater(norm, before * 1e-5);
    const Tensor nothing = zeros({n, 1}, DType::f32, columns.device());
    copy_into(column, where(is_left, rest / maximum(norm, full({}, 1e-30, DType::f32, columns.device())), nothing));
  }
}

}  // namespace galore_detail

Galore::Galore(std::vector<Named> parameters, GaloreOptions options)
    : MatrixOptimizer(std::move(parameters), std::move(options.matrix)),
      rank_(options.rank),
      period_(options.period),
      scale_(options.scale) {
  require(rank_ >= 1, "rank >= 1", static_cast<double>(rank_));
  require(period_ >= 1, "period >= 1", static_cast<double>(period_));
  require(scale_ > 0 && std::isfinite(scale_), "scale > 0", scale_);
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
    galore_detail::orthonormalize(p);
  }
  return p;
}

}  // namespace thimble::optim
