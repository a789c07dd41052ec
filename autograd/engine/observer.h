#pragma once
// Facts for planners beyond the tape's tables (Tape::observe, TapeGraph): every tensor, how long the program holds it,
// and the work of every node.
//
// Invariant: tensors() has one entry per value and work() one per node. Every tensor is held to the end of the
// recording, so an observed tape belongs on a dry device.
//
// The program has released a storage when the observer and the tape have all handles on it. In y = exp(relu(x)) the
// program holds relu's result while exp runs, and no longer before the next node starts: exp is the last node at which
// it does.

#include <cstdint>
#include <unordered_set>
#include <vector>

#include <thimble/autograd/engine/recorded.h>

namespace thimble::tape_detail {

class Observer {
 public:
  /// `gradient_bytes` may be null.
  Observer(const Recorded& recorded, std::vector<std::size_t>* gradient_bytes)
      : recorded_(recorded), gradient_bytes_(gradient_bytes) {}

  void clear() noexcept;
  void add_value(const Tensor& t);
  void add_node(double multiply_adds) { work_.push_back(multiply_adds); }
  /// Called before a node runs: notes the values that the program has released.
  void note_program();
  /// Called before a node's backward: notes the bytes of all gradients.
  void note_gradients(std::uint32_t node);

  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
  const std::vector<double>& work() const noexcept { return work_; }
  /// TapeGraph::Value::program_until of each value, if the recording ended now.
  std::vector<std::uint32_t> program_until() const;

 private:
  std::vector<std::uint32_t> left_by_program() const;

  const Recorded& recorded_;
  std::vector<std::size_t>* gradient_bytes_;  // per node
  std::unordered_set<const memory::Storage*> of_forward_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint32_t> until_;
  std::vector<std::uint32_t> in_program_;  // values that the program may still hold, ascending
  std::vector<double> work_;
};

}  // namespace thimble::tape_detail
