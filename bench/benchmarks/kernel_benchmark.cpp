// Compares the kernels of a training step with the machine's ceilings, a line each: elementwise operators, norms,
// softmax, losses, dropout, the products of a transformer's linear layers, attention, convolutions and optimizers:
// `kernel_benchmark [--threads N] [--isa NAME] [--cpu-dot U] [--seconds S] [--only TEXT]`.
//
// Operators run in f32, memory-bound ones also in bf16, forward and backward on a tape, in an arena with its pages
// already committed. The best of many runs counts (bench/timing/timing.h). `bound` names the tighter ceiling, `share`
// is the time at that ceiling over the time taken:
//
// - memory: the bytes that an operator must move, each once (forward: operands and result; backward: saved tensors, the
//   result's gradient and the operands' gradients; optimizer: bytes read and written by an update), at the triad's rate
//   (bench/timing/ceiling.h) in the same run, on as many MiB as the case has in its arena: caches can hold many. A
//   tensor that is read twice (batch norm's x, once for the mean) still counts once.
// - arithmetic: the multiply-adds of products, padding included, or the float operations of an element's formula
//   (core/numbers/math.h; a division or a square root counts as 8, Philox by its integer operations), at the FMA loop's
//   rate.
//
// Shares above 1 are possible: with updates in place (the triad reads the line that it writes, but counts it once),
// Winograd's convolutions, and on processors with separate units for additions or integers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/bench/commands.h>
#include <thimble/bench/timing/ceiling.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace {

using namespace thimble;
using namespace thimble::bench;

constexpr std::int64_t rows = 4096, width = 1024;              // 16 MiB in f32
constexpr std::int64_t images = 8, side = 56, channels = 128;  // 12.25 MiB
constexpr std::int64_t classes = 30522, samples = 128;         // 14.9 MiB: BERT's vocabulary
constexpr std::int64_t tokens = 1024;                          // rows of linear layers: 8 sequences of 128

using Operands = std::vector<Tensor>;

struct Case {
  std::string name;
  std::function<Operands(memory::Device, DType)> make;
  std::function<Tensor(const Operands&)> run;
  double forward = 0, backward = 0;  ///< operations per element of the first operand, without multiply-adds
};

Tensor leaf(const Shape& shape, DType dtype, memory::Device device) {
  return randn(shape, dtype, device).require_grad();
}

/// One operand of shape (rows, width); two; one with a norm's weight and bias (width).
Operands one(memory::Device device, DType dtype) { return {leaf({rows, width}, dtype, device)}; }
Operands two(memory::Device device, DType dtype) {
  return {leaf({rows, width}, dtype, device), leaf({rows, width}, dtype, device)};
}
Operands normed(memory::Device device, DType dtype) {
  return {leaf({rows, width}, dtype, device), full({width}, 1, DType::f32, device).require_grad(),
          zeros({width}, DType::f32, device).require_grad()};
}
Operands pictures(memory::Device device, DType dtype) {
  const Shape shape{images, side, side, channels};
  const auto row = [&](double value) { return full({channels}, value, DType::f32, device); };
  return {leaf(shape, dtype, device),
          leaf(shape, dtype, device),
          row(1).require_grad(),
          row(0).require_grad(),
          row(0),
          row(1)};
}
Operands classified(memory::Device device, DType dtype) {
  Tensor target = zeros({samples}, DType::i64, device);
  if (!device.is_dry) {
    std::vector<std::int64_t> classes_of(samples);
    for (std::int64_t i = 0; i < samples; ++i) classes_of[static_cast<std::size_t>(i)] = i * 311 % classes;
    target = from_host(classes_of, {samples}, device);
  }
  return {leaf({samples, classes}, dtype, device), target};
}

