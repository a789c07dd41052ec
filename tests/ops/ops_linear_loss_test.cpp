// Rows of the operator table: the chunked loss head; then equality with the full head, bytes, recomputation and edges.

#include <cmath>
#include <cstdint>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/chunked.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>

#include "support/catch.h"
#include "support/near.h"
#include "support/operator_table.h"
#include "support/refusal.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using ops::LinearCrossEntropy;

// By definition, in f64.
std::vector<double> head_of(const std::vector<HostArray>& in, const LinearCrossEntropy& head) {
  const std::int64_t n = in[0].shape[0], width = in[0].shape[1], classes = in[1].shape[0];
  double total = 0, count = 0;
  for (std::int64_t r = 0; r < n; ++r) {
    const auto target = static_cast<std::int64_t>(in[2][r]);
    if (target == head.ignore_index) continue;
    double norm = 0, all = 0, own = 0;
    for (std::int64_t v = 0; v < classes; ++v) {
      double logit = in.size() > 3 ? in[3][v] : 0;
      for (std::int64_t c = 0; c < width; ++c) logit += in[0][r * width + c] * in[1][v * width + c];
      norm += std::exp(logit);
      all += logit;
      if (v == target) own = logit;
    }
    total += std::log(norm) - (1 - head.label_smoothing) * own - head.label_smoothing / double(classes) * all;
    ++count;
  }
  return {head.reduction == kernels::LossReduction::mean ? total / count : total};
}

struct Operands {
  Tensor x, weight, bias, targets;

  Operands(std::int64_t n, std::int64_t width, std::int64_t classes, DType dtype = DType::f32)
      : x(randn({n, width}, dtype)), weight(randn({classes, width}, dtype)), bias(randn({classes}, dtype)) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < n; ++i) numbers.push_back(i % 5 == 2 ? -100 : (i * i + 3 * i) % classes);
    targets = from_host(numbers, {n});
  }
};

struct Passed {
  std::vector<double> loss, dx, dweight, dbias;
  bool operator==(const Passed&) const = default;
};

// chunk_rows < 0 runs the full head.
Passed pass(const Operands& in, std::int64_t chunk_rows, double seed = 1, bool is_checkpointed = false) {
  Tensor x = clone(in.x), weight = clone(in.weight), bias = clone(in.bias);
  for (Tensor* t : {&x, &weight, &bias}) t->require_grad();
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    const auto head = [&](const Tensor& rows) {
      if (chunk_rows < 0) return cross_entropy(linear(rows, weight, bias), in.targets);
      return apply(LinearCrossEntropy{.chunk_rows = chunk_rows}, rows, weight, bias, in.targets);
    };
    loss = is_checkpointed ? checkpoint(head, x) : head(x);
  }
  tape.backward(loss, full({}, seed, loss.dtype()));
  return {to_host<double>(loss), to_host<double>(x.grad()), to_host<double>(weight.grad()),
          to_host<double>(bias.grad())};
}

using thimble_test::largest_difference;

}  // namespace

TEST_CASE("ops: linear cross entropy in chunks", "[linear_loss]") {
  const std::int64_t n = 7, width = 6, classes = 5;
  using Reduction = kernels::LossReduction;
  for (const std::int64_t chunk_rows : {0, 1, 3, 7}) {
    for (const LinearCrossEntropy& head : {LinearCrossEntropy{-100, 0, Reduction::mean, chunk_rows},
                                           LinearCrossEntropy{2, 0.1, Reduction::mean, chunk_rows},
                                           LinearCrossEntropy{2, 0, Reduction::sum, chunk_rows}}) {
      for (const bool has_bias : {false, true}) {
        std::vector<Operand> operands{{{n, width}, -1, 1}, {{classes, width}, -1, 1}, integers({n}, 0, classes - 1)};
        if (has_bias) operands.push_back({{classes}, -1, 1});
        const std::int64_t gradients = n * width + classes * width + (has_bias ? classes : 0);
        check_operator({"linear_cross_entropy, chunks of " + std::to_string(chunk_rows) + ", reduction " +
                            std::to_string(static_cast<int>(head.reduction)) + (has_bias ? ", bias" : ""),
                        operands,
                        [=](auto in) { return apply(head, in[0], in[1], has_bias ? in[3] : Tensor(), in[2]); },
                        [=](const std::vector<HostArray>& in) { return head_of(in, head); },
                        [=](std::int64_t e, std::int64_t) { return gradients * e; }, 2});
      }
    }
  }
}

