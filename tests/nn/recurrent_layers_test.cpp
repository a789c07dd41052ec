// Recurrent layers, and other layers of a single operator: names and shapes in files, and values against the operators.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/recurrent.h>

#include "support/catch.h"

using namespace thimble;

namespace {

std::vector<float> host(const Tensor& t) { return to_host<float>(t); }

// "name shape" of each parameter, as in files.
std::vector<std::string> listed(const nn::Module& module) {
  std::vector<std::string> list;
  for (const nn::NamedTensor& p : module.parameters()) {
    list.push_back(p.name + " " + to_string(nn::file_shape(p.tensor.shape(), p.layout)));
  }
  return list;
}

RecurrentWeights weights_of(const nn::Module& module, const std::string& end) {
  RecurrentWeights w;
  for (const nn::NamedTensor& p : module.parameters()) {
    if (p.name == "weight_ih" + end) w.weight_ih = p.tensor;
    if (p.name == "weight_hh" + end) w.weight_hh = p.tensor;
    if (p.name == "bias_ih" + end) w.bias_ih = p.tensor;
    if (p.name == "bias_hh" + end) w.bias_hh = p.tensor;
  }
  return w;
}

}  // namespace

TEST_CASE("recurrent layers: names, shapes and bounds are PyTorch's") {
  const nn::Lstm lstm(3, 4, {.layers = 2, .is_bidirectional = true});
  CHECK(listed(lstm) == std::vector<std::string>{
                            "weight_ih_l0 (16, 3)", "weight_hh_l0 (16, 4)", "bias_ih_l0 (16)", "bias_hh_l0 (16)",
                            "weight_ih_l0_reverse (16, 3)", "weight_hh_l0_reverse (16, 4)", "bias_ih_l0_reverse (16)",
                            "bias_hh_l0_reverse (16)", "weight_ih_l1 (16, 8)", "weight_hh_l1 (16, 4)",
                            "bias_ih_l1 (16)", "bias_hh_l1 (16)", "weight_ih_l1_reverse (16, 8)",
                            "weight_hh_l1_reverse (16, 4)", "bias_ih_l1_reverse (16)", "bias_hh_l1_reverse (16)"});
  CHECK(listed(nn::Gru(3, 4, {.has_bias = false})) ==
        std::vector<std::string>{"weight_ih_l0 (12, 3)", "weight_hh_l0 (12, 4)"});
  float largest = 0;
  for (const float value : host(weights_of(lstm, "_l1").weight_ih)) largest = std::max(largest, std::abs(value));
  CHECK(largest <= 0.5f);
  CHECK(largest > 0.4f);
  const std::string end = "; expected at least 1 of each, and a probability in [0, 1)";
  CHECK_THROWS_WITH(nn::Gru(3, 0), "gru: 3 inputs, 0 units, 1 layers, dropout 0.000000" + end);
  CHECK_THROWS_WITH(nn::Lstm(0, 4), "lstm: 0 inputs, 4 units, 1 layers, dropout 0.000000" + end);
  CHECK_THROWS_WITH(nn::Lstm(3, 4, {.layers = 0}), "lstm: 3 inputs, 4 units, 0 layers, dropout 0.000000" + end);
  CHECK_THROWS_WITH(nn::Lstm(3, 4, {.dropout = 1}), "lstm: 3 inputs, 4 units, 1 layers, dropout 1.000000" + end);
}

TEST_CASE("recurrent layers: layers and directions are the operators, one after the other") {
  nn::Lstm lstm_layer(3, 4, {.layers = 2, .is_bidirectional = true});
  const Tensor x = randn({5, 2, 3});
  const auto both = [&](const Tensor& in, const std::string& layer) {
    const LstmResult there = lstm(in, Tensor(), Tensor(), weights_of(lstm_layer, layer));
    const LstmResult back = lstm(in, Tensor(), Tensor(), weights_of(lstm_layer, layer + "_reverse"), true);
    return std::pair(concat({there.output, back.output}, 2), stack({there.cell, back.cell}));
  };
  const auto [inner, inner_cells] = both(x, "_l0");
  const auto [y, cells] = both(inner, "_l1");
  CHECK(host(lstm_layer(x)) == host(y));
  nn::RecurrentState state;
  CHECK(host(lstm_layer.run(x, state)) == host(y));
  CHECK(host(state.c) == host(concat({inner_cells, cells}, 0)));
  CHECK(state.h.shape() == Shape{4, 2, 4});
  CHECK(host(select(state.h, 0, 2)) == host(slice(select(y, 0, 4), 1, 0, 4)));  // the last step of the first direction
  CHECK(host(select(state.h, 0, 3)) == host(slice(select(y, 0, 0), 1, 4, 8)));

  // A sequence in two halves, with the state carried over.
  nn::Gru gru_layer(3, 4, {.layers = 2, .is_batch_first = true});
  const Tensor batch = transpose(x, 0, 1);  // (N, T, C)
  nn::RecurrentState carried;
  const Tensor first = gru_layer.run(slice(batch, 1, 0, 2), carried);
  const Tensor second = gru_layer.run(slice(batch, 1, 2, 5), carried);
  CHECK(host(concat({first, second}, 1)) == host(gru_layer(batch)));
  CHECK_FALSE(carried.c.defined());
  carried.h = zeros({1, 2, 4});
  CHECK_THROWS_WITH(gru_layer.run(batch, carried), Catch::Contains("expected (2, N, 4)"));
  state.c = zeros({5, 2, 4});
  CHECK_THROWS_WITH(lstm_layer.run(x, state), Catch::Contains("lstm: the state is f32 (5, 2, 4)"));
}