const std::vector<Case>& elementwise_cases() {
  static const std::vector<Case> list{
      {"add", two, [](const Operands& o) { return add(o[0], o[1]); }, 1, 0},
      {"mul", two, [](const Operands& o) { return mul(o[0], o[1]); }, 1, 2},
      {"relu", one, [](const Operands& o) { return relu(o[0]); }, 1, 1},
      {"exp", one, [](const Operands& o) { return exp(o[0]); }, 21, 1},
      {"tanh", one, [](const Operands& o) { return tanh(o[0]); }, 43, 3},
      {"silu", one, [](const Operands& o) { return silu(o[0]); }, 31, 35},
      {"gelu (tanh)", one, [](const Operands& o) { return gelu(o[0]); }, 35, 42},
      {"gelu (erf)", one, [](const Operands& o) { return gelu(o[0], GeluForm::erf); }, 52, 56},
      {"dropout 0.1", one, [](const Operands& o) { return dropout(o[0], 0.1); }, 42, 42},
      {"softmax", one, [](const Operands& o) { return softmax(o[0]); }, 17, 5},
      {"layer_norm", normed, [](const Operands& o) { return layer_norm(o[0], o[1], o[2]); }, 13, 13},
      {"rms_norm", normed, [](const Operands& o) { return rms_norm(o[0], o[1]); }, 4, 11},
      {"batch_norm", pictures, [](const Operands& o) { return batch_norm(o[0], o[2], o[3], o[4], o[5]); }, 8, 10},
      {"batch_norm_relu", pictures, [](const Operands& o) { return batch_norm_relu(o[0], o[2], o[3], o[4], o[5]); }, 9,
       14},
      {"batch_norm_add_relu", pictures,
       [](const Operands& o) { return batch_norm_add_relu(o[0], o[1], o[2], o[3], o[4], o[5]); }, 10, 11},
      {"cross_entropy", classified, [](const Operands& o) { return cross_entropy(o[0], o[1]); }, 14, 14},
  };
  return list;
}

/// Indices below `limit`, spread over it.
Tensor indices(const Shape& shape, std::int64_t limit, memory::Device device) {
  if (device.is_dry) return zeros(shape, DType::i64, device);
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) * 7919 % limit;
  return from_host(values, shape, device);
}

/// Operators beyond those of the reference models, in f32.
const std::vector<Case>& other_cases() {
  // A leaf of each shape.
  const auto of = [](std::vector<Shape> shapes) {
    return [shapes](memory::Device device, DType dtype) {
      Operands operands;
      for (const Shape& shape : shapes) operands.push_back(leaf(shape, dtype, device));
      return operands;
    };
  };
  // Two leaves and `shape` of indices below `limit`.
  const auto indexed = [](const Shape& x, const Shape& source, const Shape& shape, std::int64_t limit) {
    return [=](memory::Device device, DType dtype) {
      return Operands{leaf(x, dtype, device), leaf(source, dtype, device), indices(shape, limit, device)};
    };
  };
  // The second operand is a target in 0 to 1 without a gradient.
  const auto targeted = [](memory::Device device, DType dtype) {
    return Operands{leaf({rows, width}, dtype, device), full({rows, width}, 0.25, dtype, device)};
  };
  const Shape small{images, side / 2, side / 2, channels}, large{images, side, side, channels};
  const auto recurrent = [&](std::int64_t gates) {
    constexpr std::int64_t hidden = 256;
    return of({{128, 32, 128}, {gates * hidden, 128}, {gates * hidden, hidden}, {gates * hidden}, {gates * hidden}});
  };
  const auto weights = [](const Operands& o) { return RecurrentWeights{o[1], o[2], o[3], o[4]}; };
  static const std::vector<Case> list{
      {"conv1d", of({{16, 1024, 128}, {128, 3, 128}}),
       [](const Operands& o) { return conv1d(o[0], o[1], {}, {.padding = 1}); }},
      {"conv_transpose2d", of({small, {channels, 4, 4, 64}}),
       [](const Operands& o) { return conv_transpose2d(o[0], o[1], {}, {.stride = 2, .padding = 1}); }},
      {"upsample, nearest", of({small}), [](const Operands& o) { return upsample(o[0], 2); }},
      {"upsample, bilinear", of({small}), [](const Operands& o) { return upsample(o[0], 2, Resample::linear); }, 7, 7},
      {"adaptive_avg_pool2d", of({large}), [](const Operands& o) { return adaptive_avg_pool2d(o[0], 7, 7); }, 1, 1},
      {"instance_norm", of({large}), [](const Operands& o) { return instance_norm(o[0]); }, 8, 10},
      {"scatter_add", indexed({rows, width}, {rows, width}, {rows, width}, rows),
       [](const Operands& o) { return scatter_add(o[0], 0, o[2], o[1]); }, 1, 0},
      {"gather", indexed({rows, width}, {1}, {rows, width}, width),
       [](const Operands& o) { return gather(o[0], 1, o[2]); }},
      {"index_select", indexed({rows, width}, {1}, {rows}, rows),
       [](const Operands& o) { return index_select(o[0], 0, o[2]); }},
      {"topk, 50 of 30522", of({{samples, classes}}), [](const Operands& o) { return topk(o[0], 50).values; }},
      {"sort", of({{rows, width}}), [](const Operands& o) { return sort(o[0]).values; }},
      {"cumsum", of({{rows, width}}), [](const Operands& o) { return cumsum(o[0]); }, 1, 1},
      {"roll", of({{rows, width}}), [](const Operands& o) { return roll(o[0], 5, 0); }},
      {"flip", of({{rows, width}}), [](const Operands& o) { return flip(o[0], {1}); }},
      {"einsum", of({{8, 128, 12, 64}, {8, 128, 12, 64}}),
       [](const Operands& o) {
         return einsum("bqhd,bkhd->bhqk", {o[0], o[1]});
       }},
      {"prod", of({{rows * 64, 16}}), [](const Operands& o) { return prod(o[0], {1}); }, 1, 3},
      {"norm of rows", of({{rows, width}}), [](const Operands& o) { return norm(o[0], 2, {1}); }, 2, 1},
      {"lstm", recurrent(4), [=](const Operands& o) { return lstm(o[0], {}, {}, weights(o)).output; }},
      {"gru", recurrent(3), [=](const Operands& o) { return gru(o[0], {}, weights(o)); }},
      {"l1_loss", targeted, [](const Operands& o) { return l1_loss(o[0], o[1]); }, 2, 2},
      {"huber_loss", targeted, [](const Operands& o) { return huber_loss(o[0], o[1]); }, 5, 4},
      {"bce_with_logits", targeted, [](const Operands& o) { return bce_with_logits(o[0], o[1]); }, 40, 30},
      {"kl_div", targeted, [](const Operands& o) { return kl_div(o[0], o[1]); }, 30, 1},
      {"cosine_similarity", two, [](const Operands& o) { return cosine_similarity(o[0], o[1]); }, 6, 6},
      {"multinomial", targeted, [](const Operands& o) { return multinomial(o[1], 1); }},
  };
  return list;
}

