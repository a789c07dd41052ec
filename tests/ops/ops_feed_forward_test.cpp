// Rows of the operator table: the feed-forward layer in tiles; then equality with the whole layer, bytes, recomputation
// and edges.

#include <cmath>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/chunked.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/near.h"
#include "support/operator_table.h"
#include "support/refusal.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using kernels::Activation;
using ops::TiledFeedForward;
using thimble_test::largest_difference;
using thimble_test::largest_of;

double through(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu_tanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::none:
      return x;
  }
  return 0;
}

// By definition, in f64: x, up, down, and then the biases, if any, of a plain layer, or the gate.
std::vector<double> layer_of(const std::vector<HostArray>& in, const TiledFeedForward& op, bool is_gated) {
  const std::int64_t rows = in[0].shape[0], width = in[0].shape[1];
  const std::int64_t inner = in[1].shape[op.weight_is_in_out ? 1 : 0], outs = in[2].shape[op.weight_is_in_out ? 1 : 0];
  const auto product = [&](const std::vector<double>& x, const HostArray& w, std::int64_t count) {
    std::vector<double> y(static_cast<std::size_t>(count));
    for (std::int64_t o = 0; o < count; ++o) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        y[static_cast<std::size_t>(o)] +=
            x[i] * (op.weight_is_in_out ? w[at * count + o] : w[o * static_cast<std::int64_t>(x.size()) + at]);
      }
    }
    return y;
  };
  std::vector<double> all;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::vector<double> x;
    for (std::int64_t c = 0; c < width; ++c) x.push_back(in[0][r * width + c]);
    std::vector<double> h = product(x, in[1], inner);
    if (is_gated) {
      const std::vector<double> gate = product(x, in[3], inner);
      for (std::size_t i = 0; i < h.size(); ++i) h[i] *= gate[i] / (1 + std::exp(-gate[i]));
    } else {
      for (std::size_t i = 0; i < h.size(); ++i) {
        const double bias = in.size() > 3 ? in[3][static_cast<std::int64_t>(i)] : 0;
        h[i] = through(op.activation, h[i] + bias);
      }
    }
    std::vector<double> y = product(h, in[2], outs);
    for (std::size_t o = 0; o < y.size() && !is_gated && in.size() > 3; ++o)
      y[o] += in[4][static_cast<std::int64_t>(o)];
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

Tensor call(const TiledFeedForward& op, const std::vector<Tensor>& in, bool is_gated) {
  const Tensor none;
  if (is_gated) return apply(op, in[0], in[1], none, in[3], in[2], none);
  return in.size() > 3 ? apply(op, in[0], in[1], in[3], none, in[2], in[4])
                       : apply(op, in[0], in[1], none, none, in[2], none);
}

// The same layer, from Linear and SwiGlu.
Tensor whole(const TiledFeedForward& op, const std::vector<Tensor>& in, bool is_gated) {
  const Tensor none;
  const bool turned = op.weight_is_in_out, has_bias = !is_gated && in.size() > 3;
  if (is_gated) {
    const Tensor gate = linear(in[0], in[3], none, Activation::none, turned);
    const Tensor up = linear(in[0], in[1], none, Activation::none, turned);
    return linear(swiglu(gate, up), in[2], none, Activation::none, turned);
  }
  return linear(linear(in[0], in[1], has_bias ? in[3] : none, op.activation, turned), in[2], has_bias ? in[4] : none,
                Activation::none, turned);
}

using Values = std::vector<std::vector<double>>;

// The result and all gradients, operand by operand.
template <class F>
Values pass(const std::vector<Tensor>& in, F&& layer, bool is_checkpointed = false) {
  std::vector<Tensor> operands;
  for (const Tensor& t : in) operands.push_back(clone(t)), operands.back().require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    const auto block = [&](const Tensor& x) {
      std::vector<Tensor> all = operands;
      all[0] = x;
      return layer(all);
    };
    y = is_checkpointed ? checkpoint(block, operands[0]) : block(operands[0]);
  }
  const Tensor dy = Tensor::empty_like(y);
  {
    RandomGenerator generator(9);
    const GeneratorScope draws(generator);
    fill_normal(dy, 0, 1);
  }
  tape.backward(y, dy);
  Values values{to_host<double>(y)};
  for (const Tensor& t : operands) values.push_back(to_host<double>(t.grad()));
  return values;
}

std::vector<Tensor> operands_of(const Shape& x, std::int64_t inner, bool is_in_out, int form, DType dtype) {
  const std::int64_t width = x[x.rank() - 1];
  const Shape up = is_in_out ? Shape{width, inner} : Shape{inner, width};
  const Shape down = is_in_out ? Shape{inner, width} : Shape{width, inner};
  std::vector<Tensor> in{randn(x, dtype), mul(randn(up, dtype), 0.2), mul(randn(down, dtype), 0.2)};
  if (form == 1) in.push_back(randn({inner}, dtype)), in.push_back(randn({width}, dtype));
  if (form == 2) in.push_back(mul(randn(up, dtype), 0.2));
  return in;
}

}  // namespace

