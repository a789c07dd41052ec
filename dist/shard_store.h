#pragma once
// Parameters that are shared out over ranks (ZeRO-3; Zhao et al. 2023, arXiv:2304.11277): of each a rank has its shard,
// and the whole comes from all ranks before use and goes after.
//
//   const auto store = std::make_shared<dist::ShardStore>(ranks);
//   const ParameterStoreScope scope(store);
//   Net net(...);                         // a parameter's other shards go as soon as it is made
//   dist::DataParallel parallel(ranks, net.trainable(), {.zero = 3});
//
// - What a rank has of a parameter is a tensor of its own, which the optimizer updates (DataParallel::parameters()).
// - A fetch is a message from each rank to each other one: all ranks use their parameters in the same order, as ranks
//   that run one program do. Whoever reads a parameter (an evaluation, a file) does so on every rank.
// - When units come and go, and how many are here, is memory/offload/unit_store.h's.

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

  /// What this rank has of a parameter of this store, flat, and its elements of the whole.
  const Tensor& shard(const Storage& storage) const { return parts_[storage.index_in_store()].shard; }
  Range range(const Storage& storage, int rank) const;
  std::size_t bytes_elsewhere() const override { return 0; }

 private:
  struct Part {
    Tensor shard;
    std::int64_t elements = 0;  // of the whole
    Transit transit;
  };

  void add(std::uint32_t parameter, const Tensor& tensor) override;
  void begin_write(std::uint32_t parameter, const Storage& storage, const std::byte* at) override;
  void end_write(std::uint32_t) override {}
  void begin_read(std::uint32_t parameter, const Storage& storage, std::byte* at) override;
  void end_read(std::uint32_t parameter) override;
  void drop(std::uint32_t parameter) noexcept override;

  Communicator& ranks_;
  std::vector<Part> parts_;
};

}  // namespace thimble::dist
