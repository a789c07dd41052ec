#pragma once
// The time of one operator, from its sizes and three numbers of a machine (the roofline of Williams, Waterman,
// Patterson 2009): the larger of its arithmetic and its memory traffic, and a fixed cost of calling it. If the program
// has been run, each operator's measured time corrects it (nn/fit/measure.h).

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/autograd/graph.h>

namespace thimble::nn {

/// A machine as planning sees it.
struct Hardware {
  std::string name;
  std::string description;
  std::size_t memory_bytes = 0;  ///< of the device; 0: not known
  /// Multiply-adds a second that large products reach: of f32, of f32 with TF32 allowed (core/launch/tf32.h), and of
  /// narrower dtypes; 0: as f32.
  double f32_per_s = 0, tf32_per_s = 0, narrow_per_s = 0;
  double bytes_per_s = 0;  ///< read and written together, beyond the caches
  double call_s = 0;       ///< of one operator, however small
  /// Written to, or read from, the target of offloading: a disk, or over a GPU's bus.
  double tier_bytes_per_s = 1e9;
  int capability = 0;  ///< of a GPU (core/launch/compute_capability.h)

  /// Of operands in this dtype, TF32 as this thread allows it.
  double multiply_adds_per_s(DType dtype) const noexcept;
};

/// Known machines, the present kind of CPU first. Throws ValueError, listing all names, for another one.
std::span<const Hardware> hardware_list();
const Hardware& hardware(std::string_view name);

/// The entry of a GPU by the name that its driver gives ("NVIDIA H100 80GB HBM3"); without a match that of h100-80gb,
/// whose description then names both.
Hardware hardware_of_gpu(std::string_view driver_name);

/// Seconds of one node of a graph.
struct NodeTimes {
  double forward = 0;
  double recompute = 0;  ///< only of its result, when its saved tensors are at hand
  double backward = 0;
};

/// A node's measured times over those of its roofline; of NodeTimes.
struct NodeFactors {
  double forward = 1, recompute = 1, backward = 1;
};

/// Where the times of a plan come from.
struct CostModel {
  // NOLINTNEXTLINE(google-explicit-constructor): hardware is a model of costs
  CostModel(const Hardware& machine);

  Hardware hardware;
  /// To print: "cpu: built-in rates of 2 threads of an AVX-512 server core, f32; this process has 1 thread of avx2".
  std::string source;
  std::vector<std::string> operators;  ///< operator_text of the measured program; empty: none
  std::vector<NodeFactors> factors;    ///< as many
};

/// "linear bf16": the operator and the dtype of its products, as CostModel::operators has them.
std::string operator_text(const TapeGraph& graph, std::size_t node);

/// For every node. Throws ValueError, naming the first node that differs, for the costs of another program.
std::vector<NodeTimes> node_times(const TapeGraph& graph, const CostModel& costs);

/// Forward and backward of all nodes, one after the other.
double step_seconds(const std::vector<NodeTimes>& times);

}  // namespace thimble::nn
