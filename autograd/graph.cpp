#include <thimble/autograd/graph.h>

#include <unordered_map>

#include <thimble/core/error.h>

namespace thimble {

std::size_t TapeGraph::bytes_of(std::uint32_t value) const {
  const std::uint32_t storage = values.at(value).storage;
  return storage == none ? 0 : storages[storage].bytes;
}

std::vector<TapePlan::Size> TapeGraph::sizes() const {
  std::vector<TapePlan::Size> list;
  list.reserve(nodes.size());
  for (const Node& node : nodes) {
    SizeDigest operands;
    for (const std::uint32_t value : node.inputs) {
      value == none ? operands.add_absent() : operands.add(values[value].shape, values[value].dtype);
    }
    const Value& result = values[node.output];
    list.push_back({operands.value(), result.shape, result.dtype});
  }
  return list;
}

TapeGraph TapeGraph::of(const Tape& tape) {
  if (!tape.is_observing_) throw AutogradError("graph: the tape was not observed, so its tensors may be gone");
  TapeGraph graph;
  std::unordered_map<const thimble::Storage*, std::uint32_t> known;
  for (std::size_t i = 0; i < tape.values_.size(); ++i) {
    const Tensor& t = tape.observed_[i];
    Value value;
    value.shape = t.shape();
    value.dtype = t.dtype();
    value.producer = tape.values_[i].producer;
    value.is_leaf = tape.values_[i].leaf >= 0;
    value.program_until = tape.observed_until_[i];
    if (const thimble::Storage* const storage = t.storage().get()) {
      const auto [at, is_new] = known.try_emplace(storage, static_cast<std::uint32_t>(graph.storages.size()));
      if (is_new) graph.storages.push_back({storage->bytes(), storage->category()});
      value.storage = at->second;
    }
    graph.values.push_back(std::move(value));
  }
  for (const std::uint32_t v : tape.left_by_program()) {
    graph.values[v].program_until = static_cast<std::uint32_t>(tape.nodes_.size()) - 1;
  }
  for (const Tape::Node& n : tape.nodes_) {
    Node node;
    node.type = n.type;
    node.record = n.record;
    node.path = n.path;
    node.output = n.output;
    node.needs = n.needs;
    for (std::uint32_t i = 0; i < n.inputs; ++i) node.inputs.push_back(tape.inputs_[n.first_input + i]);
    for (int k = 0; k < n.type->saved_tensors; ++k) {
      const std::uint32_t value = tape.saved_[n.first_saved + static_cast<std::uint32_t>(k)].value;
      if (value == Tape::none) continue;
      node.saved.push_back(value);
      node.places.push_back(k);
    }
    node.multiply_adds = tape.observed_work_[graph.nodes.size()];
    graph.nodes.push_back(std::move(node));
  }
  return graph;
}

Tensor TapeGraph::tensor(const Tape& tape, std::uint32_t value) {
  if (!tape.is_observing_) throw AutogradError("graph: the tape was not observed, so its tensors may be gone");
  return tape.observed_.at(value);
}

}  // namespace thimble
