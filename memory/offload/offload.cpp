#include <thimble/memory/offload/offload.h>

#include <utility>

#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>

namespace thimble::memory {
namespace {

// A handle with the shape, dtype, device and scale, without bytes.
Tensor description(const Tensor& t) {
  Tensor like = Tensor::empty({0}, t.dtype(), t.device());
  like = like.window(t.shape(), contiguous_strides(t.shape()), 0);
  if (t.scale()) like.set_scale(*t.scale());
  return like;
}

// A tensor counts as an activation only while it is held for backward; otherwise it is a temporary.
Category own_category(const Tensor& t) {
  const Category category = t.storage()->category();
  return category == Category::activation ? Category::temporary : category;
}

}  // namespace

Offloaded& Offloaded::operator=(Offloaded&& other) noexcept {
  if (this == &other) return *this;
  drop();
  tier_ = std::move(other.tier_);
  like_ = std::exchange(other.like_, Tensor());
  here_ = std::exchange(other.here_, Tensor());
  pin_ = std::move(other.pin_);
  ticket_ = std::exchange(other.ticket_, 0);
  is_reading_ = std::exchange(other.is_reading_, false);
  is_for_backward_ = other.is_for_backward_;
  category_ = other.category_;
  path_ = other.path_;
  return *this;
}

Offloaded offload(Tensor tensor, std::shared_ptr<Tier> tier) {
  if (!tensor.defined()) throw ShapeError("offload: the tensor is undefined");
  if (!tier) throw ValueError("offload: no tier");
  if (tier->device() != tensor.device()) {
    throw DeviceError("offload: " + describe(tensor) + " to a tier of " + to_string(tier->device()));
  }
  Offloaded away;
  away.like_ = description(tensor);
  away.tier_ = std::move(tier);
  if (tensor.elements() == 0) return away;
  away.category_ = own_category(tensor);
  away.is_for_backward_ = tensor.storage()->is_held_for_backward();
  away.path_ = tensor.storage()->path();
  {
    const PathScope path(away.path_);
    away.here_ = tensor.is_contiguous() ? tensor.detach() : clone(tensor.detach(), away.category_);
  }
  if (!away.here_.device().is_dry) away.pin_ = std::make_unique<Pin>(away.here_);
  away.ticket_ = away.tier_->write(away.pin_ ? away.pin_->data() : nullptr, away.here_.bytes());
  return away;
}

void Offloaded::complete() {
  if (ticket_ == 0 || is_reading_ || !here_.defined()) return;
  try {
    tier_->wait(ticket_);
  } catch (...) {
    free_room();
    throw;
  }
  pin_ = nullptr;
  here_ = Tensor();
}

void Offloaded::prefetch() {
  complete();
  if (ticket_ == 0 || is_reading_) return;
  const PathScope path(path_);
  here_ = Tensor::empty(like_.shape(), like_.dtype(), like_.device(), category_);
  try {
    void* to = nullptr;
    if (!here_.device().is_dry) {
      auto pin = std::make_unique<WritePin>(here_);
      to = pin->data();
      pin_ = std::move(pin);
    }
    tier_->read(ticket_, to);
  } catch (...) {
    pin_ = nullptr;
    here_ = Tensor();
    throw;
  }
  if (is_for_backward_) here_.storage()->hold_for_backward();
  is_reading_ = true;
}

Tensor Offloaded::fetch() {
  if (!defined()) throw ValueError("offload: fetch of a tensor that is dropped or fetched already");
  if (!here_.defined() && ticket_ != 0) prefetch();
  if (is_reading_) {
    try {
      tier_->wait(ticket_);
    } catch (...) {
      pin_ = nullptr;
      here_ = Tensor();
      is_reading_ = false;
      throw;
    }
    if (is_for_backward_) here_.storage()->release_from_backward();
  }
  free_room();
  Tensor result =
      here_.defined() ? std::exchange(here_, Tensor()) : Tensor::empty(like_.shape(), like_.dtype(), like_.device());
  if (like_.scale()) result.set_scale(*like_.scale());
  drop();
  return result;
}

// Cancels a running transfer, then unpins the block.
void Offloaded::free_room() noexcept {
  if (ticket_ != 0) tier_->drop(ticket_);
  ticket_ = 0;
  is_reading_ = false;
  pin_ = nullptr;
}

void Offloaded::drop() noexcept {
  free_room();
  here_ = Tensor();
  like_ = Tensor();
  tier_ = nullptr;
}

}  // namespace thimble::memory
