#pragma once
// APOLLO-Mini (Zhu et al. 2024, arXiv:2412.05270, algorithm 1 with rank 1 and a scale for each tensor): SGD with Adam's
// step length, estimated in one random direction.

#include <thimble/optim/matrix/matrix_optimizer.h>

namespace thimble::optim {

struct ApolloOptions {
  MatrixOptions matrix = {};
  double scale = 11.313708498984761;  ///< of every update: sqrt(128)
  std::int64_t period = 200;          ///< updates between projections
  double growth = 1.01;               ///< largest ratio of an update's norm to the previous one
};

/// P has standard normal numbers for the shorter axis, drawn anew every `period` updates. r = P g has the size of the
/// longer axis; u = Adam's direction of r; d = scale |u| / |r| g, shortened to at most growth times the previous norm;
/// p -= rate d. State of a matrix: 8 bytes for each row or column of the longer axis, and 4; of other parameters 8 per
/// element. Plus the extra of `narrow`.
class ApolloMini final : public MatrixOptimizer {
 public:
  /// Throws ValueError and DTypeError as MatrixOptimizer does. State: `<parameter>.first_moment`, `.second_moment`,
  /// `.norm`.
  ApolloMini(std::vector<Named> parameters, ApolloOptions options);
  const char* name() const noexcept override { return "apollo-mini"; }
  std::vector<Setting> settings() const override;
  bool is_capturable() const noexcept override { return false; }

  /// The P of parameter `index` in update `step`, (1, shorter): a function of the current generator's seed, the period
  /// and the parameter's name.
  Tensor projection(std::size_t index, std::int64_t step) const;

 private:
  void add_matrix_state(std::size_t index, std::int64_t rows, std::int64_t columns) override;
  Tensor direction(std::size_t index, const Tensor& gradient) override;

  double scale_, growth_;
  std::int64_t period_;
};

// ---- GaLore (Zhao et al. 2024, arXiv:2403.03507, algorithm 2): Adam in the leading singular directions of the
// gradient.

struct GaloreOptions {
  MatrixOptions matrix = {};
  std::int64_t rank = 128;    ///< number of directions; at most the matrix's shorter axis
  std::int64_t period = 200;  ///< updates between choices of directions
  double scale = 0.25;        ///< of updates
};

/// P (shorter, rank) has the leading singular vectors of the gradient's shorter axis, chosen anew every `period`
/// updates. r = P^T g, or g P; u = Adam's direction of r; p -= rate scale P u, or u P^T. The moments stay unchanged
/// when P changes. State of a matrix: 4 (2 longer rank + shorter rank) bytes; of other parameters 8 per element. Plus
/// the extra of `narrow`.
class Galore final : public MatrixOptimizer {
 public:
  /// Throws ValueError and DTypeError as MatrixOptimizer does. State: `<parameter>.first_moment`, `.second_moment`,
  /// `.projection`.
  Galore(std::vector<Named> parameters, GaloreOptions options);
  const char* name() const noexcept override { return "galore"; }
  std::vector<Setting> settings() const override;
  std::int64_t period() const noexcept override { return period_; }

 private:
  void add_matrix_state(std::size_t index, std::int64_t rows, std::int64_t columns) override;
  Tensor direction(std::size_t index, const Tensor& gradient) override;

  std::int64_t rank_, period_;
  double scale_;
};

/// The `rank` leading left singular vectors of x (n, m) as columns (n, rank), largest first. Starts from any `begin`
/// (n, rank), multiplies by x x^T and makes the columns orthonormal, `iterations` times (Halko et al. 2011,
/// arXiv:0909.4061, algorithm 4.4). Runs on x's device without waiting for it. Vectors of close singular values are
/// mixed; if x has fewer than `rank` of them, the rest are zeros.
Tensor leading_vectors(const Tensor& x, const Tensor& begin, int iterations = 4);

}  // namespace thimble::optim
