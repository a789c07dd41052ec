#pragma once
// Parameters whose bytes may be away between uses: on a disk or in host memory (memory/offload/tier_store.h), sharded
// over ranks, or stored in fewer bits.
//
//   apply, backward, recomputation  fetch an operator's operands and its saved tensors
//   an optimizer                    fetches a parameter before its update
//   copies and pins                 fetch the tensors they read or write
//
// Policy
// - A parameter keeps its Storage, which gives its block back and takes another: handles, leaves, tied parameters and
//   versions stay valid. A storage without a store costs one test of a pointer.
// - Fetched bytes stay until the next fetch. Eviction and read-ahead are the store's policy
//   (memory/offload/unit_store.h).
// - In-place writes bump the version as usual (Storage::bump_version); a store compares versions before it drops bytes.
// - Blocks are taken and freed at the same points on a dry device, so a dry run predicts them.
// - Only one thread at a time uses a store.
//
// Terms
//   away   without a block: the storage has bytes(), path() and a version, but no address

#include <concepts>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// Adds a parameter and evicts its bytes; does nothing for a parameter that it has. Throws ValueError (undefined, a
  /// window of a storage, in another store), DeviceError, FileError, OutOfMemory; the parameter is then here and in no
  /// store.
  virtual void put_away(const Tensor& parameter) = 0;
  /// Brings this store's storages among `storages` here until the next call. Throws OutOfMemory, and FileError on a
  /// failed read or write; no value is lost, and the call can be repeated.
  virtual void fetch(std::span<memory::Storage* const> storages) = 0;
  /// Evicts all unpinned bytes, saving changes first. Throws as fetch does.
  virtual void let_go() = 0;
  /// Called when a storage of this store is destroyed.
  virtual void forget(const memory::Storage& storage) noexcept = 0;
  /// Bytes of its parameters outside booked device memory.
  virtual std::size_t bytes_elsewhere() const = 0;
};

namespace parameter_store_detail {
inline bool is_stored(const Tensor& t) noexcept { return t.storage() && t.storage()->store(); }
void fetch(std::span<memory::Storage* const> storages);
void fetch(std::span<const Tensor> tensors);
}  // namespace parameter_store_detail

/// Fetches these tensors together until the next fetch; no effect on tensors without a store. Throws as
/// ParameterStore::fetch does.
template <std::derived_from<Tensor>... T>
void fetch_parameters(const T&... tensors) {
  using parameter_store_detail::is_stored;
  if (!(is_stored(tensors) || ...)) return;
  memory::Storage* const list[] = {tensors.storage().get()...};
  parameter_store_detail::fetch(std::span<memory::Storage* const>(list));
}
inline void fetch_parameters(std::span<const Tensor> tensors) {
  for (const Tensor& t : tensors) {
    if (parameter_store_detail::is_stored(t)) return parameter_store_detail::fetch(tensors);
  }
}

/// For a scope, puts modules' new parameters into `store` as soon as they are made, so that a model is never whole in
/// memory. Null keeps them here.
class ParameterStoreScope {
 public:
  explicit ParameterStoreScope(std::shared_ptr<ParameterStore> store) : before_(std::move(store)) {
    before_.swap(context().parameter_store);
  }
  ~ParameterStoreScope() { before_.swap(context().parameter_store); }
  ParameterStoreScope(const ParameterStoreScope&) = delete;
  ParameterStoreScope& operator=(const ParameterStoreScope&) = delete;

 private:
  std::shared_ptr<ParameterStore> before_;
};

/// A step or an evaluation. The stores that it uses have nothing here at its begin and end, so that every step requests
/// the same memory.
class ParameterUse {
 public:
  ParameterUse() noexcept : before_(std::exchange(context().parameter_use, this)) {}
  /// Evicts the used stores' bytes. Bytes that cannot be written stay, and the next use throws.
  ~ParameterUse();
  ParameterUse(const ParameterUse&) = delete;
  ParameterUse& operator=(const ParameterUse&) = delete;

  /// Called by a store at every fetch. Its first call evicts everything. Throws as let_go does.
  void add(const std::shared_ptr<ParameterStore>& store);

 private:
  std::vector<std::shared_ptr<ParameterStore>> stores_;
  ParameterUse* before_;
};

}  // namespace thimble