/// Adds a product twice: once with a backward for x's gradient only, once for the weight's.
void add_products(std::vector<Case>& list, const std::string& name, const Shape& x, const Shape& weight,
                  const std::function<Tensor(const Operands&)>& run) {
  for (const bool is_of_weight : {false, true}) {
    const auto make = [=](memory::Device device, DType dtype) {
      Operands operands{randn(x, dtype, device), normal(weight, 0, 0.02, dtype, device)};
      operands[is_of_weight ? 1 : 0].require_grad();
      return operands;
    };
    list.push_back({name + (is_of_weight ? ", dweight" : ", dx"), make, run});
  }
}

std::vector<Case> product_cases() {
  std::vector<Case> list;
  const auto add_linear = [&](std::int64_t in, std::int64_t out, kernels::Activation activation, const char* tail) {
    const std::string shape = std::to_string(tokens) + " x " + std::to_string(in) + " x " + std::to_string(out);
    add_products(list, "linear " + shape + tail, {tokens, in}, {out, in},
                 [=](const Operands& o) { return linear(o[0], o[1], {}, activation); });
  };
  for (const std::int64_t out : {768L, 2304L, 3072L, classes}) add_linear(768, out, kernels::Activation::none, "");
  add_linear(3072, 768, kernels::Activation::none, "");
  add_linear(768, 3072, kernels::Activation::gelu_erf, ", gelu");
  // 12 heads of 64.
  const auto add_attention = [&](const char* name, std::int64_t batch, std::int64_t length, bool is_causal,
                                 std::int64_t window = 0) {
    list.push_back({std::string("attention ") + name,
                    [=](memory::Device device, DType dtype) {
                      return Operands{leaf({batch, length, 3 * 768}, dtype, device)};
                    },
                    [=](const Operands& o) { return attention(o[0], 12, {.causal = is_causal, .window = window}); }});
  };
  add_attention("8 x 128, all keys", 8, 128, false);
  add_attention("1 x 1024, causal", 1, 1024, true);
  add_attention("1 x 4096, causal", 1, 4096, true);
  add_attention("1 x 4096, window 1024", 1, 4096, true, 1024);
  add_attention("1 x 4096, window 256", 1, 4096, true, 256);
  const auto add_conv = [&](const char* name, std::int64_t size, std::int64_t in, std::int64_t out, std::int64_t kernel,
                            Conv2dOptions options) {
    add_products(list, std::string("conv ") + name, {images, size, size, in},
                 {out, kernel, kernel, in / options.groups},
                 [=](const Operands& o) { return conv2d(o[0], o[1], {}, options); });
  };
  // The convolutions that dominate ResNet-50's time, and one from MobileNet.
  add_conv("7x7 /2, 3 to 64, 224", 224, 3, 64, 7, {.stride = 2, .padding = 3});
  add_conv("3x3, 64 to 64, 56", 56, 64, 64, 3, {.padding = 1});
  add_conv("1x1, 256 to 64, 56", 56, 256, 64, 1, {});
  add_conv("1x1, 64 to 256, 56", 56, 64, 256, 1, {});
  add_conv("3x3, 128 to 128, 28", 28, 128, 128, 3, {.padding = 1});
  add_conv("3x3 /2, 128 to 128, 56", 56, 128, 128, 3, {.stride = 2, .padding = 1});
  add_conv("1x1, 1024 to 256, 14", 14, 1024, 256, 1, {});
  add_conv("3x3, 512 to 512, 7", 7, 512, 512, 3, {.padding = 1});
  add_conv("1x1 /2, 256 to 512, 56", 56, 256, 512, 1, {.stride = 2});
  add_conv("3x3, 128 channels apart, 56", 56, 128, 128, 3, {.padding = 1, .groups = 128});
  return list;
}

