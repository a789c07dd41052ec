#include <thimble/core/tensor/parameter_store.h>

#include <algorithm>

#include <thimble/core/error.h>

namespace thimble {
namespace parameter_store_detail {

void fetch(std::span<memory::Storage* const> storages) {
  std::vector<ParameterStore*> asked;
  for (memory::Storage* const storage : storages) {
    ParameterStore* const store = storage != nullptr ? storage->store().get() : nullptr;
    if (store == nullptr || std::find(asked.begin(), asked.end(), store) != asked.end()) continue;
    store->fetch(storages);
    asked.push_back(store);
  }
}

void fetch(std::span<const Tensor> tensors) {
  std::vector<memory::Storage*> storages;
  for (const Tensor& t : tensors) {
    if (t.storage()) storages.push_back(t.storage().get());
  }
  fetch(storages);
}

}  // namespace parameter_store_detail

ParameterUse::~ParameterUse() {
  context().parameter_use = before_;
  for (const std::shared_ptr<ParameterStore>& store : stores_) {
    try {
      store->let_go();
    } catch (const Error&) {
    }
  }
}

void ParameterUse::add(const std::shared_ptr<ParameterStore>& store) {
  if (std::find(stores_.begin(), stores_.end(), store) != stores_.end()) return;
  stores_.push_back(store);
  store->let_go();
}

}  // namespace thimble
