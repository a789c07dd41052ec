#pragma once
// APOLLO-Mini (Zhu et al. 2024, arXiv:2412.05270, algorithm 1 with rank 1 and a scale for each tensor): SGD with Adam's
// step length, estimated in one random direction.

#include <thimble/optim/matrix/matrix_optimizer.h>

namespace thimble::optim {

struct ApolloOptions {
  MatrixOptions matrix = {};
  double scale = 11.313708498984761;  ///< sqrt(128): of every update
  std::int64_t period = 200;          ///< updates between two projections
  double growth = 1.01;               ///< largest ratio of an update's norm to the previous one
};

/// With P, normal numbers of variance 1 for the shorter axis, drawn again every `period` updates: r = P g, of the
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

}  // namespace thimble::optim
