#include <thimble/autograd/graph.h>

#include <unordered_map>
#include <utility>

#include <thimble/autograd/engine/observer.h>
#include <thimble/autograd/engine/recorded.h>
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

namespace {

const tape_detail::Observer& observer_of(const tape_detail::Recorded& recorded) {
  if (!recorded.observer) throw AutogradError("graph: the tape was not observed, so its tensors may be gone");
  return *recorded.observer;
}

}  // namespace

TapeGraph TapeGraph::of(const Tape& tape) {
  const tape_detail::Recorded& recorded = *tape.recorded_;
  const tape_detail::Observer& observer = observer_of(recorded);
  const std::vector<std::uint32_t> program_until = observer.program_until();
  TapeGraph graph;
  std::unordered_map<const thimble::memory::Storage*, std::uint32_t> known;
  for (std::size_t i = 0; i < recorded.values.size(); ++i) {
    const Tensor& t = observer.tensors()[i];
    Value value;
    value.shape = t.shape();
    value.dtype = t.dtype();
    value.producer = recorded.values[i].producer;
    value.is_leaf = recorded.values[i].leaf >= 0;
    value.program_until = program_until[i];
    if (const thimble::memory::Storage* const storage = t.storage().get()) {
      const auto [at, is_new] = known.try_emplace(storage, static_cast<std::uint32_t>(graph.storages.size()));
      if (is_new) graph.storages.push_back({storage->bytes(), storage->category()});
      value.storage = at->second;
    }
    graph.values.push_back(value);
  }
  for (const tape_detail::Node& n : recorded.nodes) {
    Node node;
    node.type = n.type;
    node.record = n.record;
    node.path = n.path;
    node.output = n.output;
    node.needs = n.needs;
    for (const std::uint32_t value : recorded.inputs_of(n)) node.inputs.push_back(value);
    const auto saved = recorded.saved_of(n);
    for (std::size_t k = 0; k < saved.size(); ++k) {
      if (saved[k].value == none) continue;
      node.saved.push_back(saved[k].value);
      node.places.push_back(static_cast<std::int32_t>(k));
    }
    node.multiply_adds = observer.work()[graph.nodes.size()];
    graph.nodes.push_back(std::move(node));
  }
  return graph;
}

void TapeGraph::append_operators(const Tape& tape, std::vector<const OpType*>& all) {
  for (const tape_detail::Node& n : tape.recorded_->nodes) all.push_back(n.type);
}

Tensor TapeGraph::tensor(const Tape& tape, std::uint32_t value) {
  return observer_of(*tape.recorded_).tensors().at(value);
}

TapeGraph join(std::vector<TapeGraph> graphs) {
  if (graphs.size() == 1) return std::move(graphs.front());
  TapeGraph all;
  const auto moved = [](std::uint32_t index, std::size_t by) {
    return index == TapeGraph::none ? index : index + static_cast<std::uint32_t>(by);
  };
  for (TapeGraph& graph : graphs) {
    const std::size_t nodes = all.nodes.size(), values = all.values.size(), storages = all.storages.size();
    for (TapeGraph::Value& value : graph.values) {
      value.storage = moved(value.storage, storages);
      value.program_until = moved(value.program_until, nodes);
      if (value.producer >= 0) value.producer += static_cast<std::int32_t>(nodes);
      all.values.push_back(value);
    }
    for (TapeGraph::Node& node : graph.nodes) {
      for (std::uint32_t& value : node.inputs) value = moved(value, values);
      for (std::uint32_t& value : node.saved) value = moved(value, values);
      node.output = moved(node.output, values);
      all.nodes.push_back(std::move(node));
    }
    all.storages.insert(all.storages.end(), graph.storages.begin(), graph.storages.end());
    all.ends.push_back(static_cast<std::uint32_t>(all.nodes.size()));
  }
  return all;
}

}  // namespace thimble
