#include <thimble/autograd/engine/observer.h>

#include <algorithm>
#include <unordered_map>

namespace thimble::tape_detail {

void Observer::clear() noexcept {
  tensors_.clear();
  until_.clear();
  in_program_.clear();
  work_.clear();
}

void Observer::add_value(const Tensor& t) {
  if (t.storage()) in_program_.push_back(static_cast<std::uint32_t>(tensors_.size()));
  tensors_.push_back(t.detach());
  until_.push_back(none);
}

// The values in `in_program_` whose bytes only the tape and the observer still hold.
std::vector<std::uint32_t> Observer::left_by_program() const {
  std::unordered_map<const memory::Storage*, long> holds;
  for (const std::uint32_t v : in_program_) holds[tensors_[v].storage().get()] += recorded_.is_held(v) ? 2 : 1;
  std::vector<std::uint32_t> left;
  for (const std::uint32_t v : in_program_) {
    const std::shared_ptr<memory::Storage>& storage = tensors_[v].storage();
    if (storage.use_count() == holds.at(storage.get())) left.push_back(v);
  }
  return left;
}

void Observer::note_program() {
  const std::vector<std::uint32_t> left = left_by_program();
  for (const std::uint32_t v : left) until_[v] = static_cast<std::uint32_t>(recorded_.nodes.size()) - 1;
  const auto is_left = [&](std::uint32_t v) { return std::binary_search(left.begin(), left.end(), v); };
  in_program_.erase(std::remove_if(in_program_.begin(), in_program_.end(), is_left), in_program_.end());
}

// Counts each storage once, and none that the forward made.
void Observer::note_gradients(std::uint32_t node) {
  if (gradient_bytes_ == nullptr) return;
  if (node + 1 == recorded_.nodes.size()) {  // the backward begins
    gradient_bytes_->assign(recorded_.nodes.size(), 0);
    of_forward_ = {nullptr};
    for (const Tensor& t : tensors_) of_forward_.insert(t.storage().get());
  }
  std::unordered_map<const memory::Storage*, std::size_t> gradients;
  const auto add = [&](const Tensor& gradient) {
    const memory::Storage* const storage = gradient.storage().get();
    if (!of_forward_.contains(storage)) gradients.emplace(storage, storage->bytes());
  };
  for (const Value& v : recorded_.values) {
    if (v.grad_slot >= 0) add(recorded_.gradient(v));
  }
  for (const std::shared_ptr<tape::Leaf>& leaf : recorded_.leaves) add(leaf->grad);
  for (const auto& [storage, bytes] : gradients) (*gradient_bytes_)[node] += bytes;
}

std::vector<std::uint32_t> Observer::program_until() const {
  std::vector<std::uint32_t> until = until_;
  for (const std::uint32_t v : left_by_program()) until[v] = static_cast<std::uint32_t>(recorded_.nodes.size()) - 1;
  return until;
}

}  // namespace thimble::tape_detail
