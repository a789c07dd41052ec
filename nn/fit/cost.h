#pragma once
// Estimates the time of an operator from its sizes and a few rates of a machine (the roofline of Williams, Waterman,
// Patterson 2009): the larger of its arithmetic and its memory traffic, plus a fixed cost per call. If the program has
// been run, each operator's measured time corrects the estimate (nn/fit/measure.h).

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/autograd/graph.h>

namespace thimble::nn {

/// A machine's rates, for planning.
struct Hardware {
  std::string name;
  std::string description;
  std::size_t memory_bytes = 0;  ///< of the device; 0 if unknown
  /// Multiply-adds per second that large products reach in f32, in f32 with TF32 (core/launch/tf32.h), and in narrower
  /// dtypes; a rate of 0 is replaced by f32's.
  double f32_per_s = 0, tf32_per_s = 0, narrow_per_s = 0;
  double bytes_per_s = 0;  ///< reads and writes together, beyond the caches
  double call_s = 0;       ///< fixed cost of an operator
  /// Rate of writes to, or reads from, the target of offloading: a disk, or over a GPU's bus.
  double tier_bytes_per_s = 1e9;
  int capability = 0;  ///< of a GPU (core/launch/compute_capability.h)

  /// The rate for operands of this dtype; f32 uses TF32 if this thread allows it.
  double multiply_adds_per_s(DType dtype) const noexcept;
};

/// Known machines, the usual CPU first. hardware() throws ValueError, listing all names, for any other.
std::span<const Hardware> hardware_list();
const Hardware& hardware(std::string_view name);

/// The entry for a GPU, by the name that its driver reports ("NVIDIA H100 80GB HBM3"). Falls back to h100-80gb, with a
/// description that names both.
Hardware hardware_of_gpu(std::string_view driver_name);

/// Seconds of one node of a graph.
struct NodeTimes {
  double forward = 0;
  double recompute = 0;  ///< of the result only, while its saved tensors are present
  double backward = 0;
};

/// Ratios of a node's measured times to its roofline's NodeTimes.
struct NodeFactors {
  double forward = 1, recompute = 1, backward = 1;
};

/// The source of a plan's times.
struct CostModel {
  // NOLINTNEXTLINE(google-explicit-constructor): hardware is a model of costs
  CostModel(const Hardware& machine);

  Hardware hardware;
  /// For output: "cpu: built-in rates of 2 threads of an AVX-512 server core, f32; this process has 1 thread of avx2".
  std::string source;
  std::vector<std::string> operators;  ///< operator_text of the measured program; empty for the roofline
  std::vector<NodeFactors> factors;    ///< one per operator
};

/// An entry of CostModel::operators: the operator and the dtype of its products, as in "linear bf16".
std::string operator_text(const TapeGraph& graph, std::size_t node);

/// Times of every node. Throws ValueError, naming the first node that differs, if the costs are of another program.
std::vector<NodeTimes> node_times(const TapeGraph& graph, const CostModel& costs);

/// Forward and backward of all nodes, one after the other.
double step_seconds(const std::vector<NodeTimes>& times);

}  // namespace thimble::nn