TEST_CASE("ops: feed-forward layer in tiles", "[feed_forward]") {
  const std::int64_t rows = 7, width = 4, inner = 6, outs = 3;
  for (const std::int64_t tile_rows : {0, 1, 3}) {
    for (const bool is_in_out : {false, true}) {
      const Shape up = is_in_out ? Shape{width, inner} : Shape{inner, width};
      const Shape down = is_in_out ? Shape{inner, outs} : Shape{outs, inner};
      for (const Activation activation :
           {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
        for (int form = 0; form < 3; ++form) {  // plain, plain with biases, gated
          const bool is_gated = form == 2;
          if (is_gated && activation != Activation::none) continue;
          const TiledFeedForward op{activation, is_in_out, tile_rows};
          std::vector<Operand> operands{{{rows, width}, -1, 1}, {up, -1, 1}, {down, -1, 1}};
          if (form == 1) operands.push_back({{inner}, -1, 1}), operands.push_back({{outs}, -1, 1});
          if (is_gated) operands.push_back({up, -1, 1});
          // All operands except the last bias, in place.
          const std::int64_t kept =
              rows * width + (is_gated ? 2 : 1) * inner * width + inner * outs + (form == 1 ? inner : 0);
          check_operator({"tiled_feed_forward, tiles of " + std::to_string(tile_rows) + ", form " +
                              std::to_string(form) + ", activation " + std::to_string(static_cast<int>(activation)),
                          operands,
                          [=](auto in) {
                            return call(op, {in.begin(), in.end()}, is_gated);
                          },
                          [=](const std::vector<HostArray>& in) { return layer_of(in, op, is_gated); },
                          [=](std::int64_t e, std::int64_t) { return kept * e; }, 2});
        }
      }
    }
  }
}

TEST_CASE("ops: feed-forward layer in tiles equals the whole layer", "[feed_forward]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const bool is_in_out : {false, true}) {
      for (int form = 0; form < 3; ++form) {
        INFO(to_string(dtype) << ", form " << form);
        const bool is_gated = form == 2;
        TiledFeedForward op{is_gated ? Activation::none : Activation::gelu_tanh, is_in_out, 0};
        const std::vector<Tensor> in = operands_of({3, 17, 24}, 40, is_in_out, form, dtype);
        const Values full = pass(in, [&](const auto& all) { return whole(op, all, is_gated); });
        const auto tiled = [&](std::int64_t rows, bool is_checkpointed = false) {
          op.tile_rows = rows;
          return pass(
              in, [&](const auto& all) { return call(op, all, is_gated); }, is_checkpointed);
        };
        CHECK(tiled(0) == full);  // one tile: equal bits
        CHECK(tiled(51) == full);
        const double unit = dtype == DType::f64   ? 0x1p-52
                            : dtype == DType::f32 ? 0x1p-23
                            : dtype == DType::f16 ? 0x1p-10
                                                  : 0x1p-7;
        for (const std::int64_t rows : {1, 7, 16, 50}) {
          INFO("tiles of " << rows);
          const Values values = tiled(rows);
          CHECK(values[0] == full[0]);  // y and dx: tiles do not change these bits
          CHECK(values[1] == full[1]);
          if (form == 1) CHECK(values[5] == full[5]);  // nor the last bias's gradient
          for (std::size_t i = 2; i < values.size(); ++i) {
            // The whole layer adds 51 products in another order; a narrow dtype rounds each sum once.
            CHECK(largest_difference(values[i], full[i]) <= (size_of(dtype) > 2 ? 51 : 2) * unit * largest_of(full[i]));
          }
          CHECK(tiled(rows, true) == values);  // recomputed
        }
      }
    }
  }
}

TEST_CASE("ops: feed-forward layer in tiles has equal bits on any number of threads", "[feed_forward]") {
  const int before = thread_count();
  const std::vector<Tensor> in = operands_of({300, 24}, 40, false, 2, DType::f32);
  const TiledFeedForward op{.tile_rows = 128};
  Values first;
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    const Values values = pass(in, [&](const auto& all) { return call(op, all, true); });
    if (threads == 1) first = values;
    CHECK(values == first);
  }
  set_thread_count(before);
}

TEST_CASE("ops: feed-forward layer in tiles makes gradients of those that need one alone", "[feed_forward]") {
  const std::vector<Tensor> in = operands_of({9, 8}, 12, false, 2, DType::f32);
  const TiledFeedForward op{.tile_rows = 4};
  const Values all = pass(in, [&](const auto& x) { return call(op, x, true); });
  for (std::size_t one = 0; one < in.size(); ++one) {
    std::vector<Tensor> operands;
    for (const Tensor& t : in) operands.push_back(clone(t));
    operands[one].require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = call(op, operands, true);
    }
    const Tensor dy = Tensor::empty_like(y);
    RandomGenerator generator(9);
    const GeneratorScope draws(generator);
    fill_normal(dy, 0, 1);
    tape.backward(y, dy);
    CHECK(to_host<double>(operands[one].grad()) == all[one + 1]);
  }
}

