#include <thimble/autograd/engine/backward.h>

#include <algorithm>
#include <array>
#include <string>

#include <thimble/autograd/engine/observer.h>
#include <thimble/autograd/engine/recorded.h>
#include <thimble/autograd/engine/spills.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble::tape_detail {

// a + b in a's buffer, or in b's, or in a new one.
Tensor add_gradients(Tensor a, Tensor b) {
  const Tensor out = is_reusable(a) ? a : reused_or_new(b);
  elementwise_detail::run("add", ops::Add(), {&a, &b}, out);
  return out;
}

// Whether a gradient is a window that would keep a larger storage alive for long.
bool is_long_window(const Tensor& gradient, std::uint32_t node, const Value& of) {
  const bool is_window = gradient.storage() && gradient.storage()->bytes() > gradient.bytes();
  return is_window && of.producer >= 0 && node > static_cast<std::uint32_t>(of.producer) + ops::Concat::longest_wait;
}

void Backward::run(const Tensor& loss, Tensor seed, const LeafHook* on_gradient) {
  const BackwardScope scope(false);
  if (!seed.defined()) seed = full(loss.shape(), 1, loss.dtype(), loss.device());
  recorded_.set_gradient(loss.tape_ref().value, std::move(seed));
  recorded_.leaf_uses.clear();
  recorded_.leaves_by_first_use.clear();
  const auto has_gradient = [](const std::shared_ptr<tape::Leaf>& leaf) { return leaf->grad.defined(); };
  if (on_gradient || std::any_of(recorded_.leaves.begin(), recorded_.leaves.end(), has_gradient)) find_leaf_uses();
  std::vector<std::uint32_t>& due = recorded_.leaves_by_first_use;  // incomplete leaves, the next one at the back
  Spills* const spills = recorded_.spills.get();
  const auto count = static_cast<std::uint32_t>(recorded_.nodes.size());
  if (spills) spills->before(count);
  for (std::uint32_t i = count; i-- > 0;) {
    if (spills) spills->prefetch_before(i);
    context().path = recorded_.nodes[i].path;
    if (recorded_.observer) recorded_.observer->note_gradients(i);
    run_node(i);
    recompute_.pass(i);
    for (; !due.empty() && recorded_.leaf_uses[due.back()].first_node == i; due.pop_back()) {
      complete_leaf(due.back(), i, on_gradient);
    }
  }
}

void Backward::complete_leaf(std::uint32_t leaf, std::uint32_t node, const LeafHook* on_gradient) {
  const LeafUse& use = recorded_.leaf_uses[leaf];
  if (recorded_.values[use.value].grad_slot >= 0) {
    accumulate_leaf(recorded_.leaves[leaf], recorded_.take_gradient(use.value));
  }
  if (on_gradient == nullptr) return;
  recompute_.release_leaf(leaf, node);
  (*on_gradient)(recorded_.leaves[leaf]);
}

void Backward::find_leaf_uses() {
  recorded_.leaf_uses.resize(recorded_.leaves.size());
  for (std::uint32_t n = 0; n < recorded_.nodes.size(); ++n) {
    for (const std::uint32_t value : recorded_.inputs_of(recorded_.nodes[n])) {
      if (value == none || recorded_.values[value].leaf < 0) continue;
      const auto leaf = static_cast<std::uint32_t>(recorded_.values[value].leaf);
      LeafUse& use = recorded_.leaf_uses[leaf];
      if (use.count++ > 0) continue;
      use.first_node = n;
      use.value = value;
      use.had_gradient = recorded_.leaves[leaf]->grad.defined();
      recorded_.leaves_by_first_use.push_back(leaf);
    }
  }
}

bool Backward::sums_apart(std::uint32_t leaf) const {
  if (recorded_.leaf_uses.empty()) return false;
  const LeafUse& use = recorded_.leaf_uses[leaf];
  return use.had_gradient && use.count > 1;
}

