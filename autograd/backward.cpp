// Walking the tape backward: gradients flow, everything consumed is freed at once. Segments are run again by rerun.cpp.

#include <algorithm>
#include <string>

#include <thimble/autograd/backward_scope.h>
#include <thimble/autograd/clock.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/elementwise/binary.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble {
namespace backward_detail {

// a + b in a's buffer, or in b's, or in a new one.
Tensor add(Tensor a, Tensor b) {
  const Tensor out = is_reusable(a) ? a : reused_or_new(b);
  elementwise_detail::run("add", kernels::elementwise_cpu_table[ops::builtin_index<ops::Add>].forward,
                          ops::builtin_index<ops::Add>, -1, &out, a.shape(), {&a, &b}, out);
  return out;
}

}  // namespace backward_detail

void Tape::backward(const Tensor& loss, Tensor seed, const LeafHook* on_gradient) {
  check_loss(loss);
  if (!seed.defined() && loss.elements() != 1) {
    throw ShapeError("backward: " + describe(loss) + " is not a scalar, so the gradient it starts from must be given");
  }
  if (seed.defined() && seed.shape() != loss.shape()) {
    throw ShapeError("backward: seed " + describe(seed) + " for loss " + describe(loss));
  }
  if (loss.leaf()) {  // its own gradient
    if (!seed.defined()) seed = full(loss.shape(), 1, loss.dtype(), loss.device());
    accumulate_leaf(loss.leaf(), std::move(seed));
    if (on_gradient) (*on_gradient)(loss.leaf());
    return clear();
  }
  if (plan_ && nodes_.size() != plan_->types.size()) {
    const std::string text = "backward: the tape has " + std::to_string(nodes_.size()) +
                             " nodes, the plan it follows " + std::to_string(plan_->types.size());
    clear();
    throw PlanError(text);
  }
  const tape_detail::BackwardScope scope(false);
  try {
    if (!seed.defined()) seed = full(loss.shape(), 1, loss.dtype(), loss.device());
    Value& last = values_[loss.tape_ref().value];
    last.grad_slot = take_slot(std::move(seed));
    std::vector<std::pair<std::uint32_t, std::uint32_t>> due;  // the leaves that are waiting, the next at the back
    if (on_gradient) due = first_readers();
    store_before(static_cast<std::uint32_t>(nodes_.size()));
    for (auto i = static_cast<std::uint32_t>(nodes_.size()); i-- > 0;) {
      position_ = i;
      prefetch_before(i);
      context().path = nodes_[i].path;
      run_node(i);
      pass(i);
      for (; !due.empty() && due.back().first == i; due.pop_back()) {
        forget(due.back().second, nodes_[i].segment);
        (*on_gradient)(leaves_[due.back().second]);
      }
    }
  } catch (...) {
    clear();
    throw;
  }
  clear();
}

// (first node that has it as an operand, leaf), the last such node at the back.
std::vector<std::pair<std::uint32_t, std::uint32_t>> Tape::first_readers() const {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> list;
  list.reserve(leaves_.size());
  std::vector<std::uint8_t> is_met(leaves_.size(), 0);
  for (std::uint32_t n = 0; n < nodes_.size(); ++n) {
    for (std::uint32_t i = 0; i < nodes_[n].inputs; ++i) {
      const std::uint32_t value = inputs_[nodes_[n].first_input + i];
      if (value == none || values_[value].leaf < 0) continue;
      const auto leaf = static_cast<std::uint32_t>(values_[value].leaf);
      if (is_met[leaf] != 0) continue;
      is_met[leaf] = 1;
      list.emplace_back(n, leaf);
    }
  }
  return list;
}

// The closed segments around keep a leaf that no node further on reads no longer.
void Tape::forget(std::uint32_t leaf, std::int32_t inside_of) noexcept {
  for (std::int32_t s = inside_of; s != none_segment; s = segment(s).parent) {
    std::vector<Source>& sources = segment(s).sources;
    const auto of_leaf = [&](const Source& source) {
      return values_[source.value].leaf == static_cast<std::int32_t>(leaf);
    };
    for (const Source& source : sources) {
      if (of_leaf(source)) release(source.value);
    }
    sources.erase(std::remove_if(sources.begin(), sources.end(), of_leaf), sources.end());
  }
}

