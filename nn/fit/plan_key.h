#pragma once
// The key of a plan: the program whose step was recorded, and everything else that a step's bytes depend on. A plan
// with another key is rejected, naming the first difference.

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
  std::string library;       ///< version
  std::string machine;       ///< machine_text()
  std::string step;          ///< options of the step: micro-batches, clipping, optimizers, ...
  std::vector<Leaf> leaves;  ///< trained leaves, in the order in which the recording meets them
  std::vector<Node> nodes;   ///< of the recording
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

/// The settings that determine workspaces on a device, in one line: "cpu, avx2, bf16 converted, int8 on avx2, 2
/// threads", "cuda, compute capability 9.0". A dry device has its twin's.
std::string machine_text(memory::Device device);

/// The key of plans for a run whose step has this recording.
PlanKey plan_key(memory::Device device, const TapeGraph& graph, TrainingRun& run);

/// The first difference between two keys, with both sides; empty if they are equal.
std::string difference(const PlanKey& plan, const PlanKey& now);

}  // namespace thimble::nn