void Backward::run_node(std::uint32_t index) {
  const Node& node = recorded_.nodes[index];
  if (recorded_.values[node.output].grad_slot < 0) return release_saved(node);
  if (!node.needs.any()) {
    recorded_.take_gradient(node.output);
    return release_saved(node);
  }
  if (node.segment != none_segment) recompute_.provide(index);
  Tensor dy = recorded_.take_gradient(node.output);

  std::array<Tensor, max_saved_tensors> kept;
  const std::span<const SavedEdge> edges = recorded_.saved_of(node);
  for (std::size_t k = 0; k < edges.size(); ++k) {
    if (edges[k].value == none) continue;
    recorded_.require_unwritten(node, edges[k].value);
    kept[k] = recorded_.read(edges[k].value);
  }
  fetch_parameters(std::span<const Tensor>(kept).first(edges.size()));
  release_saved(node);  // from here on the operator holds the last reference
  const double started = recorded_.times ? now() : 0;
  ops::Gradients gradients =
      node.type->backward(node.record, std::span(kept).first(edges.size()), std::move(dy), node.needs);
  if (recorded_.times) recorded_.times->backward[index] = now() - started;
  if (gradients.size() > node.inputs) {
    throw AutogradError(std::string(node.type->name) + ": backward gave " + std::to_string(gradients.size()) +
                        " gradients for " + std::to_string(node.inputs) + " operands");
  }
  for (int i = 0; i < node.inputs; ++i) {
    if (!node.needs[i]) continue;
    if (i >= gradients.size() || !gradients[i].defined()) {
      throw AutogradError(std::string(node.type->name) + ": backward gave no gradient for operand " +
                          std::to_string(i));
    }
    accumulate(node, i, std::exchange(gradients[i], Tensor()));
  }
}

void Backward::release_saved(const Node& node) noexcept {
  for (SavedEdge& edge : recorded_.saved_of(node)) {
    if (edge.is_held) recorded_.release(edge.value);
    edge = {};
  }
}

void Backward::accumulate(const Node& node, int operand, Tensor gradient) {
  const std::uint32_t value = recorded_.inputs_of(node)[static_cast<std::size_t>(operand)];
  const Value& v = recorded_.values[value];
  if (gradient.elements() != v.elements) {
    throw ShapeError(std::string(node.type->name) + ": backward gave " + describe(gradient) + " for operand " +
                     std::to_string(operand) + ", which has " + std::to_string(v.elements) + " elements");
  }
  if (form_of(gradient) != v.form) {
    throw ShapeError(std::string(node.type->name) + ": backward gave " + describe(gradient) + " for operand " +
                     std::to_string(operand) + ", which has another shape or dtype; expected the operand's");
  }
  if (v.leaf >= 0 && !sums_apart(static_cast<std::uint32_t>(v.leaf))) {
    return accumulate_leaf(recorded_.leaves[static_cast<std::size_t>(v.leaf)], std::move(gradient));
  }
  if (v.grad_slot < 0) {
    const auto index = static_cast<std::uint32_t>(&node - recorded_.nodes.data());
    return recorded_.set_gradient(value, is_long_window(gradient, index, v) ? clone(gradient) : gradient.detach());
  }
  Tensor before = recorded_.take_gradient(value);
  recorded_.set_gradient(value, add_gradients(std::move(before), std::move(gradient)));
}

void accumulate_leaf(const std::shared_ptr<tape::Leaf>& leaf, Tensor gradient) {
  if (leaf->is_frozen) return;
  if (tape::Transaction* const step = context().transaction) step->stage_gradient(leaf);
  if (!leaf->grad.defined()) {
    leaf->grad = is_reusable(gradient) ? gradient.detach() : clone(gradient, memory::Category::gradient);
    leaf->grad.set_tape_ref({}, tape::Origin::gradient);
    if (leaf->grad.storage()) leaf->grad.storage()->set_category(memory::Category::gradient);
    return;
  }
  const Tensor& sum = leaf->grad;
  elementwise_detail::run("add", ops::Add(), {&sum, &gradient}, sum);
  leaf->grad.set_tape_ref({}, tape::Origin::gradient);  // the program may have set it
  if (sum.storage()) sum.storage()->bump_version();
}

}  // namespace thimble::tape_detail
