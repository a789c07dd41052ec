#include <thimble/nn/fit/cost.h>

#include <algorithm>
#include <array>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>

namespace thimble::nn {
namespace cost_detail {

constexpr double giga = 1e9;

// What copies of pinned memory reach of a bus of 16 lanes, of 31.5 and 63 GB/s each way.
constexpr double pcie4 = 25 * giga, pcie5 = 50 * giga;

const std::array<Hardware, 8>& table() {
  static const std::array<Hardware, 8> all{{
      {"cpu", "2 threads of an AVX-512 server core, f32, as measured with this library", 0, 130 * giga, 30 * giga,
       4e-6},
      {"rtx-3060-12gb", "NVIDIA GeForce RTX 3060, 12 GiB", std::size_t{12} << 30, 5500 * giga, 330 * giga, 5e-6, pcie4,
       86},
      {"rtx-3090-24gb", "NVIDIA GeForce RTX 3090, 24 GiB", std::size_t{24} << 30, 14000 * giga, 840 * giga, 5e-6, pcie4,
       86},
      {"rtx-4090-24gb", "NVIDIA GeForce RTX 4090, 24 GiB", std::size_t{24} << 30, 33000 * giga, 900 * giga, 5e-6, pcie4,
       89},
      {"a100-40gb", "NVIDIA A100, 40 GiB, TF32", std::size_t{40} << 30, 50000 * giga, 1350 * giga, 5e-6, pcie4, 80},
      {"a6000-48gb", "NVIDIA RTX A6000, 48 GiB, TF32", std::size_t{48} << 30, 25000 * giga, 690 * giga, 5e-6, pcie4,
       86},
      {"h100-80gb", "NVIDIA H100, 80 GiB, TF32", std::size_t{80} << 30, 150000 * giga, 2900 * giga, 5e-6, pcie5, 90},
      {"h200-141gb", "NVIDIA H200, 141 GB, TF32", std::size_t{141'000'000'000}, 150000 * giga, 4150 * giga, 5e-6, pcie5,
       90},
  }};
  return all;
}

double bytes_of(const TapeGraph& graph, std::uint32_t value) {
  if (value == TapeGraph::none) return 0;
  const TapeGraph::Value& v = graph.values[value];
  return static_cast<double>(v.shape.elements()) * static_cast<double>(size_of(v.dtype));
}

}  // namespace cost_detail

std::span<const Hardware> hardware_list() { return cost_detail::table(); }

const Hardware& hardware(std::string_view name) {
  std::string names;
  for (const Hardware& h : hardware_list()) {
    if (h.name == name) return h;
    names += (names.empty() ? "" : ", ") + h.name;
  }
  throw ValueError("hardware: '" + std::string(name) + "' is not one of " + names);
}

const Hardware& hardware_of_gpu(std::string_view driver_name) {
  for (const Hardware& h : hardware_list()) {
    if (driver_name.starts_with(h.description.substr(0, h.description.find(',')))) return h;
  }
  return hardware("h100-80gb");
}

namespace cost_detail {

std::vector<NodeTimes> roofline(const TapeGraph& graph, const Hardware& hardware) {
  std::vector<NodeTimes> times;
  times.reserve(graph.nodes.size());
  for (const TapeGraph::Node& node : graph.nodes) {
    NodeTimes t;
    if (node.type->cost == Cost::view) {
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
    const auto seconds = [&](double multiply_adds, double bytes) {
      return std::max(multiply_adds / hardware.multiply_adds_per_s, bytes / hardware.bytes_per_s) + hardware.call_s;
    };
    // Statistics take a pass of their own over the operand.
    const double statistics = node.type->cost == Cost::reduction && node.type->has_remake ? in : 0;
    t.forward = seconds(node.multiply_adds, in + out + extras + statistics);
    t.remake = node.type->has_remake ? seconds(0, in + out) : t.forward;
    if (node.needs.any()) {
      int products = 0;  // of operands that carry the arithmetic
      for (int i = 0; i < 2; ++i) products += node.needs[i];
      // What is read again, the gradient that comes in, those that go out.
      t.backward = seconds(node.multiply_adds * products, read_back + out + in + statistics);
    }
    times.push_back(t);
  }
  return times;
}

void require_same(const TapeGraph& graph, const std::vector<std::string>& operators) {
  for (std::size_t n = 0; n < std::max(graph.nodes.size(), operators.size()); ++n) {
    const std::string here = n < graph.nodes.size() ? graph.nodes[n].type->name : "nothing";
    const std::string measured = n < operators.size() ? operators[n] : "nothing";
    if (here == measured) continue;
    throw ValueError("cost model: node " + std::to_string(n) + " is " + here + ", " + measured +
                     " was measured; a model of the same program is allowed");
  }
}

}  // namespace cost_detail

std::vector<NodeTimes> node_times(const TapeGraph& graph, const CostModel& costs) {
  std::vector<NodeTimes> times = cost_detail::roofline(graph, costs.hardware);
  if (costs.operators.empty()) return times;
  cost_detail::require_same(graph, costs.operators);
  for (std::size_t n = 0; n < times.size(); ++n) {
    times[n].forward *= costs.factors[n].forward;
    times[n].remake *= costs.factors[n].remake;
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
