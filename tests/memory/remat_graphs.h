#pragma once
// Graphs for the tests of selecting tensors to keep.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <thimble/memory/remat/graph.h>

#include "remat_chains.h"

namespace remat_test {

using thimble::remat::Graph;
using thimble::remat::GraphOperator;

/// Builds graphs operator by operator.
class GraphBuilder {
 public:
  std::uint32_t given(const std::string& name, Bytes bytes, Bytes gradient_bytes) {
    graph_.tensors.push_back({name, bytes, gradient_bytes, true});
    return last_tensor();
  }
  /// Adds an operator with one output. reads: tensors that its backward reads; reads_output adds the output.
  std::uint32_t add(const std::string& name, std::vector<std::uint32_t> inputs, Bytes bytes, Time cost,
                    std::vector<std::uint32_t> reads, bool reads_output = false) {
    graph_.tensors.push_back({name, bytes, bytes, false});
    if (reads_output) reads.push_back(last_tensor());
    graph_.operators.push_back({name, std::move(inputs), {last_tensor()}, std::move(reads), cost, 0, 0, true});
    return last_tensor();
  }
  /// Adds another output to the last operator, whose backward reads it.
  void save_besides(const std::string& name, Bytes bytes) {
    graph_.tensors.push_back({name, bytes, 0, false});
    graph_.operators.back().outputs.push_back(last_tensor());
    graph_.operators.back().backward_reads.push_back(last_tensor());
  }
  void end_segment() { graph_.segment_ends.push_back(static_cast<std::uint32_t>(graph_.operators.size())); }
  Graph build() const { return graph_; }

 private:
  std::uint32_t last_tensor() const { return static_cast<std::uint32_t>(graph_.tensors.size() - 1); }
  Graph graph_;
};

/// n operators whose inputs are among the last few tensors, with random flags, masks and segments.
inline Graph random_graph(Random& random, std::size_t n, std::size_t segments) {
  GraphBuilder builder;
  std::vector<std::uint32_t> tensors{builder.given("x", 5, 5)};
  for (std::size_t i = 0; i < n; ++i) {
    const auto recent = [&] {
      const auto back = std::min<std::int64_t>(static_cast<std::int64_t>(tensors.size()), 4);
      return tensors[tensors.size() - 1 - static_cast<std::size_t>(random.below(back))];
    };
    std::vector<std::uint32_t> inputs{recent()};
    if (random.one_in(3)) inputs.push_back(recent());
    std::vector<std::uint32_t> reads;
    for (const std::uint32_t t : inputs) {
      if (random.one_in(2)) reads.push_back(t);
    }
    tensors.push_back(builder.add("op", inputs, 1 + random.below(12), random.below(10), reads, random.one_in(3)));
    if (random.one_in(5)) builder.save_besides("mask", 1 + random.below(4));
    if (segments > 1 && i + 1 < n && (i + 1) % (n / segments) == 0) builder.end_segment();
  }
  if (segments > 1) builder.end_segment();
  Graph graph = builder.build();
  for (GraphOperator& op : graph.operators) op.can_recompute = !random.one_in(8);
  return graph;
}

/// Convolutions of a ResNet-50, each followed by batch norm (reads its input, keeps statistics) and ReLU (reads its
/// output), per image at 224 x 224 in f32. Costs are multiply-adds, or one per element. A segment per residual block,
/// and one for the operators before the first block.
inline Graph resnet50_graph() {
  GraphBuilder builder;
  const auto bytes = [](Bytes side, Bytes channels) { return 4 * side * side * channels; };
  const auto norm = [&](std::uint32_t in, Bytes side, Bytes channels) {
    const std::uint32_t out = builder.add("norm", {in}, bytes(side, channels), side * side * channels, {in});
    builder.save_besides("statistics", 8 * channels);
    return out;
  };
  const auto relu = [&](std::uint32_t in, Bytes side, Bytes channels) {
    return builder.add("relu", {in}, bytes(side, channels), side * side * channels, {}, true);
  };
  const auto conv = [&](std::uint32_t in, Bytes side, Bytes from, Bytes to, Bytes kernel) {
    return builder.add("conv", {in}, bytes(side, to), side * side * from * to * kernel * kernel, {in});
  };
  const std::uint32_t image = builder.given("image", bytes(224, 3), 0);
  std::uint32_t x = relu(norm(conv(image, 112, 3, 64, 7), 112, 64), 112, 64);
  x = builder.add("pool", {x}, bytes(56, 64), 9 * 56 * 56 * 64, {x});
  builder.end_segment();
  Bytes from = 64;
  const Bytes blocks[] = {3, 4, 6, 3};
  for (Bytes stage = 0; stage < 4; ++stage) {
    const Bytes width = Bytes{64} << stage;
    const Bytes side = Bytes{56} >> stage;
    for (Bytes block = 0; block < blocks[stage]; ++block) {
      const Bytes side_in = block == 0 && stage > 0 ? 2 * side : side;
      std::uint32_t y = relu(norm(conv(x, side_in, from, width, 1), side_in, width), side_in, width);
      y = relu(norm(conv(y, side, width, width, 3), side, width), side, width);
      y = norm(conv(y, side, width, 4 * width, 1), side, 4 * width);
      if (block == 0) x = norm(conv(x, side, from, 4 * width, 1), side, 4 * width);
      x = builder.add("add", {x, y}, bytes(side, 4 * width), side * side * 4 * width, {});
      x = relu(x, side, 4 * width);
      from = 4 * width;
      builder.end_segment();
    }
  }
  return builder.build();
}

}  // namespace remat_test