TEST_CASE("ops: linear cross entropy equals the full head", "[linear_loss]") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    INFO(to_string(dtype));
    const Operands in(50, 40, 301, dtype);
    const Passed full_head = pass(in, -1);
    CHECK(pass(in, 50) == full_head);  // one chunk: equal bits
    CHECK(pass(in, 0) == full_head);
    const Passed full_scaled = pass(in, -1, 0.37);
    const double unit = dtype == DType::f32 ? 0x1p-23 : 0x1p-52;
    for (const std::int64_t chunk_rows : {1, 7, 16, 49}) {
      INFO("chunks of " << chunk_rows);
      const Passed chunked = pass(in, chunk_rows);
      CHECK(chunked.loss == full_head.loss);  // chunks do not change these bits
      CHECK(chunked.dx == full_head.dx);
      // Sums of 50 terms up to 3 / 40 in another order.
      CHECK(largest_difference(chunked.dweight, full_head.dweight) <= 50 * unit);
      CHECK(largest_difference(chunked.dbias, full_head.dbias) <= 50 * unit);
      CHECK(pass(in, chunk_rows, 1, true) == chunked);  // recomputed
      const Passed scaled = pass(in, chunk_rows, 0.37);
      CHECK(largest_difference(scaled.dx, full_scaled.dx) <= 4 * unit);
      CHECK(largest_difference(scaled.dweight, full_scaled.dweight) <= 50 * unit);
      CHECK_FALSE(scaled.dx == chunked.dx);
    }
  }
}

TEST_CASE("ops: linear cross entropy adds narrow chunks up in f32", "[linear_loss]") {
  const Operands in(256, 16, 8, DType::bf16);
  Operands exact = in;
  for (Tensor* t : {&exact.x, &exact.weight, &exact.bias}) *t = to_dtype(*t, DType::f64);
  const Passed expected = pass(exact, -1);
  double scale = 0;
  for (const double v : expected.dweight) scale = std::max(scale, std::abs(v));
  // Both round logits and their gradients to bf16; a running sum in bf16 would lose up to 256 times more.
  const double once = largest_difference(pass(in, -1).dweight, expected.dweight);
  CHECK(largest_difference(pass(in, 1).dweight, expected.dweight) <= once + 0x1p-8 * scale);
}

TEST_CASE("ops: linear cross entropy never holds the logits", "[linear_loss]") {
  const std::int64_t n = 256, width = 8, classes = 3000, chunk = 16;
  const auto peak = [&](std::int64_t chunk_rows, bool has_gradients) {
    const auto stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    Operands in(n, width, classes);
    Tensor y = clone(in.x);
    if (has_gradients) {
      in.weight.require_grad();
      y.require_grad();
    }
    const std::size_t before = stack.ledger->bytes();
    stack.ledger->reset_peak();
    Tape tape;
    Tensor loss;
    const auto head = [&] {
      if (chunk_rows < 0) return cross_entropy(linear(y, in.weight, in.bias), in.targets);
      return apply(LinearCrossEntropy{.chunk_rows = chunk_rows}, y, in.weight, in.bias, in.targets);
    };
    if (has_gradients) {
      const Recording on(tape);
      loss = head();
    } else {
      loss = head();
    }
    if (has_gradients) tape.backward(loss);
    return static_cast<std::int64_t>(stack.ledger->max_allocated() - before);
  };
  const std::int64_t logits = n * classes * 4, gradients = (n * width + classes * width) * 4;
  const std::int64_t workspace = std::int64_t{thread_count()} << 20;  // packing of the products, at most
  CHECK(peak(-1, true) > logits + gradients);
  CHECK(peak(chunk, true) < logits / 16 + gradients + workspace);
  CHECK(peak(chunk, true) < logits);
  CHECK(peak(-1, false) > logits);
  CHECK(peak(chunk, false) < logits / 16 + workspace);
  CHECK(peak(chunk, true) - peak(chunk, false) >= gradients);
}

