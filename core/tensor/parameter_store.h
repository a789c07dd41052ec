#pragma once
// Parameters whose bytes may be away between uses. One interface for parameters on a disk or in host memory
// (memory/offload/tier_store.h), and for parameters sharded over ranks or stored in fewer bits.
//
//   apply, backward, recomputation  fetch an operator's operands and its saved tensors
//   an optimizer                    fetches a parameter before its update
//   copies and pins                 fetch the tensors they read or write
//
// Policy
// - A parameter keeps its Storage, which loses its block and takes another: handles, leaves, tied parameters and
//   versions stay valid. A storage without a store pays for one test of a pointer.
// - Fetched bytes stay until the next fetch. Eviction and read-ahead are the store's policy
//   (memory/offload/unit_store.h).
// - In-place writes bump the version as everywhere (Storage::bump_version): a store compares it before it drops bytes.
// - Blocks are taken and freed at the same places on a dry device: a dry run predicts them.
// - Only one thread at a time uses a store.
//
// Terms
//   away   a storage without a block: it has bytes(), path() and a version, and no address

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

  /// Adds a parameter and evicts its bytes; does nothing for a parameter it holds. Throws ValueError (undefined, a
  /// window of a storage, in another store), DeviceError, FileError, OutOfMemory; the parameter is then here and in no
  /// store.
  virtual void put_away(const Tensor& parameter) = 0;
  /// Brings the storages of this store among `storages` here until the next call. Throws OutOfMemory, and FileError on
  /// a failed read or write; no value is lost, and the call can be repeated.
  virtual void fetch(std::span<memory::Storage* const> storages) = 0;
  /// Evicts all unpinned bytes, saving changes first. Throws as fetch does.
  virtual void let_go() = 0;
  /// Called when a storage of this store is destroyed.
  virtual void forget(const memory::Storage& storage) noexcept = 0;
  /// Bytes that its parameters occupy elsewhere, outside booked device memory.
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

/// Modules' new parameters go to `store` for a scope, each as soon as it is made: a model is never whole in memory.
/// Null keeps them here.
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

/// A step or an evaluation: stores used in it hold nothing here at its begin and at its end, so that every step
/// requests the same memory.
class ParameterUse {
 public:
  ParameterUse() noexcept : before_(std::exchange(context().parameter_use, this)) {}
  /// Evicts the used bytes. Bytes that cannot be written stay, and the next use throws.
  ~ParameterUse();
  ParameterUse(const ParameterUse&) = delete;
  ParameterUse& operator=(const ParameterUse&) = delete;

  /// For stores: called before every fetch. The store's first call evicts everything. Throws as let_go does.
  void add(const std::shared_ptr<ParameterStore>& store);

 private:
  std::vector<std::shared_ptr<ParameterStore>> stores_;
  ParameterUse* before_;
};

}  // namespace thimble
