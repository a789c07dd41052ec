#pragma once
// Parameters that need not be here: their bytes are elsewhere between uses. One seam for parameters on a disk or in the
// host's memory (memory/offload/tier_store.h), and for those that are shared out over ranks or kept in fewer bits.
//
//   apply, backward, recomputation  ask for an operator's operands, and for what it saved
//   an optimizer                    asks for a parameter before its update
//   copies and pins                 ask for what they read or write
//
// Policy
// - A parameter keeps its Storage, which loses its block and takes another: handles, leaves, tied parameters and
//   versions stay as they are. A storage without a store pays for one test of a pointer.
// - The bytes that were asked for are here until other ones are asked for. What goes then, and what is read ahead, is
//   the store's policy (memory/offload/unit_store.h).
// - Writes in place bump the version as everywhere (Storage::bump_version): a store looks at it before it drops bytes.
// - Blocks are taken and given back at the same places on a dry device: a dry run predicts them.
// - A store is used by one thread at a time.
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

  /// Takes a parameter in and lets go of its bytes. Does nothing for one that it has. Throws ValueError (undefined,
  /// part of a storage, in another store), DeviceError, FileError, OutOfMemory; the parameter is then here and in no
  /// store.
  virtual void put_away(const Tensor& parameter) = 0;
  /// Has those of `storages` that are in this store here until the next call. Throws OutOfMemory, and FileError where
  /// they cannot be read or others cannot be written; no value is lost, and the call can be repeated.
  virtual void fetch(std::span<Storage* const> storages) = 0;
  /// Lets go of all bytes that nobody has pinned; what has changed is kept first. Throws as fetch does.
  virtual void let_go() = 0;
  /// A storage of this store ends.
  virtual void forget(const Storage& storage) noexcept = 0;
  /// What its parameters occupy elsewhere, in no device's memory that is booked.
  virtual std::size_t bytes_elsewhere() const = 0;
};

namespace parameter_store_detail {
inline bool is_stored(const Tensor& t) noexcept { return t.storage() && t.storage()->store(); }
void fetch(std::span<Storage* const> storages);
void fetch(std::span<const Tensor> tensors);
}  // namespace parameter_store_detail

/// Has these tensors' bytes here, all at once, until others are asked for; without effect on tensors that always are.
/// Throws as ParameterStore::fetch does.
template <std::derived_from<Tensor>... T>
void fetch_parameters(const T&... tensors) {
  using parameter_store_detail::is_stored;
  if (!(is_stored(tensors) || ...)) return;
  Storage* const list[] = {tensors.storage().get()...};
  parameter_store_detail::fetch(std::span<Storage* const>(list));
}
inline void fetch_parameters(std::span<const Tensor> tensors) {
  for (const Tensor& t : tensors) {
    if (parameter_store_detail::is_stored(t)) return parameter_store_detail::fetch(tensors);
  }
}

/// Parameters that modules make go to `store` for a scope, each as soon as it is made: a model is never here as a
/// whole. Null: they stay.
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

/// A step, or an evaluation: nothing of a store that is used in it is here at its begin and at its end, so that steps
/// ask for the same memory whatever ran before.
class ParameterUse {
 public:
  ParameterUse() noexcept : before_(std::exchange(context().parameter_use, this)) {}
  /// Releases the bytes that were used. Bytes that cannot be written stay, and the next use throws.
  ~ParameterUse();
  ParameterUse(const ParameterUse&) = delete;
  ParameterUse& operator=(const ParameterUse&) = delete;

  /// For stores: called before every fetch. The first time the store lets go of what is here. Throws as let_go does.
  void add(const std::shared_ptr<ParameterStore>& store);

 private:
  std::vector<std::shared_ptr<ParameterStore>> stores_;
  ParameterUse* before_;
};

}  // namespace thimble