TEST_CASE("ops: linear cross entropy chooses its chunks by shape", "[linear_loss]") {
  CHECK(ops::chunk_rows_of(10, 65, 4) == 10);
  CHECK(ops::chunk_rows_of(0, 65, 4) == 1);
  CHECK(ops::chunk_rows_of(100'000, 65, 4) == (16 << 20) / (65 * 4));
  CHECK(ops::chunk_rows_of(2048, 50257, 4) == 128);
  CHECK(ops::chunk_rows_of(2048, 8192, 4) == 512);
  CHECK(ops::chunk_rows_of(1 << 20, 50257, 4) == 1 << 15);  // at most 32 chunks
}

TEST_CASE("ops: linear cross entropy takes larger chunks on CUDA devices", "[linear_loss]") {
  // A dry run counts them: 157 rows, a 32nd, on the CPU, and 2,048 on CUDA.
  const auto peak = [](memory::Device device, std::int64_t chunk_rows) {
    const auto stack = memory::make_resource(device);
    const ResourceScope scope(stack.top);
    const Tensor x = Tensor::empty({5000, 8}, DType::f32, device),
                 weight = Tensor::empty({40'000, 8}, DType::f32, device);
    const Tensor targets = Tensor::empty({5000}, DType::i64, device);
    stack.ledger->reset_peak();
    apply(LinearCrossEntropy{.chunk_rows = chunk_rows}, x, weight, Tensor(), targets);
    return stack.ledger->max_allocated();
  };
  CHECK(peak(dry(cuda()), 0) == peak(dry(cuda()), 2048));
  CHECK(peak(dry(cpu), 0) == peak(dry(cpu), 157));
}

TEST_CASE("ops: linear cross entropy and its operands", "[linear_loss]") {
  const Operands in(6, 4, 5);
  const auto head = [&](const Tensor& x, const Tensor& w, const Tensor& t, CrossEntropyOptions options = {},
                        const Tensor& bias = {}) { return linear_cross_entropy(x, w, t, options, bias); };
  CHECK(item(head(in.x, in.weight, in.targets)) == item(cross_entropy(linear(in.x, in.weight), in.targets)));
  CHECK_THROWS_AS(head(in.x, randn({5, 3}), in.targets), ShapeError);
  CHECK_THROWS_AS(head(randn({2, 3, 4}), in.weight, in.targets), ShapeError);
  CHECK_THROWS_AS(head(in.x, in.weight, full({5}, 0, DType::i64)), ShapeError);
  CHECK_THROWS_AS(head(in.x, in.weight, in.targets, {}, randn({4})), ShapeError);
  CHECK_THROWS_AS(head(in.x, Tensor::empty({0, 4}), in.targets), ShapeError);
  CHECK_THROWS_AS(head(in.x, randn({5, 4}, DType::bf16), in.targets), DTypeError);
  CHECK_THROWS_AS(head(in.x, in.weight, rand({6})), DTypeError);
  CHECK_THROWS_AS(head(in.x, in.weight, Tensor::empty({6}, DType::i64, dry(cpu))), DeviceError);
  CHECK_THROWS_AS(head(in.x, in.weight, in.targets, {-100, 2}), ValueError);
  CHECK_THROWS_AS(head(in.x, in.weight, in.targets, {-100, 0, LossReduction::none}), ValueError);
  CHECK_THROWS_AS(apply(LinearCrossEntropy{.chunk_rows = -1}, in.x, in.weight, Tensor(), in.targets), ValueError);
  const Tensor beyond = from_host(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}, {6});
  CHECK(refusal_test::refusal<ValueError>([&] { head(in.x, in.weight, beyond); }) ==
        "linear_cross_entropy: target 5 at row 5 is neither a class in [0, 5) nor the ignored index -100");
  // No target counts, or there are no rows.
  Operands none(6, 4, 5);
  none.targets = full({6}, -100, DType::i64);
  const Passed ignored = pass(none, 2);
  CHECK(std::isnan(ignored.loss[0]));
  CHECK(ignored.dx == std::vector<double>(24, 0));
  CHECK(ignored.dweight == std::vector<double>(20, 0));
  const Passed empty = pass(Operands(0, 4, 5), 0);
  CHECK(std::isnan(empty.loss[0]));
  CHECK(empty.dweight == std::vector<double>(20, 0));
}

TEST_CASE("ops: models with a chunked head have the same loss", "[linear_loss]") {
  for (const char* name : {"char-gpt", "bert-base"}) {
    INFO(name);
    models::ModelOptions sizes;
    sizes.layers = 1, sizes.heads = 2, sizes.width = 8, sizes.sequence = 6, sizes.vocabulary = 13;
    const auto loss = [&](models::Head head) {
      RandomGenerator generator(3);
      const GeneratorScope draws(generator);
      sizes.head = head;
      const auto model = models::make_model(name, sizes);
      return item(model->loss(model->empty_batch(3, cpu)));
    };
    CHECK(loss(models::Head::chunked) == loss(models::Head::full));
    sizes.head = models::Head::chunked;
    sizes.build = models::Build::textbook;
    CHECK_THROWS_AS(models::make_model(name, sizes), ValueError);
  }
}

// ---- Rows of the operator table: the linear layer with a low-rank adapter.

using namespace thimble::testing;

namespace ops_lora_test {

using Arrays = std::vector<HostArray>;
constexpr std::int64_t rows = 6, in = 5, out = 4, rank = 2;
constexpr double scale = 1.5;

/// x W + bias + scale (z A^T) B^T, by hand; operands are x, W, bias, A, B, and z if given.
std::vector<double> reference(const Arrays& t, bool is_in_out, bool has_z) {
  const HostArray &x = t[0], &w = t[1], &bias = t[2], &a = t[3], &b = t[4], &z = t[has_z ? 5 : 0];
  std::vector<double> y;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = bias[o];
      for (std::int64_t j = 0; j < in; ++j) sum += x[i * in + j] * (is_in_out ? w[j * out + o] : w[o * in + j]);
      for (std::int64_t r = 0; r < rank; ++r) {
        double u = 0;
        for (std::int64_t j = 0; j < in; ++j) u += z[i * in + j] * a[r * in + j];
        sum += scale * u * b[o * rank + r];
      }
      y.push_back(sum);
    }
  }
  return y;
}

OperatorCase row(const char* name, bool is_in_out, bool has_z) {
  OperatorCase c;
  c.name = name;
  c.operands = {{{2, 3, in}}, {is_in_out ? Shape{in, out} : Shape{out, in}}, {{out}}, {{rank, in}}, {{out, rank}}};
  if (has_z) c.operands.push_back({{2, 3, in}});
  c.run = [=](auto t) { return lora_linear(t[0], t[1], t[2], has_z ? t[5] : Tensor(), t[3], t[4], scale, is_in_out); };
  c.reference = [=](const Arrays& t) { return reference(t, is_in_out, has_z); };
  c.kept_bytes = [=](std::int64_t e, std::int64_t) {  // x, W, A, B, u, and z
    return e * ((has_z ? 2 : 1) * rows * in + in * out + rank * (in + out) + rows * rank);
  };
  c.tolerance = 20;
  return c;
}

}  // namespace ops_lora_test

TEST_CASE("ops: linear with an adapter", "[lora]") {
  check_operator(ops_lora_test::row("lora_linear", false, false));
  check_operator(ops_lora_test::row("lora_linear with (in, out) weight", true, false));
  check_operator(ops_lora_test::row("lora_linear whose adapter reads another tensor", false, true));
}

TEST_CASE("ops: linear with an adapter names its operands", "[lora]") {
  const Tensor x = Tensor::empty({2, 3}), w = Tensor::empty({4, 3}), a = Tensor::empty({2, 3}),
               b = Tensor::empty({4, 2});
  const std::string end = "; expected (..., in), (out), (r, in) and (out, r)", input = "lora_linear: input (2, 3), ";
  CHECK_NOTHROW(lora_linear(x, w, {}, {}, a, b, 1));
  CHECK_THROWS_WITH(lora_linear(x, w, {}, {}, b, a, 1),
                    input + "weight (4, 3) (out, in), bias (), A (4, 2), B (2, 3)" + end);
  CHECK_THROWS_WITH(lora_linear(x, w, Tensor::empty({3}), {}, a, b, 1),
                    input + "weight (4, 3) (out, in), bias (3), A (2, 3), B (4, 2)" + end);
  CHECK_THROWS_WITH(lora_linear(x, w, {}, Tensor::empty({2, 4}), a, b, 1),
                    input + "weight (4, 3) (out, in), bias (), adapter's input (2, 4), A (2, 3), B (4, 2)" + end);
  CHECK_THROWS_WITH(lora_linear(x, w, {}, {}, a, b, 1, true),
                    input + "weight (4, 3) (in, out), bias (), A (2, 3), B (4, 2)" + end);
  CHECK_THROWS_AS(lora_linear(x, w, {}, {}, Tensor::empty({2, 3}, DType::bf16), b, 1), DTypeError);
  const Tensor one = full({1, 1}, 1, DType::i8);
  CHECK_THROWS_AS(lora_linear(one, one, {}, {}, one, one, 1), DTypeError);
}
