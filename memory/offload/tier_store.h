#pragma once
// Keeps parameters in a tier between uses: on a disk, or for a GPU in the host's pinned memory.
//
//   const auto store = std::make_shared<memory::TierStore>(memory::make_tier(cpu, {.folder = "/var/tmp"}));
//   const ParameterStoreScope scope(store);
//   Net net(cpu);                       // evicts each parameter as soon as it is made: the net is never whole here
//   optim::Adam adam(net.trainable(), {});
//   nn::training_step(adam, ...);       // same bits as with resident parameters
//
// Policy
// - An unchanged parameter keeps its ticket and is never written again. A changed one frees its old ticket's room
//   before it is written, so the tier does not grow.
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
