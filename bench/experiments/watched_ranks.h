#pragma once
// Ranks with a callback after the update of a step, when parameters, gradients and state are all live.

#include <functional>
#include <utility>

#include <thimble/optim/ranks.h>

namespace thimble::bench {

class WatchedRanks : public optim::Ranks {
 public:
  /// `inner` must live as long; `look` is called on it before parameters are shared.
  WatchedRanks(optim::Ranks& inner, std::function<void()> look) : inner_(inner), look_(std::move(look)) {}

  int rank() const noexcept override { return inner_.rank(); }
  int size() const noexcept override { return inner_.size(); }
  const LeafSet& leaves() const noexcept override { return inner_.leaves(); }
  void begin_step(const optim::Optimizer& o, std::int64_t n) override { inner_.begin_step(o, n); }
  std::span<const optim::MicroBatch> all_parts(std::span<const optim::MicroBatch> own) override {
    return inner_.all_parts(own);
  }
  void take_gradient(const std::shared_ptr<tape::Leaf>& leaf) override { inner_.take_gradient(leaf); }
  void end_micro_batch(std::size_t chunk) override { inner_.end_micro_batch(chunk); }
  void complete_gradients() override { inner_.complete_gradients(); }
  Tensor sum_losses(std::span<const Tensor> own) override { return inner_.sum_losses(own); }
  Tensor gradient_square_sums(const optim::Optimizer& o) override { return inner_.gradient_square_sums(o); }
  void share_parameters() override {
    look_();
    inner_.share_parameters();
  }
  void share_state(tape::Transaction& t) override { inner_.share_state(t); }
  void drop_gradients() noexcept override { inner_.drop_gradients(); }

 private:
  optim::Ranks& inner_;
  std::function<void()> look_;
};

}  // namespace thimble::bench
