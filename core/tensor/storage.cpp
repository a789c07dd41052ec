#include <thimble/core/tensor/storage.h>

#include <utility>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble::memory {

Storage::Storage(std::shared_ptr<Resource> resource, std::size_t bytes, Category category)
    : resource_(std::move(resource)),
      bytes_(bytes),
      path_(context().path),
      device_(resource_->device()),
      base_category_(category) {
  take_block();
}

Storage::~Storage() {
  if (store_) store_->forget(*this);
  if (block_ != nullptr) give_block_back();
}

void Storage::take_block() {
  Request request;
  request.bytes = bytes_;
  request.category = category();
  request.path = path_;
  block_ = resource_->allocate(request);
}

void Storage::give_block_back() noexcept { resource_->deallocate(std::exchange(block_, nullptr), nullptr); }

void Storage::set_store(std::shared_ptr<ParameterStore> store, std::uint32_t index) noexcept {
  store_ = std::move(store);
  index_in_store_ = index;
}

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
  if (block_ != nullptr && block_->category != category()) resource_->relabel(block_, category());
}

}  // namespace thimble::memory