struct Amounts {
  double bytes = 0, operations = 0;
};
struct Needed {
  Amounts forward, backward;
};

/// The minimum amounts, from a dry run.
Needed needed_by(const Case& c, DType dtype) {
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  const Operands operands = c.make(dry(cpu), dtype);
  Tape tape;
  tape.observe();
  {
    const Recording on(tape);
    c.run(operands);
  }
  const TapeGraph graph = TapeGraph::of(tape);
  const std::vector<double> none(graph.nodes.size());
  const auto elements = static_cast<double>(operands[0].elements());
  Needed sum{{0, c.forward * elements}, {0, c.backward * elements}};
  for (const OperatorTime& time : operator_times(graph, {none, none, none})) {
    sum.forward.bytes += time.forward_bytes;
    sum.backward.bytes += time.backward_bytes;
  }
  for (const TapeGraph::Node& node : graph.nodes) {
    sum.forward.operations += node.multiply_adds;
    sum.backward.operations += multiply_adds(node) - node.multiply_adds;
  }
  return sum;
}

struct Options {
  double seconds = 0.4;                        ///< per measurement
  std::string only;                            ///< runs the cases with this text in their name
  double operations = 0;                       ///< per second: the ceiling of arithmetic
  std::map<std::int64_t, double> triads = {};  ///< GB/s by MiB

  bool takes(const std::string& name) const { return name.find(only) != std::string::npos; }
};

struct Measured {
  double ms;
  Amounts needed;
};

/// A row of the table. The triad takes the case's `bytes` to a multiple of 16 MiB, so that a few sizes serve all cases.
void print_row(const std::string& name, const std::vector<Measured>& columns, std::size_t bytes, Options& options) {
  constexpr std::int64_t step = 16;
  const std::int64_t mib = step * std::max<std::int64_t>(1, (static_cast<std::int64_t>(bytes >> 20) + step / 2) / step);
  double& triad = options.triads[mib];
  if (triad == 0) triad = memory_gbs(kernels::isa(), thread_count(), (mib << 20) / 12, options.seconds);
  std::printf("| %s |", name.c_str());
  for (const auto& [ms, needed] : columns) {
    const double memory_ms = 1e-6 * needed.bytes / triad, arithmetic_ms = 1e3 * needed.operations / options.operations;
    if (ms < 5e-3) {  // backward only passes the gradient through, or there is none
      std::printf(" 0 | | |");
    } else {
      std::printf(" %.2f | %s | %.2f |", ms, memory_ms > arithmetic_ms ? "memory" : "arithmetic",
                  std::max(memory_ms, arithmetic_ms) / ms);
    }
  }
  std::printf(" %lld | %.1f |\n", static_cast<long long>(mib), triad);
}

