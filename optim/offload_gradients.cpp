#include <thimble/optim/offload_gradients.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>

namespace thimble::optim {

OffloadedGradients::OffloadedGradients(const std::vector<Named>& parameters, std::shared_ptr<memory::Tier> tier,
                                       double clip_norm)
    : parameters_(parameters),
      tier_(std::move(tier)),
      clip_norm_(clip_norm),
      away_(parameters.size()),
      writing_(parameters.size()) {
  if (!tier_) throw ValueError("offloaded gradients: there is no tier");
  if (!(clip_norm >= 0)) {
    throw ValueError("offloaded gradients: clip_norm " + std::to_string(clip_norm) + "; expected > 0, or 0 for none");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    by_leaf_.emplace_back(parameters_[i].tensor.leaf().get(), i);
  }
  std::sort(by_leaf_.begin(), by_leaf_.end());
  for (std::size_t k = 1; k < by_leaf_.size(); ++k) {
    if (by_leaf_[k].first != by_leaf_[k - 1].first) continue;
    throw ValueError("offloaded gradients: " + parameters_[by_leaf_[k].second].name + " is listed twice");
  }
  if (clip_norm > 0 && !parameters_.empty()) {
    square_sums_ = zeros({static_cast<std::int64_t>(parameters_.size())}, DType::f64,
                         parameters_.front().tensor.device(), memory::Category::workspace);
  }
}

void OffloadedGradients::take(const std::shared_ptr<tape::Leaf>& leaf) {
  const tape::Leaf* const key = leaf.get();
  const auto found = std::lower_bound(by_leaf_.begin(), by_leaf_.end(), std::pair(key, std::size_t{0}));
  if (found == by_leaf_.end() || found->first != key) return;
  const std::size_t index = found->second;
  if (!leaf->grad.defined() || leaf->grad.elements() == 0) return;
  if (writing_ < size()) away_[writing_].complete();
  writing_ = size();
  if (square_sums_.defined()) {
    const Tensor& gradient = leaf->grad;
    launch(gradient.device(), [&](const Addresses& at) {
      const kernels::SquareSumArgs args{gradient.elements(), at(gradient), gradient.dtype(),
                                        at.as<double>(square_sums_) + index};
      kernels::optimizer_kernels(gradient.device()).square_sums({&args, 1});
    });
  }
  away_[index] = memory::offload(leaf->grad, tier_);
  leaf->grad = Tensor();
  writing_ = index;
}

void OffloadedGradients::prefetch(std::size_t index) {
  if (index < size() && away_[index].defined()) away_[index].prefetch();
}

void OffloadedGradients::give_back(std::size_t index) {
  if (!away_[index].defined()) return;
  Tensor gradient = away_[index].fetch();
  if (square_sums_.defined()) {
    launch(gradient.device(), [&](const Addresses& at) {
      const kernels::ClipNorm norm{at.as<double>(square_sums_), square_sums_.elements(), clip_norm_};
      const kernels::ClipArgs args{gradient.elements(), at(gradient), gradient.dtype()};
      kernels::optimizer_kernels(gradient.device()).clip(norm, {&args, 1});
    });
    gradient.storage()->bump_version();
  }
  gradient.set_tape_ref({}, tape::Origin::gradient);
  parameters_[index].tensor.grad() = std::move(gradient);
}

}  // namespace thimble::optim
