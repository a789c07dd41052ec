#pragma once
// A planner's view of a recording beyond the tape's tables (Tape::observe, TapeGraph): every tensor, how long the
// program itself holds it, and the work of every node.
//
// Invariant: tensors() has one entry per value and work() one per node. Every tensor is held to the end of the
// recording, so an observed tape keeps everything and belongs on a dry device.
//
// Counting finds the program's handles: when all handles on a storage are the observer's and the tape's, the program
// has released it. For y = exp(relu(x)): while exp runs the program still holds relu's result; before the next node
// starts it does not, so exp is noted as the last node at which it did.

#include <cstdint>
#include <vector>

#include <thimble/autograd/engine/recorded.h>

namespace thimble::tape_detail {

class Observer {
 public:
  explicit Observer(const Recorded& recorded) : recorded_(recorded) {}

  void clear() noexcept;
  void add_value(const Tensor& t);
  void add_node(double multiply_adds) { work_.push_back(multiply_adds); }
  /// Notes, before the next node runs, which values the program has released.
  void note_program();

  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
  const std::vector<double>& work() const noexcept { return work_; }
  /// Per value TapeGraph::Value::program_until, at present.
  std::vector<std::uint32_t> program_until() const;

 private:
  std::vector<std::uint32_t> left_by_program() const;

  const Recorded& recorded_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint32_t> until_;
  std::vector<std::uint32_t> in_program_;  // values that the program may still hold, ascending
  std::vector<double> work_;
};

}  // namespace thimble::tape_detail
