#pragma once
// Operators and tensors as plain numbers, and which tensors to keep for backward: evaluation and simulation.
//
// Policy
// - Operators stand in the order in which forward runs them. They are cut into segments, ranges of operators; a block
//   on its own is one segment. The backward visits the segments from last to first.
// - On its visit the segment's backwards run, from the last operator to the first. Right before each of them run again,
//   in forward order, those operators that made what it reads and what was neither kept nor made again before, and, for
//   their inputs, those before them. An operator runs again once, makes all of its outputs, and these stay until their
//   last reader.
// - A tensor crosses a boundary when an operator of another segment takes it, or reads it in backward. Such a tensor is
//   never made again: it is kept wherever it is needed, whatever was selected. Put boundaries where few bytes cross.
// - Memory is given back as soon as nothing needs it: a tensor after its last reader, a gradient after the backward of
//   the operator that made its tensor. A gradient is made by the first backward that adds to it; that of a tensor which
//   no operator takes is there when the first backward begins.
//
// Terms
//   given        a tensor that is there from outside and stays (a block's input, parameters): no bytes, no cost here
//   kept         held from forward to its last reader in backward
//   re-run       the operators that run a second time; their costs are the price of a selection
//   cost         an integer in any one unit, as Time

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/memory/remat/chain.h>

namespace thimble::remat {

/// One tensor. Bytes are >= 0.
struct GraphTensor {
  std::string name;
  Bytes bytes = 0;
  Bytes gradient_bytes = 0;  ///< of its gradient; 0 when it needs none. A given tensor's gradient stays to the end
  bool is_given = false;     ///< there from outside, and there to stay: its bytes do not count
};

/// One operator: what its forward reads and makes, and what its backward reads. Numbers are indices of tensors.
struct GraphOperator {
  std::string name;
  std::vector<std::uint32_t> inputs;
  std::vector<std::uint32_t> outputs;         ///< its result and what else it saves (a mask, row statistics); >= 1
  std::vector<std::uint32_t> backward_reads;  ///< inputs, outputs or any tensors made before
  Time cost = 0;                              ///< of running the forward again
  Bytes forward_peak_bytes = 0;               ///< temporaries of the forward
  Bytes backward_peak_bytes = 0;              ///< temporaries of the backward
  bool can_rerun = true;                      ///< false: its outputs are kept wherever they are needed
  /// Its backward writes gradients of inputs over what is as large and goes with it: the gradient of its first output,
  /// then tensors that it is the last to read.
  bool is_backward_in_place = false;
};

/// A network, or one block of it.
struct Graph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOperator> operators;     ///< in order of execution
  std::vector<std::uint32_t> segment_ends;  ///< rising, the last is operators.size(); empty: one segment

  std::size_t segment_count() const noexcept { return segment_ends.empty() ? 1 : segment_ends.size(); }
};

/// Throws ValueError, naming operator or tensor and value, when a number is negative or totals pass largest_total, an
/// index is out of range, a tensor is made twice, is used before it is made, or is neither made nor given, an
/// operator has no outputs, or segment_ends is not as Graph says.
void validate(const Graph& graph);

/// A set of tensors to keep, closed: what the re-runs need from elsewhere is in it, and what nothing needs is not.
struct Selection {
  std::vector<std::uint32_t> kept;   ///< tensors, rising; given ones are not listed
  std::vector<std::uint32_t> rerun;  ///< operators, rising
  Bytes kept_bytes = 0;
  Time cost = 0;  ///< sum over `rerun`

  friend bool operator==(const Selection&, const Selection&) = default;
};

/// The selection that follows from wanting to keep some tensors (a flag per tensor): what some backward reads is kept
/// when wanted and made again when not. Wanted tensors that nothing needs are left out; what is needed and cannot be
/// made again is kept. Wanting every tensor gives the selection of cost 0. The graph must be valid. Throws ValueError
/// when `wanted` has not one flag per tensor.
Selection close_selection(const Graph& graph, const std::vector<bool>& wanted);

/// For each tensor: whether it may be made again, because its maker can run again and it crosses no boundary. False for
/// given tensors. The graph must be valid.
std::vector<bool> remakeable(const Graph& graph);

/// What running a step with a selection needs, simulated operator by operator. Given tensors do not count.
struct GraphCost {
  Time cost = 0;                          ///< of the re-runs
  Bytes peak_bytes = 0;                   ///< largest number of bytes alive at once
  Bytes forward_peak_bytes = 0;           ///< the same of the forward alone
  std::vector<Bytes> segment_peak_bytes;  ///< of the visit of each segment in backward, re-runs included
  std::vector<Bytes> rerun_peak_bytes;    ///< of those re-runs alone; 0 where nothing runs again
};

/// Runs forward, re-runs and backwards on the numbers. Throws PlanError, naming operator and tensor, when something
/// that is read is not there: a selection that close_selection() did not make.
GraphCost simulate(const Graph& graph, const Selection& selection);

}  // namespace thimble::remat
