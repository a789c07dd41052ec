#include <thimble/memory/offload/tier_store.h>

#include <utility>

#include <thimble/core/error.h>

namespace thimble::memory {

TierStore::TierStore(std::shared_ptr<Tier> tier, const UnitOptions& options)
    : UnitStore(options), tier_(std::move(tier)) {
  if (!tier_) throw ValueError("parameter store: there is no tier");
}

std::size_t TierStore::bytes_elsewhere() const { return tier_->statistics().committed_bytes; }

void TierStore::begin_write(std::uint32_t parameter, const Storage& storage, const std::byte* at) {
  if (tier_->device() != storage.device()) {
    throw DeviceError("parameter store: a parameter on " + to_string(storage.device()) + " to a tier of " +
                      to_string(tier_->device()));
  }
  if (parameter == tickets_.size()) tickets_.push_back(0);
  drop(parameter);
  tickets_[parameter] = tier_->write(at, storage.bytes());
}

void TierStore::end_write(std::uint32_t parameter) {
  try {
    tier_->wait(tickets_[parameter]);
  } catch (...) {
    drop(parameter);
    throw;
  }
}

void TierStore::begin_read(std::uint32_t parameter, const Storage&, std::byte* at) {
  tier_->read(tickets_[parameter], at);
}

void TierStore::end_read(std::uint32_t parameter) { tier_->wait(tickets_[parameter]); }

void TierStore::drop(std::uint32_t parameter) noexcept {
  if (parameter >= tickets_.size() || tickets_[parameter] == 0) return;
  tier_->drop(std::exchange(tickets_[parameter], 0));
}

}  // namespace thimble::memory
