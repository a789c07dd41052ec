#include <thimble/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::optim {

Optimizer::Optimizer(std::vector<Named> parameters, double rate) : parameters_(std::move(parameters)) {
  set_rate(rate);
  with_gradient_.reserve(parameters_.size());
  std::vector<const Leaf*> leaves;
  for (const Named& p : parameters_) {
    if (!p.tensor.leaf()) throw AutogradError("optimizer: " + p.name + " is not a leaf");
    leaves.push_back(p.tensor.leaf().get());
  }
  leaves_ = LeafSet(std::move(leaves));
}

void Optimizer::check_members() const {
  for (const Named& p : parameters_) {
    const Leaf* const leaf = p.tensor.leaf().get();
    for (const std::shared_ptr<Tensor* const>& member : leaf->members) {
      const Tensor* const now = *member;
      if (now == nullptr || now->leaf().get() == leaf) continue;  // its module has gone, or holds it
      throw AutogradError("optimizer: the module's " + p.name + " is " +
                          (now->defined() ? describe(*now) : "undefined") +
                          " and no longer the tensor that is trained, " + describe(p.tensor) +
                          "; make the optimizer after parameters are assigned, or write into them (copy_into)");
    }
  }
}

void Optimizer::step() {
  check_members();
  begin_step();
  if (!tier_) return step_all();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool reads_ahead = i + 1 < parameters_.size() && parameters_[i + 1].tensor.grad().defined();
    if (parameters_[i].tensor.grad().defined()) prefetch(i);
    if (reads_ahead) prefetch(i + 1);
    step_one(i);
  }
  end_step();
}

/// Without a tier: a launch may have many parameters.
void Optimizer::step_all() {
  with_gradient_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& gradient = parameters_[i].tensor.grad();
    if (gradient.defined() && gradient.elements() > 0) with_gradient_.push_back(i);
  }
  const std::span<const std::size_t> all(with_gradient_);
  for (std::size_t first = 0; first < all.size();) {
    const Device device = parameters_[all[first]].tensor.device();
    std::size_t last = first + 1;
    while (last < all.size() && parameters_[all[last]].tensor.device() == device) ++last;
    update(all.subspan(first, last - first));
    first = last;
  }
  for (const std::size_t i : all) parameters_[i].tensor.storage()->bump_version();
}

void Optimizer::end_step() { complete_writes(); }

void Optimizer::step_one(std::size_t index) {
  if (index >= parameters_.size()) {
    throw ValueError("optimizer: step_one of parameter " + std::to_string(index) + "; there are " +
                     std::to_string(parameters_.size()) + ", counted from 0");
  }
  const Tensor& parameter = parameters_[index].tensor;
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined() || gradient.elements() == 0) return;
  fetch(index);
  update({&index, 1});
  parameter.storage()->bump_version();
  put_away(index);
}

void Optimizer::zero_grad() {
  for (const Named& p : parameters_) p.tensor.grad() = Tensor();
}

void Optimizer::set_rate(double rate) {
  if (!(rate >= 0) || !std::isfinite(rate)) {
    throw ValueError("optimizer: learning rate " + std::to_string(rate) + " is not a finite number >= 0");
  }
  rate_ = rate;
}

void Optimizer::set_gradient_factor(double factor) {
  if (!(factor >= 0) || !std::isfinite(factor)) {
    throw ValueError("optimizer: gradient factor " + std::to_string(factor) + " is not a finite number >= 0");
  }
  if (factor != 1 && !takes_gradient_factor()) {
    throw ValueError(std::string("optimizer: ") + name() +
                     " does not multiply gradients, so no factor but 1 is allowed");
  }
  gradient_factor_ = factor;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const Named& s : state()) bytes += s.tensor.bytes();
  for (const auto& tensors : away_) {
    for (const memory::Offloaded& tensor : tensors) bytes += tensor.defined() ? tensor.bytes() : 0;
  }
  return bytes;
}

std::vector<Named> Optimizer::state() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) list_state(i, list);
  return list;
}

std::vector<Named> Optimizer::state_outline() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // list_state names what it finds: for a moment that is the outline.
    std::vector<Tensor*> lent;
    if (tier_ != nullptr) {
      const std::vector<Tensor*> tensors = const_cast<Optimizer*>(this)->state_of(i);
      for (std::size_t k = 0; k < away_[i].size(); ++k) {
        if (tensors[k]->defined() || !away_[i][k].defined()) continue;
        *tensors[k] = away_[i][k].like();
        lent.push_back(tensors[k]);
      }
    }
    list_state(i, list);
    for (Tensor* const tensor : lent) *tensor = Tensor();
  }
  return list;
}

void Optimizer::each_state(FunctionRef<void(std::span<const Named>)> visit) const {
  auto& self = const_cast<Optimizer&>(*this);  // where state is changes, and changes back
  std::vector<Named> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    self.complete_writes();
    const bool was_away = tier_ != nullptr && std::any_of(away_[i].begin(), away_[i].end(),
                                                          [](const auto& tensor) { return tensor.defined(); });
    self.fetch(i);
    list_state(i, list);
    const auto put_back = [&] {
      list.clear();  // the last handles
      if (was_away) self.put_away(i);
    };
    try {
      visit(list);
    } catch (...) {
      put_back();
      self.complete_writes();
      throw;
    }
    put_back();
  }
  self.complete_writes();
}

void Optimizer::set_tier(std::shared_ptr<Tier> tier) {
  tier_ = std::move(tier);
  if (tier_) away_.resize(parameters_.size());
}

// A tensor that the tier does not take is still here.
void Optimizer::put_away(std::size_t index) {
  if (!tier_) return;
  complete_writes();
  const std::vector<Tensor*> tensors = state_of(index);
  away_[index].resize(tensors.size());
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    if (!tensors[k]->defined()) continue;
    away_[index][k] = memory::offload(*tensors[k], tier_);
    *tensors[k] = Tensor();
  }
  writing_.push_back(index);
}

void Optimizer::complete_writes() {
  for (const std::size_t index : writing_) {
    for (memory::Offloaded& tensor : away_[index]) tensor.complete();
  }
  writing_.clear();
}

void Optimizer::prefetch(std::size_t index) {
  if (!tier_) return;
  for (memory::Offloaded& tensor : away_[index]) {
    if (tensor.defined()) tensor.prefetch();
  }
}

void Optimizer::fetch(std::size_t index) {
  if (!tier_) return;
  const std::vector<Tensor*> tensors = state_of(index);
  for (std::size_t k = 0; k < away_[index].size(); ++k) {
    if (away_[index][k].defined()) *tensors[k] = away_[index][k].fetch();
  }
}

void Optimizer::fetch_state() {
  for (std::size_t i = 0; i < away_.size(); ++i) fetch(i);
  writing_.clear();
}

void Optimizer::put_state_away() {
  for (std::size_t i = 0; i < away_.size(); ++i) put_away(i);
  complete_writes();
}

Tensor make_state(const Tensor& parameter) {
  const PathScope path(parameter.storage() ? parameter.storage()->path() : PathId{0});
  const DType dtype = parameter.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return zeros(parameter.shape(), dtype, parameter.device(), Category::optimizer);
}

}  // namespace thimble::optim
