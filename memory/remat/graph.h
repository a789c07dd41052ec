#pragma once
// Operators and tensors as plain numbers, and which tensors to keep for backward: evaluation and simulation.
//
// Policy
// - Operators stand in the order in which forward runs them. They are cut into segments, ranges of operators; a block
//   on its own is one segment. The backward visits the segments from last to first.
// - On its visit the segment's backwards run, from the last operator to the first. Right before each of them the
//   operators that made what it reads, unless that was kept or is recomputed already, are recomputed in forward order,
//   with those that their inputs need. A re-run makes all outputs of its operator. They stay until their last reader.
// - A tensor may be dropped between two uses, in forward or backward. Its maker then runs again before the next use.
// - A tensor crosses a boundary when an operator of another segment takes it, or reads it in backward. Such a tensor is
//   never recomputed: it is kept wherever it is needed, whatever was selected. Put boundaries where few bytes cross.
// - Memory is given back as soon as nothing needs it: a tensor after its last reader, a gradient after the backward of
//   the operator that made its tensor. A gradient is made by the first backward that adds to it; that of a tensor which
//   no operator takes exists when the first backward begins.
//
// Terms
//   given        a tensor that exists outside and stays (a block's input, parameters): no bytes, no cost here
//   result       a tensor that is read outside, after all operators: it stays through the forward, and its gradient
//                exists when the first backward begins, as for a tensor that no operator takes
//   kept         held from forward to its last reader in backward, or until it is dropped
//   recomputed   the operators that run again; their costs, each time, are the price of a selection
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
  bool is_given = false;     ///< exists outside and stays: its bytes do not count
  bool is_result = false;    ///< read outside, too
  /// The forward holds it at least until this operator has run, whether that reads it or not: a caller's variable.
  std::uint32_t held_until = 0;
};

/// One operator: the tensors that its forward reads and makes, and that its backward reads, as indices.
struct GraphOperator {
  std::string name;
  std::vector<std::uint32_t> inputs;
  std::vector<std::uint32_t> outputs;         ///< its result and other saved tensors (a mask, row statistics); >= 1
  std::vector<std::uint32_t> backward_reads;  ///< inputs, outputs or any tensors made before
  Time cost = 0;                              ///< of running the forward again
  Bytes forward_peak_bytes = 0;               ///< temporaries of the forward
  Bytes backward_peak_bytes = 0;              ///< temporaries of the backward
  bool can_recompute = true;                  ///< false: its outputs are kept wherever they are needed
  /// Its backward writes gradients of inputs over what is as large and goes with it: the gradient of its first output,
  /// then tensors that it is the last to read.
  bool is_backward_in_place = false;
  /// Its backward frees a tensor that nothing reads later before it makes an input's gradient of as many bytes.
  bool frees_reads_first = false;
  /// Inputs whose gradients are windows on that of its first output, whose bytes go with the last of them. None of one
  /// that has a gradient already.
  std::vector<std::uint32_t> windows = {};
  /// Temporaries of the backward that are there when it begins: beside the recomputing right before it, too.
  Bytes waiting_bytes = 0;
};

/// A network, or one block of it.
struct Graph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOperator> operators;     ///< in order of execution
  std::vector<std::uint32_t> segment_ends;  ///< rising, the last is operators.size(); empty: one segment

  std::size_t segment_count() const noexcept { return segment_ends.empty() ? 1 : segment_ends.size(); }
};

/// Throws ValueError, naming operator or tensor and value, when a number is negative or totals pass largest_total, an
/// index is out of range (held_until's, too), a tensor is made twice, is used before it is made, or is neither made nor
/// given, an operator has no outputs, or segment_ends is not as Graph says.
void validate(const Graph& graph);

/// A tensor that is given up after a step and made again before its next use. Step i is the forward of operator i,
/// step 2n - 1 - i its backward, of n operators.
struct Drop {
  std::uint32_t tensor, after;
  friend bool operator==(const Drop&, const Drop&) = default;
};

/// A set of tensors to keep, closed: it has what recomputation needs from elsewhere, and nothing that nobody needs.
struct Selection {
  std::vector<std::uint32_t> kept;        ///< tensors, rising; given ones are not listed
  std::vector<std::uint32_t> recomputed;  ///< operators, rising
  Bytes kept_bytes = 0;
  Time cost = 0;                 ///< of all re-runs
  std::vector<Drop> drops = {};  ///< by rising step

  friend bool operator==(const Selection&, const Selection&) = default;
};

/// The selection that follows from wanting to keep some tensors (a flag per tensor): what some backward reads is kept
/// when wanted and recomputed when not. Wanted tensors that nothing needs are left out; what is needed and cannot be
/// recomputed is kept. Wanting every tensor gives the selection of cost 0. The graph must be valid. Throws ValueError
/// when `wanted` has not one flag per tensor.
Selection close_selection(const Graph& graph, const std::vector<bool>& wanted, std::vector<Drop> drops = {});

/// For each tensor: whether it can be recomputed, because its maker can run again and it crosses no boundary. False for
/// given tensors. The graph must be valid.
std::vector<bool> recomputable(const Graph& graph);

/// The needs of a step with a selection, simulated operator by operator. Given tensors do not count.
struct GraphCost {
  Time cost = 0;                            ///< of recomputing
  Bytes peak_bytes = 0;                     ///< largest number of bytes alive at once
  Bytes forward_peak_bytes = 0;             ///< the same of only the forward
  std::vector<Bytes> segment_peak_bytes;    ///< of each segment's visit in backward, recomputing included
  std::vector<Bytes> recompute_peak_bytes;  ///< of only recomputing; 0 where nothing is recomputed
  std::vector<Bytes> operator_peak_bytes;   ///< of each operator's backward and the recomputing right before it

  friend bool operator==(const GraphCost&, const GraphCost&) = default;
};

/// Runs forward, recomputation and backward on the numbers. Throws PlanError, naming operator and tensor, when a tensor
/// that is read does not exist: for a selection that close_selection() did not make.
GraphCost simulate(const Graph& graph, const Selection& selection);
/// The same for a graph that is known to be valid.
GraphCost simulate_valid(const Graph& graph, const Selection& selection);

}  // namespace thimble::remat