void Tape::run_node(std::uint32_t index) {
  Node& node = nodes_[index];
  Value& output = values_[node.output];
  if (output.grad_slot < 0) return release_kept(node);
  if (!node.needs.any()) {
    free_slot(output.grad_slot);
    return release_kept(node);
  }
  if (node.segment != none_segment) make_operands_of(index);
  Tensor dy = free_slot(values_[node.output].grad_slot);

  std::array<Tensor, max_saved_tensors> kept;
  const auto saved = static_cast<std::size_t>(node.type->saved_tensors);
  for (std::size_t k = 0; k < saved; ++k) {
    const SavedEdge& edge = saved_[node.first_saved + k];
    if (edge.value == none) continue;
    check_version(node, edge.value);
    kept[k] = bring_back(edge.value);
  }
  release_kept(node);  // from here on the operator holds the last reference
  const double started = times_ ? tape_detail::now() : 0;
  Gradients gradients = node.type->backward(node.record, std::span(kept).first(saved), std::move(dy), node.needs);
  if (times_) times_->backward[index] = tape_detail::now() - started;
  for (int i = 0; i < node.inputs; ++i) {
    if (!node.needs[i]) continue;
    if (i >= gradients.size() || !gradients[i].defined()) {
      throw AutogradError(std::string(node.type->name) + ": backward gave no gradient for operand " +
                          std::to_string(i));
    }
    accumulate(node, i, inputs_[node.first_input + static_cast<std::uint32_t>(i)],
               std::exchange(gradients[i], Tensor()));
  }
}

void Tape::release_kept(Node& node) noexcept {
  for (int k = 0; k < node.type->saved_tensors; ++k) {
    SavedEdge& edge = saved_[node.first_saved + static_cast<std::uint32_t>(k)];
    if (edge.is_held) release(edge.value);
    edge = {};
  }
}

void Tape::check_version(const Node& node, std::uint32_t value) const {
  const std::uint32_t noted = values_[value].version, now = version_of(value);
  if (now == noted) return;
  const std::string path(path_name(node.path));
  throw AutogradError(std::string(node.type->name) + (path.empty() ? "" : " in " + path) + ": " +
                      (values_[value].store < 0 ? describe(held(value)) : "a stored tensor") +
                      ", kept for backward, was overwritten (version " + std::to_string(noted) + " was kept, now " +
                      std::to_string(now) + ")");
}

void Tape::accumulate(const Node& node, int operand, std::uint32_t value, Tensor gradient) {
  Value& v = values_[value];
  if (gradient.elements() != v.elements) {
    throw ShapeError(std::string(node.type->name) + ": backward gave " + describe(gradient) + " for operand " +
                     std::to_string(operand) + ", which has " + std::to_string(v.elements) + " elements");
  }
  if (v.leaf >= 0) {
    accumulate_leaf(leaves_[static_cast<std::size_t>(v.leaf)], std::move(gradient));
  } else if (v.grad_slot < 0) {
    v.grad_slot = take_slot(gradient.detach());
  } else {
    Tensor before = free_slot(v.grad_slot);
    v.grad_slot = take_slot(backward_detail::add(std::move(before), std::move(gradient)));
  }
}

void Tape::accumulate_leaf(const std::shared_ptr<Leaf>& leaf, Tensor gradient) {
  if (leaf->is_frozen) return;  // since it was recorded
  if (Transaction* const step = context().transaction) step->stage_gradient(leaf);
  if (!leaf->grad.defined()) {
    leaf->grad = is_reusable(gradient) ? gradient.detach() : clone(gradient, Category::gradient);
    leaf->grad.set_tape_ref({}, Origin::gradient);
    if (leaf->grad.storage()) leaf->grad.storage()->set_category(Category::gradient);
    return;
  }
  const Tensor& sum = leaf->grad;
  elementwise_detail::run("add", kernels::elementwise_cpu_table[ops::builtin_index<ops::Add>].forward,
                          ops::builtin_index<ops::Add>, -1, &sum, sum.shape(), {&sum, &gradient}, sum);
  leaf->grad.set_tape_ref({}, Origin::gradient);  // also where it was given
  if (sum.storage()) sum.storage()->bump_version();
}

}  // namespace thimble
