#pragma once
// The key of a plan: the program whose step was recorded, and everything else that the bytes of a step depend on. A
// plan of another key is refused, with the first difference.

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/nn/step/profile.h>

namespace thimble::nn {

struct PlanKey {
  struct Node {
    std::string name;  ///< of the operator
    TapePlan::Size size;
    friend bool operator==(const Node&, const Node&) = default;
  };
  struct Leaf {
    Shape shape;
    DType dtype = DType::f32;
    friend bool operator==(const Leaf&, const Leaf&) = default;
  };
  std::string library;       ///< its version
  std::string machine;       ///< machine_text()
  std::string step;          ///< how steps are made: micro-batches, clipping, optimizers, ...
  std::vector<Leaf> leaves;  ///< that are trained, in the order in which the recording meets them
  std::vector<Node> nodes;   ///< of the recording
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

/// The settings that determine workspaces on a device, in one line: "cpu, avx2, bf16 converted, int8 on avx2, 2
/// threads", "cuda, compute capability 9.0". That of a dry device is its twin's.
std::string machine_text(memory::Device device);

/// The key of plans for a run whose step gave this recording.
PlanKey plan_key(memory::Device device, const TapeGraph& graph, TrainingRun& run);

/// The first difference between two keys, with both sides; empty: none.
std::string difference(const PlanKey& plan, const PlanKey& now);

}  // namespace thimble::nn
