#include <thimble/dist/shard_store.h>

#include <thimble/core/kernels/copy.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/context.h>

namespace thimble::dist {
namespace {

/// Inside a launch.
void copy(const void* from, void* to, std::int64_t elements, DType dtype, memory::Device device) {
  const Shape shape{elements}, stride{1};
  kernels::copy_kernels(device).copy({shape, from, dtype, stride, to, dtype, stride});
}

}  // namespace

ShardStore::ShardStore(Communicator& ranks, const memory::UnitOptions& options) : UnitStore(options), ranks_(ranks) {}

Range ShardStore::range(const memory::Storage& storage, int rank) const {
  const std::uint32_t parameter = storage.index_in_store();
  return shard_range(parts_[parameter].elements, ranks_.size(), rank, parameter);
}

void ShardStore::add(std::uint32_t parameter, const Tensor& tensor) {
  const Range own = shard_range(tensor.elements(), ranks_.size(), ranks_.rank(), parameter);
  const PathScope path(tensor.storage()->path());
  parts_.resize(parameter + 1);
  parts_[parameter] = {Tensor::empty({own.size()}, tensor.dtype(), tensor.device(), memory::Category::parameter),
                       tensor.elements(), Transit()};
}

void ShardStore::begin_write(std::uint32_t parameter, const memory::Storage& storage, const std::byte* at) {
  const Tensor& shard = parts_[parameter].shard;
  if (shard.elements() == 0) return;
  const Range own = shard_range(parts_[parameter].elements, ranks_.size(), ranks_.rank(), parameter);
  const auto size = static_cast<std::int64_t>(size_of(shard.dtype()));
  launch(storage.device(), [&](const Addresses& address) {
    copy(at + own.begin * size, address(shard), own.size(), shard.dtype(), storage.device());
  });
  shard.storage()->bump_version();
}

void ShardStore::begin_read(std::uint32_t parameter, const memory::Storage& storage, std::byte* at) {
  Part& part = parts_[parameter];
  const auto size = static_cast<std::int64_t>(size_of(part.shard.dtype()));
  const auto range_of = [&](int rank) { return shard_range(part.elements, ranks_.size(), rank, parameter); };
  const Range own = range_of(ranks_.rank());
  if (own.size() > 0) {
    launch(storage.device(), [&](const Addresses& address) {
      copy(address(part.shard), at + own.begin * size, own.size(), part.shard.dtype(), storage.device());
    });
  }
  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == ranks_.rank()) continue;
    const Range theirs = range_of(r);
    part.transit.send(r, part.shard);
    part.transit.receive(r, storage.device().is_dry ? nullptr : at + theirs.begin * size,
                         static_cast<std::size_t>(theirs.size() * size));
  }
  part.transit.begin(ranks_);
}

void ShardStore::end_read(std::uint32_t parameter) { parts_[parameter].transit.wait(); }

void ShardStore::drop(std::uint32_t parameter) noexcept {
  if (parameter < parts_.size()) parts_[parameter] = {};
}

}  // namespace thimble::dist
