#include <thimble/nn/fit/cost.h>

#include <algorithm>
#include <array>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::nn {
namespace {

constexpr double giga = 1e9;

// Rates that copies of pinned memory reach on a bus of 16 lanes, with 31.5 and 63 GB/s each way.
constexpr double pcie4 = 25 * giga, pcie5 = 50 * giga;

constexpr std::size_t gib = std::size_t{1} << 30;

// Rates are four fifths of the makers' figures for vector units, three fifths for tensor cores without sparsity, with
// sums in f32.
const std::array<Hardware, 8>& table() {
  static const std::array<Hardware, 8> all = [] {
    const auto gpu = [](const char* name, const char* description, std::size_t memory, double f32, double tf32,
                        double narrow, double bytes_per_s, double bus, int capability) {
      return Hardware{name,          description,        memory, f32 * giga, tf32 * giga,
                      narrow * giga, bytes_per_s * giga, 5e-6,   bus,        capability};
    };
    return std::array<Hardware, 8>{{
        {"cpu", "2 threads of an AVX-512 server core, f32", 0, 130 * giga, 0, 0, 30 * giga, 4e-6},
        gpu("rtx-3060-12gb", "NVIDIA GeForce RTX 3060, 12 GiB", 12 * gib, 5100, 5100, 7700, 330, pcie4, 86),
        gpu("rtx-3090-24gb", "NVIDIA GeForce RTX 3090, 24 GiB", 24 * gib, 14000, 14000, 21000, 840, pcie4, 86),
        gpu("rtx-4090-24gb", "NVIDIA GeForce RTX 4090, 24 GiB", 24 * gib, 33000, 33000, 50000, 900, pcie4, 89),
        gpu("a100-40gb", "NVIDIA A100, 40 GiB", 40 * gib, 7800, 47000, 94000, 1350, pcie4, 80),
        gpu("a6000-48gb", "NVIDIA RTX A6000, 48 GiB", 48 * gib, 15500, 23000, 46000, 690, pcie4, 86),
        gpu("h100-80gb", "NVIDIA H100, 80 GiB", 80 * gib, 27000, 148000, 297000, 2900, pcie5, 90),
        gpu("h200-141gb", "NVIDIA H200, 141 GB", 141'000'000'000, 27000, 148000, 297000, 4150, pcie5, 90),
    }};
  }();
  return all;
}

// The dtype of a node's arithmetic: its first operand's.
DType dtype_of_products(const TapeGraph& graph, const TapeGraph::Node& node) {
  for (const std::uint32_t value : node.inputs) {
    if (value != TapeGraph::none) return graph.values[value].dtype;
  }
  return DType::f32;
}

double bytes_of(const TapeGraph& graph, std::uint32_t value) {
  if (value == TapeGraph::none) return 0;
  const TapeGraph::Value& v = graph.values[value];
  return static_cast<double>(v.shape.elements()) * static_cast<double>(size_of(v.dtype));
}

}  // namespace

std::string operator_text(const TapeGraph& graph, std::size_t node) {
  const TapeGraph::Node& n = graph.nodes[node];
  return std::string(n.type->name) + " " + std::string(to_string(dtype_of_products(graph, n)));
}

double Hardware::multiply_adds_per_s(DType dtype) const noexcept {
  if (size_of(dtype) < 4 && narrow_per_s > 0) return narrow_per_s;
  return dtype == DType::f32 && allows_tf32() && tf32_per_s > 0 ? tf32_per_s : f32_per_s;
}

std::span<const Hardware> hardware_list() { return table(); }

const Hardware& hardware(std::string_view name) {
  std::string names;
  for (const Hardware& h : hardware_list()) {
    if (h.name == name) return h;
    names += (names.empty() ? "" : ", ") + h.name;
  }
  throw ValueError("hardware: '" + std::string(name) + "' is not one of " + names);
}

CostModel::CostModel(const Hardware& machine)
    : hardware(machine), source(machine.name + ": built-in rates of " + machine.description) {
  if (machine.name != hardware_list().front().name) return;
  const int threads = thread_count();
  source += "; this process has " + std::to_string(threads) + (threads == 1 ? " thread of " : " threads of ") +
            std::string(kernels::to_string(kernels::isa()));
}

Hardware hardware_of_gpu(std::string_view driver_name) {
  for (const Hardware& h : hardware_list()) {
    if (driver_name.starts_with(h.description.substr(0, h.description.find(',')))) return h;
  }
  Hardware other = hardware("h100-80gb");
  other.description += ", for the unknown GPU '" + std::string(driver_name) + "'";
  return other;
}

namespace {

std::vector<NodeTimes> roofline(const TapeGraph& graph, const Hardware& hardware) {
  std::vector<NodeTimes> times;
  times.reserve(graph.nodes.size());
  for (const TapeGraph::Node& node : graph.nodes) {
    NodeTimes t;
    if (node.type->cost == ops::Cost::view) {
      times.push_back(t);
      continue;
    }
    const double out = bytes_of(graph, node.output);
    double in = 0, extras = 0, read_back = 0;
    for (const std::uint32_t value : node.inputs) in += bytes_of(graph, value);
    for (const std::uint32_t value : node.saved) {
      read_back += bytes_of(graph, value);
      const bool is_operand = std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
      if (!is_operand && value != node.output) extras += bytes_of(graph, value);
    }
    const double rate = hardware.multiply_adds_per_s(dtype_of_products(graph, node));
    const auto seconds = [&](double multiply_adds, double bytes) {
      return std::max(multiply_adds / rate, bytes / hardware.bytes_per_s) + hardware.call_s;
    };
    // Statistics need a separate pass over the operand.
    const double statistics = node.type->cost == ops::Cost::reduction && node.type->has_output_from_saved ? in : 0;
    t.forward = seconds(node.multiply_adds, in + out + extras + statistics);
    t.recompute = node.type->has_output_from_saved ? seconds(0, in + out) : t.forward;
    if (node.needs.any()) {
      int products = 0;  // of operands that carry the arithmetic
      for (int i = 0; i < 2; ++i) products += node.needs[i];
      // Reads the saved values and the output's gradient, and writes the inputs' gradients.
      t.backward = seconds(node.multiply_adds * products, read_back + out + in + statistics);
    }
    times.push_back(t);
  }
  return times;
}

void require_same(const TapeGraph& graph, const std::vector<std::string>& operators) {
  for (std::size_t n = 0; n < std::max(graph.nodes.size(), operators.size()); ++n) {
    const std::string here = n < graph.nodes.size() ? operator_text(graph, n) : "nothing";
    const std::string measured = n < operators.size() ? operators[n] : "nothing";
    if (here == measured) continue;
    throw ValueError("cost model: node " + std::to_string(n) + " is " + here + ", " + measured +
                     " was measured; expected `times` of the same program in the same precision");
  }
}

}  // namespace

std::vector<NodeTimes> node_times(const TapeGraph& graph, const CostModel& costs) {
  std::vector<NodeTimes> times = roofline(graph, costs.hardware);
  if (costs.operators.empty()) return times;
  require_same(graph, costs.operators);
  for (std::size_t n = 0; n < times.size(); ++n) {
    times[n].forward *= costs.factors[n].forward;
    times[n].recompute *= costs.factors[n].recompute;
    times[n].backward *= costs.factors[n].backward;
  }
  return times;
}

double step_seconds(const std::vector<NodeTimes>& times) {
  double seconds = 0;
  for (const NodeTimes& t : times) seconds += t.forward + t.backward;
  return seconds;
}

}  // namespace thimble::nn
