#pragma once
// Whether functions that differ between training and evaluation (dropout, the dropout of attention, batch norm) train
// or evaluate. Layers open a scope by their own mode (nn/layers/module.h), nn::Trainer opens one around its evaluation,
// and a loop by hand one around its own:
//
//   const EvaluationScope evaluating;
//   const NoGrad off;
//   const double loss = item(mse_loss(net(x), y));

namespace thimble {

/// On this thread; false outside of scopes.
bool is_evaluating() noexcept;

/// Functions evaluate for a scope, or, where `is_evaluating` is false, train.
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
