#pragma once
// Parameters in a tier between uses: on a disk, or in the host's pinned memory for a GPU.
//
//   const auto store = std::make_shared<memory::TierStore>(memory::make_tier(cpu, {.folder = "/var/tmp"}));
//   const ParameterStoreScope scope(store);
//   Net net(cpu);                       // each parameter is evicted as soon as it is made: the net is never whole here
//   optim::Adam adam(net.trainable(), {});
//   nn::training_step(adam, ...);       // same bits as with resident parameters
//
// Policy
// - An unchanged parameter is read and never written again: its ticket stays. An update gives the old ticket's room to
//   the new bytes, so that the tier does not grow.
// - Optimizer state and gradients have separate tiers (optim/optimizer.h, nn/step/step.h).

#include <memory>
#include <vector>

#include <thimble/memory/offload/tier.h>
#include <thimble/memory/offload/unit_store.h>

namespace thimble::memory {

class TierStore final : public UnitStore {
 public:
  /// Throws ValueError without a tier, and for a negative read_ahead.
  explicit TierStore(std::shared_ptr<Tier> tier, const UnitOptions& options = {});

  const std::shared_ptr<Tier>& tier() const noexcept { return tier_; }
  std::size_t bytes_elsewhere() const override;

 private:
  void begin_write(std::uint32_t parameter, const Storage& storage, const std::byte* at) override;
  void end_write(std::uint32_t parameter) override;
  void begin_read(std::uint32_t parameter, const Storage& storage, std::byte* at) override;
  void end_read(std::uint32_t parameter) override;
  void drop(std::uint32_t parameter) noexcept override;

  std::shared_ptr<Tier> tier_;
  std::vector<Ticket> tickets_;  // of each parameter
};

}  // namespace thimble::memory
