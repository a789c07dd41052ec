#pragma once
// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), with the scale of Liu et al. 2025 (arXiv:2502.16982,
// equation 4): the momentum of a matrix, made orthogonal.

#include <thimble/optim/matrix/matrix_optimizer.h>

namespace thimble::optim {

struct MuonOptions {
  MatrixOptions matrix = {};
  double momentum = 0.95;
  bool nesterov = true;
  int iterations = 5;  ///< Newton-Schulz iterations
};

/// m = momentum m + g;  p -= rate 0.2 sqrt(max(rows, columns)) orthogonalized(g + momentum m, or m). The scale gives an
/// update the size of AdamW's, so both take the same rate. State: `<parameter>.momentum` of a matrix, 4 bytes per
/// element; 8 bytes per element of other parameters; plus the extra of `narrow`.
class Muon final : public MatrixOptimizer {
 public:
  /// Throws ValueError and DTypeError as MatrixOptimizer does.
  Muon(std::vector<Named> parameters, MuonOptions options);
  const char* name() const noexcept override { return "muon"; }
  std::vector<Setting> settings() const override;

 private:
  void add_matrix_state(std::size_t index, std::int64_t rows, std::int64_t columns) override;
  Tensor direction(std::size_t index, const Tensor& gradient) override;

  double momentum_;
  bool nesterov_;
  int iterations_;
};

/// x (rows, columns) with its singular values brought near 1, without a decomposition: x / |x|, then `iterations` times
/// y = 3.4445 y - 4.775 (y y^T) y + 2.0315 (y y^T)^2 y. After 5 they lie in [0.68, 1.13] if they began above about 0.01
/// of |x|; smaller ones need more iterations.
Tensor orthogonalized(const Tensor& x, int iterations = 5);

}  // namespace thimble::optim
