#pragma once
// Optimizers of matrices. A matrix moves along a direction computed from its whole gradient; AdamW (optim/adam.h)
// updates everything else (vectors, and named matrices such as embeddings or a head) at the same rate.
//
// - A parameter of rank 2 and more is a matrix of its first axis by all others.
// - A direction is computed by the library's operators in f32. One matrix's update takes temporary bytes of at most 5
//   times its elements in f32, which a dry run predicts. Without room for them step() throws OutOfMemory before it
//   writes that matrix; earlier ones are updated.

#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct MatrixOptions {
  double rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;  ///< AdamW's
  double epsilon = 1e-8;
  double weight_decay = 0;        ///< decoupled: p *= 1 - rate decay
  int smallest_decayed_rank = 0;  ///< tensors of lower rank are not decayed
  /// Matrices that AdamW updates: "wte", or "gpt.h0" for all that begin with "gpt.h0.".
  std::vector<std::string> elementwise = {};
  std::shared_ptr<memory::Tier> tier = nullptr;  ///< for the state between updates; null keeps it here
  NarrowUpdate narrow = NarrowUpdate::rounded;   ///< of parameters narrower than f32 (optim/moments.h)
};

class MatrixOptimizer : public Optimizer {
 public:
  bool is_elementwise() const noexcept override { return false; }
  bool takes_gradient_factor() const noexcept override { return true; }
  /// MatrixOptions' settings; derived classes add theirs.
  std::vector<Setting> settings() const override;

 protected:
  /// Throws ValueError for options out of range and an unknown parameter name, DTypeError for f64 parameters.
  MatrixOptimizer(std::vector<Named> parameters, MatrixOptions options);
  /// For constructors, once their options are checked: makes all state. Matrices have the state of add_matrix_state,
  /// other parameters `.first_moment` and `.second_moment`; then comes `.master` or `.compensation`.
  void make_all_state();

  virtual void add_matrix_state(std::size_t index, std::int64_t rows, std::int64_t columns) = 0;
  /// The direction of a matrix, of the gradient's shape: p moves by -rate direction. `gradient` is (rows, columns),
  /// f32, already multiplied by the gradient's factor. May write the parameter's state.
  virtual Tensor direction(std::size_t index, const Tensor& gradient) = 0;

  const MatrixOptions& options() const noexcept { return options_; }

 private:
  bool is_matrix(std::size_t index) const { return is_matrix_[index]; }
  double decay_of(std::size_t index) const;
  void update(std::span<const std::size_t> indices) final;
  void update_matrix(std::size_t index);

  MatrixOptions options_;
  std::vector<bool> is_matrix_;          // by parameter
  std::vector<kernels::AdamArgs> list_;  // the current update's; reserved for all parameters
};

/// Adam's direction for a gradient in a smaller space: advances both moments, of the gradient's shape, in update
/// `step`, and returns m / c1 / (sqrt(v / c2) + epsilon), c = 1 - beta^step.
Tensor adam_direction(const Tensor& first_moment, const Tensor& second_moment, const Tensor& gradient,
                      const MatrixOptions& options, std::int64_t step);

}  // namespace thimble::optim
