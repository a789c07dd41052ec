// Walking the tape backward: gradients flow, segments are run again, everything consumed is freed at once.

#include <string>

#include <thimble/autograd/tape.h>
#include <thimble/core/copy.h>
#include <thimble/core/ops/binary.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/transaction.h>

namespace thimble {
namespace backward_detail {

// No recording, and a path and a flag that are put back.
class Scope {
 public:
  explicit Scope(bool is_recomputing) : before_(context()) {
    context().tape = nullptr;
    context().is_recomputing = is_recomputing;
  }
  ~Scope() {
    context().tape = before_.tape;
    context().path = before_.path;
    context().is_recomputing = before_.is_recomputing;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Context before_;
};

// a + b in a's buffer, or in b's, or in a new one.
Tensor add(Tensor a, Tensor b) {
  const Tensor out = is_reusable(a) ? a : reused_or_new(b);
  elementwise_detail::run("add", kernels::elementwise_cpu_table[ops::builtin_index<ops::Add>].forward,
                          ops::builtin_index<ops::Add>, -1, &out, a.shape(), {&a, &b}, out);
  return out;
}

}  // namespace backward_detail

void Tape::backward(const Tensor& loss, Tensor seed) {
  if (!loss.leaf() && (!is_on_tape(loss) || !values_[loss.tape_ref().value].needs_grad)) {
    throw AutogradError(
        "backward: " + describe(loss) +
        " is not on this tape (it depends on no leaf, was recorded elsewhere, or backward already ran)");
  }
  if (!seed.defined() && loss.elements() != 1) {
    throw ShapeError("backward: " + describe(loss) + " is not a scalar, so the gradient it starts from must be given");
  }
  if (seed.defined() && seed.shape() != loss.shape()) {
    throw ShapeError("backward: seed " + describe(seed) + " for loss " + describe(loss));
  }
  if (loss.leaf()) {  // its own gradient
    if (!seed.defined()) seed = full(loss.shape(), 1, loss.dtype(), loss.device());
    accumulate_leaf(loss.leaf(), std::move(seed));
    return clear();
  }
  const backward_detail::Scope scope(false);
  try {
    if (!seed.defined()) seed = full(loss.shape(), 1, loss.dtype(), loss.device());
    Value& last = values_[loss.tape_ref().value];
    last.grad_slot = take_slot(std::move(seed));
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      Node& node = nodes_[i];
      context().path = node.path;
      run_node(node);
      if (node.segment >= 0) {
        Segment& segment = segments_[static_cast<std::size_t>(node.segment)];
        if (i == segment.first_node) drop_externals(segment);
      }
    }
  } catch (...) {
    clear();
    throw;
  }
  clear();
}

void Tape::run_node(Node& node) {
  Value& output = values_[node.output];
  if (output.grad_slot < 0) return release_kept(node);
  if (node.is_dropped) restore(segments_[static_cast<std::size_t>(node.segment)]);
  Tensor dy = free_slot(values_[node.output].grad_slot);
  if (!node.needs.any()) return release_kept(node);

  std::array<Tensor, max_saved_tensors> kept;
  const auto saved = static_cast<std::size_t>(node.type->saved_tensors);
  for (std::size_t k = 0; k < saved; ++k) {
    const SavedEdge& edge = saved_[node.first_saved + k];
    if (edge.value == none) continue;
    check_version(node, edge);
    kept[k] = slots_[static_cast<std::size_t>(values_[edge.value].slot)];
  }
  release_kept(node);  // from here on the operator holds the last reference
  Gradients gradients = node.type->backward(node.record, std::span(kept).first(saved), std::move(dy), node.needs);
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
    if (edge.value != none) release(edge.value);
    edge.value = none;
  }
}

void Tape::check_version(const Node& node, const SavedEdge& edge) const {
  const Tensor& t = slots_[static_cast<std::size_t>(values_[edge.value].slot)];
  const std::uint32_t now = t.storage() ? t.storage()->version() : 0;
  if (now == edge.version) return;
  const std::string path(path_name(node.path));
  throw AutogradError(std::string(node.type->name) + (path.empty() ? "" : " in " + path) + ": " + describe(t) +
                      ", kept for backward, was overwritten (version " + std::to_string(edge.version) +
                      " was kept, now " + std::to_string(now) + ")");
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
  if (Transaction* const step = context().transaction) step->stage_gradient(leaf);
  if (!leaf->grad.defined()) {
    leaf->grad = is_reusable(gradient) ? gradient.detach() : clone(gradient, Category::gradient);
    if (leaf->grad.storage()) leaf->grad.storage()->set_category(Category::gradient);
    return;
  }
  const Tensor& sum = leaf->grad;
  elementwise_detail::run("add", kernels::elementwise_cpu_table[ops::builtin_index<ops::Add>].forward,
                          ops::builtin_index<ops::Add>, -1, &sum, sum.shape(), {&sum, &gradient}, sum);
  if (sum.storage()) sum.storage()->bump_version();
}

// Runs a dropped segment again, in tape order, from what was kept.
void Tape::restore(Segment& segment) {
  const backward_detail::Scope scope(true);
  const std::uint32_t base = segment.first_value;
  std::vector<Tensor> made(segment.end_value - base);
  std::vector<std::uint32_t> readers(made.size());
  const auto is_inside = [&](std::uint32_t value) {
    return value != none && values_[value].producer >= static_cast<std::int32_t>(segment.first_node) &&
           values_[value].producer < static_cast<std::int32_t>(segment.end_node);
  };
  for (std::uint32_t n = segment.first_node; n < segment.end_node; ++n) {
    for (std::uint32_t i = 0; i < nodes_[n].inputs; ++i) {
      const std::uint32_t value = inputs_[nodes_[n].first_input + i];
      if (is_inside(value)) ++readers[value - base];
    }
  }
  for (const auto& [reader, edge] : segment.externals) check_version(nodes_[reader], edge);

  std::vector<Tensor> in;
  std::array<Tensor, max_saved_tensors> kept;
  for (std::uint32_t n = segment.first_node; n < segment.end_node; ++n) {
    Node& node = nodes_[n];
    in.assign(node.inputs, Tensor());
    for (std::uint32_t i = 0; i < node.inputs; ++i) {
      const std::uint32_t value = inputs_[node.first_input + i];
      if (value == none) continue;
      in[i] = is_inside(value) ? made[value - base] : slots_[static_cast<std::size_t>(values_[value].slot)];
      if (is_inside(value) && --readers[value - base] == 0) made[value - base] = Tensor();
    }
    context().path = node.path;
    const auto saved = static_cast<std::size_t>(node.type->saved_tensors);
    Tensor output = node.type->recompute(node.record, in, std::span(kept).first(saved), node.needs);
    keep(node, in, std::span(kept).first(saved), output);
    node.is_dropped = false;
    if (readers[node.output - base] > 0) made[node.output - base] = std::move(output);
  }
  drop_externals(segment);
}

void Tape::drop_externals(Segment& segment) noexcept {
  for (const auto& [reader, edge] : segment.externals) release(edge.value);
  segment.externals.clear();
}

}  // namespace thimble
