#pragma once
// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2).

#include <thimble/optim/narrow.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct AdamOptions {
  double rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool is_decoupled = true;  ///< AdamW; false: the decay is added to the gradient (Adam with L2)
  /// Tensors of lower rank (biases, norms) are not decayed. 0: all are; 2 is the habit for transformers.
  int smallest_decayed_rank = 0;
  std::shared_ptr<Tier> tier = nullptr;         ///< where the state waits between updates; null: it stays
  NarrowUpdate narrow = NarrowUpdate::rounded;  ///< of parameters narrower than f32 (optim/narrow.h)
};

/// State: 8 bytes per parameter element (two moments in f32), and what `narrow` takes.
class Adam final : public Optimizer {
 public:
  /// Throws ValueError for options out of range.
  Adam(std::vector<Named> parameters, AdamOptions options);
  void list_state(std::size_t index, std::vector<Named>& list) const override;
  const char* name() const noexcept override { return options_.is_decoupled ? "adamw" : "adam"; }
  bool takes_gradient_factor() const noexcept override { return true; }

 private:
  std::vector<Tensor*> state_of(std::size_t index) override;
  void update(std::span<const std::size_t> indices) override;
  kernels::AdamArgs arguments(std::size_t index, const Addresses& at) const;
  void wrote(std::size_t index) const;

  AdamOptions options_;
  std::vector<Tensor> first_, second_;
  NarrowUpdateState narrow_;
  std::vector<kernels::AdamArgs> list_;  // of the update under way; it has room for all
};

}  // namespace thimble::optim
