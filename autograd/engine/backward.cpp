#include <thimble/autograd/engine/backward.h>

#include <array>
#include <string>

#include <thimble/autograd/engine/backward_scope.h>
#include <thimble/autograd/engine/clock.h>
#include <thimble/autograd/engine/spills.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble::tape_detail {

// a + b in a's buffer, or in b's, or in a new one.
Tensor add_gradients(Tensor a, Tensor b) {
  const Tensor out = is_reusable(a) ? a : reused_or_new(b);
  elementwise_detail::run("add", ops::Add(), {&a, &b}, out);
  return out;
}

void Backward::run(const Tensor& loss, Tensor seed, const LeafHook* on_gradient) {
  const BackwardScope scope(false);
  if (!seed.defined()) seed = full(loss.shape(), 1, loss.dtype(), loss.device());
  recorded_.set_gradient(loss.tape_ref().value, std::move(seed));
  std::vector<FirstReader> due;  // the leaves that are waiting, the next at the back
  if (on_gradient) due = first_readers();
  Spills* const spills = recorded_.spills.get();
  const auto count = static_cast<std::uint32_t>(recorded_.nodes.size());
  if (spills) spills->before(count);
  for (std::uint32_t i = count; i-- > 0;) {
    if (spills) spills->prefetch_before(i);
    context().path = recorded_.nodes[i].path;
    run_node(i);
    recompute_.pass(i);
    for (; !due.empty() && due.back().first == i; due.pop_back()) {
      const std::uint32_t leaf = due.back().second;
      recompute_.release_leaf(leaf, i);
      (*on_gradient)(recorded_.leaves[leaf]);
    }
  }
}

// The first node that has a leaf as an operand, for each leaf; the last such node at the back.
std::vector<Backward::FirstReader> Backward::first_readers() const {
  std::vector<FirstReader> list;
  list.reserve(recorded_.leaves.size());
  std::vector<std::uint8_t> is_met(recorded_.leaves.size(), 0);
  for (std::uint32_t n = 0; n < recorded_.nodes.size(); ++n) {
    for (const std::uint32_t value : recorded_.inputs_of(recorded_.nodes[n])) {
      if (value == none || recorded_.values[value].leaf < 0) continue;
      const auto leaf = static_cast<std::uint32_t>(recorded_.values[value].leaf);
      if (is_met[leaf] != 0) continue;
      is_met[leaf] = 1;
      list.emplace_back(n, leaf);
    }
  }
  return list;
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
  Gradients gradients =
      node.type->backward(node.record, std::span(kept).first(edges.size()), std::move(dy), node.needs);
  if (recorded_.times) recorded_.times->backward[index] = now() - started;
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
  if (v.leaf >= 0) return accumulate_leaf(recorded_.leaves[static_cast<std::size_t>(v.leaf)], std::move(gradient));
  if (v.grad_slot < 0) return recorded_.set_gradient(value, gradient.detach());
  Tensor before = recorded_.take_gradient(value);
  recorded_.set_gradient(value, add_gradients(std::move(before), std::move(gradient)));
}

void accumulate_leaf(const std::shared_ptr<Leaf>& leaf, Tensor gradient) {
  if (leaf->is_frozen) return;
  if (Transaction* const step = context().transaction) step->stage_gradient(leaf);
  if (!leaf->grad.defined()) {
    leaf->grad = is_reusable(gradient) ? gradient.detach() : clone(gradient, Category::gradient);
    leaf->grad.set_tape_ref({}, Origin::gradient);
    if (leaf->grad.storage()) leaf->grad.storage()->set_category(Category::gradient);
    return;
  }
  const Tensor& sum = leaf->grad;
  elementwise_detail::run("add", ops::Add(), {&sum, &gradient}, sum);
  leaf->grad.set_tape_ref({}, Origin::gradient);  // also where it was given
  if (sum.storage()) sum.storage()->bump_version();
}

}  // namespace thimble::tape_detail
