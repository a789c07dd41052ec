#pragma once
// Parameters sharded over ranks (ZeRO-3; Zhao et al. 2023, arXiv:2304.11277): a rank keeps its shard of each parameter,
// gathers the whole parameter before use and drops it afterwards.
//
//   const auto store = std::make_shared<dist::ShardStore>(ranks);
//   const ParameterStoreScope scope(store);
//   Net net(...);                         // a parameter's other shards are dropped as soon as it is made
//   dist::DataParallel parallel(ranks, net.trainable(), {.zero = 3});
//
// - A rank's shard of a parameter is a separate tensor, which the optimizer updates (DataParallel::parameters()).
// - A fetch sends messages between all ranks, so all ranks must use their parameters in the same order, and must all
//   take part when one is read (for an evaluation, a file).
// - memory/offload/unit_store.h decides when to fetch and drop units, and how many are resident.

#include <cstdint>
#include <memory>
#include <vector>

#include <thimble/dist/communicator.h>
#include <thimble/dist/shards.h>
#include <thimble/dist/transit.h>
#include <thimble/memory/offload/unit_store.h>

namespace thimble::dist {

class ShardStore final : public memory::UnitStore {
 public:
  /// The communicator must live as long as the parameters. Throws ValueError for a negative read_ahead.
  explicit ShardStore(Communicator& ranks, const memory::UnitOptions& options = {});

  /// This rank's flat shard of a parameter in this store; a rank's range of the parameter's elements.
  const Tensor& shard(const memory::Storage& storage) const { return parts_[storage.index_in_store()].shard; }
  Range range(const memory::Storage& storage, int rank) const;
  std::size_t bytes_elsewhere() const override { return 0; }

 private:
  struct Part {
    Tensor shard;
    std::int64_t elements = 0;  // of the whole
    Transit transit;
  };

  void add(std::uint32_t parameter, const Tensor& tensor) override;
  void begin_write(std::uint32_t parameter, const memory::Storage& storage, const std::byte* at) override;
  void end_write(std::uint32_t) override {}
  void begin_read(std::uint32_t parameter, const memory::Storage& storage, std::byte* at) override;
  void end_read(std::uint32_t parameter) override;
  void drop(std::uint32_t parameter) noexcept override;

  Communicator& ranks_;
  std::vector<Part> parts_;
};

}  // namespace thimble::dist
