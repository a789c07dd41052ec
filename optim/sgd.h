#pragma once
// Stochastic gradient descent with momentum (Polyak 1964; Nesterov's form as in Sutskever et al. 2013 and PyTorch).

#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct SgdOptions {
  double rate = 0.1;
  double momentum = 0;                           ///< 0 keeps no state
  double weight_decay = 0;                       ///< added to the gradient
  bool nesterov = false;                         ///< needs momentum > 0
  std::shared_ptr<memory::Tier> tier = nullptr;  ///< for the state between updates; null keeps it here
  NarrowUpdate narrow = NarrowUpdate::rounded;   ///< of parameters narrower than f32 (optim/moments.h)
  MomentFormat moments = {};                     ///< how momentum is stored (optim/moments.h)
};

/// State, in bytes per parameter element: momentum in f32 4, in bf16 2, in u8 1 + 4 / 256, plus the extra of `narrow`.
class Sgd final : public Optimizer {
 public:
  /// Throws ValueError for options out of range, among them momentum 0 with a format of moments other than f32, and
  /// DTypeError as make_extra does. State: `<parameter>.momentum`, in u8 also `.momentum_scale`; `.master` or
  /// `.compensation`.
  Sgd(std::vector<Named> parameters, SgdOptions options);
  /// "sgd"; "momentum_bf16" and "momentum8" with momentum in bf16 and u8.
  const char* name() const noexcept override;
  std::vector<Setting> settings() const override;
  bool takes_gradient_factor() const noexcept override { return true; }

 private:
  void update(std::span<const std::size_t> indices) override;
  kernels::SgdArgs arguments(std::size_t index, const Addresses& at) const;

  SgdOptions options_;
  std::vector<kernels::SgdArgs> list_;  // the current update's; reserved for all parameters
};

}  // namespace thimble::optim
