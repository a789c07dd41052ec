#include <thimble/nn/fit/plan_key.h>

#include <algorithm>

#include <thimble/autograd/node.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/version.h>

namespace thimble::nn {
namespace {

std::string both(const std::string& what, const std::string& plan, const std::string& now) {
  return what + ": the plan has '" + plan + "', here it is '" + now + "'";
}

std::string text_of(const Shape& shape, DType dtype) { return std::string(to_string(dtype)) + " " + to_string(shape); }

/// Options of a step that its bytes depend on.
std::string step_text(TrainingRun& run) {
  const StepOptions& options = run.options();
  std::string text = std::to_string(options.micro_batches) + " micro-batches";
  if (options.clip_norm > 0) text += ", clipped";
  if (options.fuses_optimizer != FusedUpdate::off) text += ", updates fused into backward";
  if (options.gradient_tier) text += ", gradients in a tier";
  if (options.scaler != nullptr) text += options.scaler->is_dynamic() ? ", dynamic loss scale" : ", loss scale";
  for (const optim::Optimizer* const optimizer : run.view().optimizers) {
    text += std::string(", ") + optimizer->name() + " of " + std::to_string(optimizer->parameters().size()) +
            " parameters with " + std::to_string(optimizer->state_bytes()) + " bytes of state" +
            (optimizer->offloads_state() ? " in a tier" : "");
  }
  return text;
}

}  // namespace

std::string machine_text(memory::Device device) {
  if (device.is_cuda()) return "cuda, compute capability " + capability_text(compute_capability(device));
  return "cpu, " + kernels::describe_compute();
}

PlanKey plan_key(memory::Device device, const TapeGraph& graph, TrainingRun& run) {
  PlanKey key;
  key.library = THIMBLE_VERSION;
  key.machine = machine_text(device);
  key.step = step_text(run);
  for (const TapeGraph::Value& value : graph.values) {
    if (value.is_leaf) key.leaves.push_back({value.shape, value.dtype});
  }
  const std::vector<TapePlan::Size> sizes = graph.sizes();
  for (std::size_t n = 0; n < sizes.size(); ++n) key.nodes.push_back({graph.nodes[n].type->name, sizes[n]});
  return key;
}

std::string difference(const PlanKey& plan, const PlanKey& now) {
  if (plan.library != now.library) return both("version of the library", plan.library, now.library);
  if (plan.machine != now.machine) return both("machine", plan.machine, now.machine);
  // With equal counts, a leaf of another size explains more than the sum of their states does.
  const bool is_as_many = plan.leaves.size() == now.leaves.size();
  if (plan.step != now.step && !is_as_many) return both("step", plan.step, now.step);
  for (std::size_t i = 0; i < std::max(plan.leaves.size(), now.leaves.size()); ++i) {
    const auto leaf = [&](const PlanKey& key) {
      return i < key.leaves.size() ? text_of(key.leaves[i].shape, key.leaves[i].dtype) : std::string("none");
    };
    if (leaf(plan) == leaf(now)) continue;
    return both("trained leaf " + std::to_string(i), leaf(plan), leaf(now)) +
           "; expected the dtype, the sizes and the data of the plan (a text sets the vocabulary, images the classes)";
  }
  if (plan.step != now.step) return both("step", plan.step, now.step);
  for (std::size_t i = 0; i < std::max(plan.nodes.size(), now.nodes.size()); ++i) {
    const auto node = [&](const PlanKey& key) {
      if (i >= key.nodes.size()) return std::string("none");
      return key.nodes[i].name + " " + text_of(key.nodes[i].size.result, key.nodes[i].size.dtype);
    };
    const std::string what = "node " + std::to_string(i);
    if (node(plan) != node(now)) return both(what, node(plan), node(now));
    if (plan.nodes[i].size.operands != now.nodes[i].size.operands) return what + ", " + node(now) + ": other operands";
  }
  return {};
}

}  // namespace thimble::nn
