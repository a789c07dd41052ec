#pragma once
// Operators and tensors as plain numbers, and which tensors to keep for backward: evaluation and simulation.
//
// Policy
// - Operators are listed in forward order and divided into segments, ranges of operators; a single block is one
//   segment. The backward visits the segments from last to first.
// - A visit runs the segment's backwards from the last operator to the first. Right before each backward, the makers
//   of missing tensors that it reads run again, and the makers of their missing inputs, in forward order. A re-run
//   makes all outputs of its operator. They stay until their last reader.
// - A tensor may be dropped between two uses, in forward or backward. Its maker then runs again before the next use.
// - A tensor crosses a boundary when an operator of another segment takes it, or reads it in backward. Such a tensor is
//   never recomputed: it is kept if it is needed, whatever the selection. Put boundaries where few bytes cross.
// - Memory is freed as soon as nothing needs it: a tensor after its last reader, a gradient after the backward of the
//   operator that made its tensor. The first backward that adds to a gradient makes it; if no operator takes a tensor,
//   its gradient exists when the first backward begins.
//
// Terms
//   given        a tensor that exists outside and stays (a block's input, parameters): no bytes, no cost here
//   result       a tensor that is read outside, after all operators: it stays through the forward, and its gradient
//                exists when the first backward begins
//   kept         held from forward to its last reader in backward, or until it is dropped
//   recomputed   operators that run again; a selection costs the sum over all of their re-runs
//   cost         an integer in the unit of Time

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
  Bytes gradient_bytes = 0;  ///< 0 if it needs no gradient; a given tensor's gradient stays to the end
  bool is_given = false;     ///< exists outside and stays: its bytes do not count
  bool is_result = false;    ///< read outside, too
  /// The forward holds it at least until this operator has run, even if it does not read it: a caller's variable.
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
  bool can_recompute = true;                  ///< otherwise its outputs are kept if they are needed
  /// Its backward writes input gradients over dying buffers of equal size: the gradient of its first output, then
  /// tensors that it is the last to read.
  bool is_backward_in_place = false;
  /// Its backward frees a tensor that nothing reads later before it makes an input gradient of equal size.
  bool frees_reads_first = false;
  /// Inputs whose gradients are windows of the first output's gradient, which is freed with the last window. An input
  /// that already has a gradient gets no window.
  std::vector<std::uint32_t> windows = {};
  /// Temporaries of the backward that exist before it begins, during the recomputing right before it, too.
  Bytes waiting_bytes = 0;
};

/// A network, or one block of it.
struct Graph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOperator> operators;     ///< in order of execution
  std::vector<std::uint32_t> segment_ends;  ///< rising, the last is operators.size(); defaults to one segment

  std::size_t segment_count() const noexcept { return segment_ends.empty() ? 1 : segment_ends.size(); }
};

/// Throws ValueError, naming operator or tensor and value, when a number is negative, a total passes largest_total / 4,
/// an index (held_until included) is out of range, a tensor is made twice, is used before it is made, or is neither
/// made nor given, an operator has no outputs, or segment_ends does not rise to operators.size().
void validate(const Graph& graph);

/// A tensor that is dropped after a step and made again before its next use, or a missing one that is made again right
/// after a step, before the next one. With n operators, step i is the forward of operator i and step 2n - 1 - i its
/// backward.
struct Drop {
  std::uint32_t tensor, after;
  bool is_made = false;
  friend bool operator==(const Drop&, const Drop&) = default;
};

/// A closed set of tensors to keep: it has every input that recomputation needs, and no tensor without a reader.
struct Selection {
  std::vector<std::uint32_t> kept;        ///< tensors, rising; given ones are not listed
  std::vector<std::uint32_t> recomputed;  ///< operators, rising
  Bytes kept_bytes = 0;
  Time cost = 0;                 ///< of all re-runs
  std::vector<Drop> drops = {};  ///< by rising step

  friend bool operator==(const Selection&, const Selection&) = default;
};

/// The selection for a wish to keep some tensors (a flag per tensor). A tensor that a backward reads is kept if wanted
/// or if it cannot be recomputed, and recomputed otherwise. Wanted tensors that nothing needs are left out. Wanting
/// every tensor gives the selection of cost 0. The graph must be valid. Throws ValueError unless `wanted` has one flag
/// per tensor.
Selection close_selection(const Graph& graph, const std::vector<bool>& wanted, std::vector<Drop> drops = {});

/// For each tensor, whether it can be recomputed: its maker can run again and it crosses no boundary. False for given
/// tensors. The graph must be valid.
std::vector<bool> recomputable(const Graph& graph);

/// Bytes of the gradients that exist before and during each operator's backward, as if none were a window or written
/// over another buffer. The graph must be valid.
struct GradientBytes {
  std::vector<Bytes> before, during;
};
GradientBytes gradient_bytes(const Graph& graph);

/// Time and peaks of a step with a selection, simulated operator by operator. Given tensors do not count.
struct GraphCost {
  Time cost = 0;                            ///< of recomputing
  Bytes peak_bytes = 0;                     ///< most bytes alive at once
  Bytes forward_peak_bytes = 0;             ///< peak of the forward
  std::vector<Bytes> segment_peak_bytes;    ///< peak of each segment's visit in backward, recomputing included
  std::vector<Bytes> recompute_peak_bytes;  ///< peak of each segment's recomputing; 0 without recomputing
  std::vector<Bytes> operator_peak_bytes;   ///< peak of each operator's backward and the recomputing right before it

  friend bool operator==(const GraphCost&, const GraphCost&) = default;
};

/// Simulates forward, recomputation and backward. Throws PlanError, naming operator and tensor, when a tensor that is
/// read does not exist, which happens only for selections that close_selection() did not make.
GraphCost simulate(const Graph& graph, const Selection& selection);
/// simulate() without validating the graph.
GraphCost simulate_valid(const Graph& graph, const Selection& selection);

}  // namespace thimble::remat
