#pragma once
// Whether functions that differ between training and evaluation (dropout, attention's dropout, batch norm) train or
// evaluate. Layers open a scope by their mode (nn/layers/module.h), nn::Trainer opens one around its evaluation, a
// hand-written loop opens one itself:
//
//   const EvaluationScope evaluating;
//   const NoGrad off;
//   const double loss = item(mse_loss(net(x), y));

namespace thimble {

/// On this thread; false outside of scopes.
bool is_evaluating() noexcept;

/// Evaluates for a scope, or trains where `is_evaluating` is false.
class EvaluationScope {
 public:
  explicit EvaluationScope(bool is_evaluating = true) noexcept;
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  bool before_;
};

}  // namespace thimble