TEST_CASE("recurrent layers: dropout lies between layers, and only in training") {
  nn::Gru layer(3, 4, {.layers = 2, .dropout = 0.5});
  const Tensor x = randn({5, 2, 3});
  layer.eval();
  const std::vector<float> plain = host(layer(x));
  CHECK(host(layer(x)) == plain);
  layer.train();
  CHECK(host(layer(x)) != plain);
  nn::Gru single(3, 4, {.dropout = 0.5});
  const std::vector<float> of_one = host(single(x));
  CHECK(host(single(x)) == of_one);
}

TEST_CASE("recurrent layers: a layer keeps its input, gates and states for backward") {
  nn::Lstm layer(3, 4);
  const Tensor x = randn({7, 2, 3});
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = sum(layer(x));
  }
  // Besides parameters: x, the gates, and the result and the cells with one row more.
  CHECK(tape.kept_bytes(memory::Category::activation) == (7 * 2 * 3 + 7 * 2 * 16 + 2 * 8 * 2 * 4) * sizeof(float));
  tape.backward(y);
  for (const nn::NamedTensor& p : layer.parameters()) CHECK(p.tensor.grad().defined());
}

TEST_CASE("recurrent layers: Conv1d, ConvTranspose2d and InstanceNorm2d") {
  nn::Conv1d conv(4, 6, 3, {.padding = 1, .groups = 2});
  CHECK(listed(conv) == std::vector<std::string>{"weight (6, 2, 3)", "bias (6)"});
  const Tensor sequence = randn({2, 9, 4});
  CHECK(host(conv(sequence)) == host(conv1d(sequence, conv.weight, conv.bias, {1, 1, 1, 2})));
  nn::ConvTranspose2d up(4, 6, 2, {.stride = 2});
  CHECK(listed(up) == std::vector<std::string>{"weight (4, 6, 2, 2)", "bias (6)"});
  const Tensor image = randn({2, 3, 3, 4});
  CHECK(up(image).shape() == Shape{2, 6, 6, 6});
  CHECK(host(up(image)) == host(conv_transpose2d(image, up.weight, up.bias, {2})));
  for (const auto& [in, out] : {std::pair(64, 1), {1, 64}}) {  // U(+-1 / sqrt(fan)) as in PyTorch, with fan = 4 out
    const double bound = 1 / std::sqrt(4.0 * out);
    double largest = 0;
    for (const double v : to_host<double>(nn::ConvTranspose2d(in, out, 2).weight))
      largest = std::max(largest, std::abs(v));
    CHECK(largest <= bound);
    CHECK(largest > 0.9 * bound);
  }
  nn::InstanceNorm2d norm(4, true), wide(4, true, {}, 0.5);
  CHECK(host(norm(image)) == host(instance_norm(image, norm.weight, norm.bias, 1e-5)));
  CHECK(host(wide(image)) == host(instance_norm(image, wide.weight, wide.bias, 0.5)));
  CHECK(host(nn::LayerNorm(4, {}, 0.5)(image)) == host(layer_norm(image, wide.weight, wide.bias, 0.5)));
  CHECK(host(nn::RmsNorm(4, {}, 0.5)(image)) == host(rms_norm(image, wide.weight, 0.5)));
  CHECK(host(nn::GroupNorm(2, 4, {}, 0.5)(image)) == host(group_norm(image, 2, wide.weight, wide.bias, 0.5)));
  CHECK(listed(nn::InstanceNorm2d(4)).empty());
  CHECK_THROWS_AS(nn::Conv1d(4, 6, 3, {.groups = 3}), ValueError);
  CHECK_THROWS_AS(nn::ConvTranspose2d(4, 6, 3, {.groups = 5}), ValueError);
}