TEST_CASE("ops: feed-forward layer in tiles never holds its inner activations", "[feed_forward]") {
  // A dry pass: the peak above the operands. With a gate a tile has 2 inner results in forward and 4 in backward.
  const std::int64_t rows = 4096, width = 16, inner = 512, tile = 64;
  const auto peak = [&](std::int64_t tile_rows, bool is_whole, bool has_gradients) {
    const auto stack = memory::make_resource(dry(cpu));
    const ResourceScope scope(stack.top);
    std::vector<Tensor> in;
    for (const Shape& shape : {Shape{rows, width}, Shape{inner, width}, Shape{width, inner}, Shape{inner, width}}) {
      in.push_back(Tensor::empty(shape, DType::f32, dry(cpu)));
      if (has_gradients) in.back().require_grad();
    }
    const std::size_t before = stack.ledger->bytes();
    stack.ledger->reset_peak();
    Tape tape;
    Tensor y;
    const TiledFeedForward op{.tile_rows = tile_rows};
    const auto layer = [&] { y = is_whole ? whole(op, in, true) : call(op, in, true); };
    if (!has_gradients) {
      layer();
    } else {
      const Recording on(tape);
      layer();
      const std::int64_t kept = static_cast<std::int64_t>(stack.ledger->bytes() - before);
      CHECK(kept == (is_whole ? 3 * rows * inner * 4 : 0) + rows * width * 4);
    }
    if (has_gradients) tape.backward(y, Tensor::empty_like(y));
    return static_cast<std::int64_t>(stack.ledger->max_allocated() - before);
  };
  const std::int64_t one = rows * inner * 4, part = tile * inner * 4, slim = rows * width * 4,
                     weight = inner * width * 4;
  const std::int64_t packing = std::int64_t{thread_count()} << 20;  // of the products, at most
  CHECK(peak(0, true, false) > 2 * one);
  CHECK(peak(tile, false, false) >= slim + 2 * part);
  CHECK(peak(tile, false, false) <= slim + 2 * part + packing);
  CHECK(peak(0, true, true) > 4 * one);
  CHECK(peak(tile, false, true) >= 3 * slim + 4 * part + 3 * weight);
  CHECK(peak(tile, false, true) <= 3 * slim + 4 * part + tile * width * 4 + 3 * weight + packing);
  CHECK(peak(tile, false, true) < one);
}

TEST_CASE("ops: feed-forward layer in tiles and its operands", "[feed_forward]") {
  const std::vector<Tensor> in = operands_of({6, 4}, 5, false, 2, DType::f32);
  const Tensor none;
  const auto layer = [](const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& gate,
                        const Tensor& down, const Tensor& down_bias) {
    return apply(TiledFeedForward{}, x, up, up_bias, gate, down, down_bias);
  };
  CHECK(layer(in[0], in[1], none, in[3], in[2], none).shape() == Shape{6, 4});
  CHECK(layer(randn({2, 3, 4}), in[1], none, in[3], in[2], none).shape() == Shape{2, 3, 4});
  CHECK_THROWS_AS(layer(randn({6, 3}), in[1], none, in[3], in[2], none), ShapeError);
  CHECK_THROWS_AS(layer(in[0], in[1], none, randn({4, 4}), in[2], none), ShapeError);
  CHECK_THROWS_AS(layer(in[0], in[1], none, none, randn({4, 6}), none), ShapeError);
  CHECK_THROWS_AS(layer(in[0], in[1], randn({4}), none, in[2], none), ShapeError);
  CHECK_THROWS_AS(layer(in[0], in[1], none, none, in[2], randn({5})), ShapeError);
  CHECK_THROWS_AS(layer(in[0], randn({5, 4}, DType::bf16), none, none, in[2], none), DTypeError);
  CHECK_THROWS_AS(layer(in[0], Tensor::empty({5, 4}, DType::f32, dry(cpu)), none, none, in[2], none), DeviceError);
  CHECK_THROWS_AS(layer(in[0], in[1], randn({5}), in[3], in[2], none), ValueError);
  CHECK_THROWS_AS(apply(TiledFeedForward{Activation::relu}, in[0], in[1], none, in[3], in[2], none), ValueError);
  const TiledFeedForward tiled{.tile_rows = -1};
  CHECK(refusal_test::refusal<ValueError>([&] { apply(tiled, in[0], in[1], none, none, in[2], none); }) ==
        "tiled_feed_forward: chunks of -1 rows; expected at least 1, or 0 for automatic");
  const Values empty = pass(operands_of({0, 4}, 5, false, 1, DType::f32),
                            [&](const auto& all) { return call(TiledFeedForward{}, all, false); });
  CHECK(empty[2] == std::vector<double>(20, 0));
  CHECK(empty[4] == std::vector<double>(5, 0));
}