void run_operator(const Case& c, DType dtype, Options& options) {
  const std::string name = c.name + ", " + std::string(to_string(dtype));
  if (!options.takes(name)) return;
  const Needed needed = needed_by(c, dtype);
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const Operands operands = c.make(cpu, dtype);
  Tensor seed;
  {
    const Tensor y = c.run(operands);
    if (y.elements() > 1 && is_floating(y.dtype())) seed = randn(y.shape(), y.dtype(), cpu);
  }
  Tape tape;
  double forward_ms = INFINITY, backward_ms = INFINITY;
  best_ms(2 * options.seconds, thread_count(), [&] {
    Tensor y;
    const double start = clock_ms(thread_count());
    {
      const Recording on(tape);
      y = c.run(operands);
    }
    const double middle = clock_ms(thread_count());
    if (is_floating(y.dtype())) tape.backward(y, seed);
    forward_ms = std::min(forward_ms, middle - start);
    backward_ms = std::min(backward_ms, clock_ms(thread_count()) - middle);
    for (Tensor x : operands) {
      if (x.requires_grad()) x.grad() = Tensor();
    }
  });
  print_row(name, {{forward_ms, needed.forward}, {backward_ms, needed.backward}}, stack.ledger->max_allocated(),
            options);
}

/// `needed` is per element.
template <class Optimizer, class Own>
void run_optimizer(Options& options, const char* name, const Amounts& needed, const Own& own) {
  if (!options.takes(name)) return;
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Tensor p = leaf({rows, width}, DType::f32, cpu);
  p.grad() = randn({rows, width}, DType::f32, cpu);
  Optimizer optimizer({{"p", p}}, own);
  const double ms = best_ms(options.seconds, thread_count(), [&] { optimizer.step(); });
  const auto elements = static_cast<double>(p.elements());
  print_row(name, {{ms, {needed.bytes * elements, needed.operations * elements}}, {}}, stack.ledger->max_allocated(),
            options);
}

void run(Options& options) {
  options.operations = 0.5e9 * ceiling_gflops(kernels::isa(), thread_count(), options.seconds);
  std::printf("%s, threads: %d; FMA loop: %.1f G multiply-adds/s\n\n", std::string(to_string(kernels::isa())).c_str(),
              thread_count(), 1e-9 * options.operations);
  std::printf(
      "| operator or optimizer | forward or update ms | bound | share | backward ms | bound | share | MiB | triad GB/s "
      "|\n"
      "|---|---:|---|---:|---:|---|---:|---:|---:|\n");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& c : elementwise_cases()) run_operator(c, dtype, options);
  }
  for (const Case& c : other_cases()) run_operator(c, DType::f32, options);
  for (const Case& c : product_cases()) run_operator(c, DType::f32, options);
  // Parameter, gradient and state: read all, write parameter and state.
  run_optimizer<optim::Sgd>(options, "sgd", {12, 4}, optim::SgdOptions{});
  run_optimizer<optim::Sgd>(options, "momentum", {20, 6}, optim::SgdOptions{.momentum = 0.9});
  run_optimizer<optim::Adam>(options, "adam", {28, 31}, optim::AdamOptions{});
  const optim::MomentFormat codes{.dtype = DType::u8};
  run_optimizer<optim::Sgd>(options, "momentum8", {14 + 8.0 / 256, 6},
                            optim::SgdOptions{.momentum = 0.9, .moments = codes});
  run_optimizer<optim::Adam>(options, "adam8", {16 + 16.0 / 256, 31}, optim::AdamOptions{.moments = codes});
  run_optimizer<optim::Adafactor>(options, "adafactor", {12, 24}, optim::AdafactorOptions{});
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Kernels of a training step beside the machine's ceilings");
  app.add_option("--seconds", options.seconds, "Time for each figure")->check(CLI::NonNegativeNumber);
  app.add_option("--only", options.only, "The cases whose name contains this text");
  try {
    set_thread_count(1);
    kernels::set_from_environment();
    add_compute_flags(app);
    CLI11_PARSE(app, argc, argv);
    run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "kernel_benchmark: %s\n", error.what());
    return 2;
  }
}
