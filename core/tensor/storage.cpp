#include <thimble/core/tensor/storage.h>

#include <utility>

#include <thimble/core/tensor/context.h>

namespace thimble {

Storage::Storage(std::shared_ptr<Resource> resource, std::size_t bytes, Category category)
    : resource_(std::move(resource)), device_(resource_->device()), base_category_(category) {
  Request request;
  request.bytes = bytes;
  request.category = category;
  request.path = context().path;
  block_ = resource_->allocate(request);
}

Storage::~Storage() { resource_->deallocate(block_, nullptr); }

void Storage::set_category(Category category) noexcept {
  base_category_ = category;
  relabel();
}

void Storage::hold_for_backward() noexcept {
  if (held_++ == 0) relabel();
}

void Storage::release_from_backward() noexcept {
  if (--held_ == 0) relabel();
}

void Storage::relabel() noexcept {
  const bool is_activation = held_ > 0 && base_category_ == Category::temporary;
  const Category now = is_activation ? Category::activation : base_category_;
  if (now != block_->category) resource_->relabel(block_, now);
}

}  // namespace thimble
