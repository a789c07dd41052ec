#pragma once
// What certificates note of a step: tensors as bytes, and the gradients that an optimizer gets.

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/optim/optimizer.h>

#include "tensor_bytes.h"

namespace thimble::certificate {

using testing::Bytes;
using testing::bytes_of;

inline Bytes bytes_of(const void* from, std::size_t count) {
  const auto* const first = static_cast<const std::byte*>(from);
  return Bytes(first, first + count);
}
template <class T>
T read(const Bytes& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// Hands every update to the optimizer proper and notes the gradient that it gets.
class Watched final : public optim::Optimizer {
 public:
  /// `before_first` is called before the first update of a step, `after_each` after every one.
  Watched(std::unique_ptr<optim::Optimizer> proper, std::function<void()> before_first,
          std::function<void()> after_each)
      : Optimizer(proper->parameters(), proper->rate()),
        proper_(std::move(proper)),
        before_first_(std::move(before_first)),
        after_each_(std::move(after_each)),
        gradients_(parameters().size()) {}

  void list_state(std::size_t index, std::vector<optim::Named>& list) const override {
    proper_->list_state(index, list);
  }
  const char* name() const noexcept override { return proper_->name(); }
  bool takes_gradient_factor() const noexcept override { return proper_->takes_gradient_factor(); }

  void forget() {
    gradients_.assign(parameters().size(), {});
    updates_ = 0;
  }
  const std::vector<Bytes>& gradients() const noexcept { return gradients_; }

 private:
  void update(std::span<const std::size_t> indices) override {
    for (const std::size_t index : indices) {
      const Tensor& parameter = parameters()[index].tensor;
      if (updates_++ == 0) before_first_();
      if (!parameter.device().is_dry) gradients_[index] = bytes_of(parameter.grad());
      proper_->set_step_count(step_count());
      proper_->set_gradient_factor(gradient_factor());
      proper_->step_one(index);
      after_each_();
    }
  }

  std::unique_ptr<optim::Optimizer> proper_;
  std::function<void()> before_first_, after_each_;
  std::vector<Bytes> gradients_;
  std::size_t updates_ = 0;
};

}  // namespace thimble::certificate
