#pragma once
// Stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013 for Nesterov's form, as PyTorch has
// it).

#include <thimble/optim/narrow.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct SgdOptions {
  double rate = 0.1;
  double momentum = 0;                          ///< 0: no state
  double weight_decay = 0;                      ///< added to the gradient
  bool nesterov = false;                        ///< needs momentum > 0
  std::shared_ptr<Tier> tier = nullptr;         ///< where the state waits between updates; null: it stays
  NarrowUpdate narrow = NarrowUpdate::rounded;  ///< of parameters narrower than f32 (optim/narrow.h)
};

/// State: 4 bytes per parameter element with momentum, and what `narrow` takes.
class Sgd final : public Optimizer {
 public:
  /// Throws ValueError for options out of range.
  Sgd(std::vector<Named> parameters, SgdOptions options);
  void list_state(std::size_t index, std::vector<Named>& list) const override;
  const char* name() const noexcept override { return "sgd"; }
  bool takes_gradient_factor() const noexcept override { return true; }

 private:
  std::vector<Tensor*> state_of(std::size_t index) override;
  void update(std::span<const std::size_t> indices) override;
  kernels::SgdArgs arguments(std::size_t index, const Addresses& at) const;
  void wrote(std::size_t index) const;

  SgdOptions options_;
  std::vector<Tensor> momentum_;
  NarrowUpdateState narrow_;
  std::vector<kernels::SgdArgs> list_;  // of the update under way; it has room for all
};

}  // namespace thimble::optim
