// How fast the kernels are that compute little for each byte: elementwise operators, norms, softmax, losses, dropout
// and optimizers: `elementwise_benchmark [--threads N] [--isa NAME] [--seconds S] [--only TEXT]`.
//
// Operators run in f32 and bf16, forward and backward on a tape, in an arena whose pages are there; the best of many
// runs counts. A rate counts the bytes that an operator cannot do without, each once: forward its operands and its
// result, backward what it saved, the result's gradient and the operands' gradients; of an optimizer what an update
// reads and writes. What is read twice (batch norm's x, whose mean must be known first) still counts once. `share` is
// the rate over that of the triad (bench/timing/ceiling.h) in the same run, on arrays of as many elements.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/bench/timing/ceiling.h>
#include <thimble/bench/timing/kernel_timing.h>
#include <thimble/bench/timing/step_profile.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/memory/stack.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace {

using namespace thimble;
using namespace thimble::bench;

constexpr std::int64_t rows = 4096, width = 1024;              // 16 MiB in f32
constexpr std::int64_t images = 8, side = 56, channels = 128;  // 12.25 MiB
constexpr std::int64_t classes = 50304, samples = 80;          // 15.4 MiB: GPT-2's head, padded

/// Operands of a case: the first is the one whose gradient is asked for.
struct Operands {
  std::vector<Tensor> tensors;
  const Tensor& operator[](std::size_t i) const { return tensors[i]; }
};

struct Case {
  const char* name;
  std::function<Operands(memory::Device, DType)> make;
  std::function<Tensor(const Operands&)> run;
};

Tensor values(const Shape& shape, DType dtype, memory::Device device) { return randn(shape, dtype, device); }

/// One operand of (rows, width), two of it, and its rows' weight and bias.
Operands one(memory::Device device, DType dtype) { return {{values({rows, width}, dtype, device).require_grad()}}; }
Operands two(memory::Device device, DType dtype) {
  return {{values({rows, width}, dtype, device).require_grad(), values({rows, width}, dtype, device).require_grad()}};
}
Operands normed(memory::Device device, DType dtype) {
  return {{values({rows, width}, dtype, device).require_grad(), full({width}, 1, DType::f32, device).require_grad(),
           zeros({width}, DType::f32, device).require_grad()}};
}
Operands pictures(memory::Device device, DType dtype) {
  const Shape shape{images, side, side, channels};
  return {{values(shape, dtype, device).require_grad(), values(shape, dtype, device).require_grad(),
           full({channels}, 1, DType::f32, device).require_grad(), zeros({channels}, DType::f32, device).require_grad(),
           zeros({channels}, DType::f32, device), full({channels}, 1, DType::f32, device)}};
}
Operands classified(memory::Device device, DType dtype) {
  Tensor target = zeros({samples}, DType::i64, device);
  if (!device.is_dry) {
    std::vector<std::int64_t> classes_of(samples);
    for (std::int64_t i = 0; i < samples; ++i) classes_of[static_cast<std::size_t>(i)] = i * 311 % classes;
    target = from_host(classes_of, {samples}, device);
  }
  return {{values({samples, classes}, dtype, device).require_grad(), target}};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list{
      {"add", two, [](const Operands& o) { return add(o[0], o[1]); }},
      {"mul", two, [](const Operands& o) { return mul(o[0], o[1]); }},
      {"relu", one, [](const Operands& o) { return relu(o[0]); }},
      {"exp", one, [](const Operands& o) { return exp(o[0]); }},
      {"tanh", one, [](const Operands& o) { return tanh(o[0]); }},
      {"silu", one, [](const Operands& o) { return silu(o[0]); }},
      {"gelu (tanh)", one, [](const Operands& o) { return gelu(o[0]); }},
      {"gelu (erf)", one, [](const Operands& o) { return gelu(o[0], GeluForm::erf); }},
      {"dropout 0.1", one, [](const Operands& o) { return dropout(o[0], 0.1); }},
      {"softmax", one, [](const Operands& o) { return softmax(o[0]); }},
      {"layer_norm", normed, [](const Operands& o) { return layer_norm(o[0], o[1], o[2]); }},
      {"rms_norm", normed, [](const Operands& o) { return rms_norm(o[0], o[1]); }},
      {"batch_norm", pictures, [](const Operands& o) { return batch_norm(o[0], o[2], o[3], o[4], o[5]); }},
      {"batch_norm_relu", pictures, [](const Operands& o) { return batch_norm_relu(o[0], o[2], o[3], o[4], o[5]); }},
      {"batch_norm_add_relu", pictures,
       [](const Operands& o) { return batch_norm_add_relu(o[0], o[1], o[2], o[3], o[4], o[5]); }},
      {"cross_entropy", classified, [](const Operands& o) { return cross_entropy(o[0], o[1]); }},
  };
  return list;
}

/// Bytes forward and backward, by a dry run.
OperatorTime bytes_of(const Case& c, DType dtype) {
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
  OperatorTime sum;
  for (const OperatorTime& time : operator_times(graph, {none, none, none})) {
    sum.forward_bytes += time.forward_bytes;
    sum.backward_bytes += time.backward_bytes;
  }
  return sum;
}

void print_rate(double ms, double bytes, double ceiling) {
  if (ms < 5e-3) {  // a gradient that is handed on
    std::printf(" 0 | | |");
    return;
  }
  const double rate = 1e-6 * bytes / ms;
  std::printf(" %.2f | %.1f | %.2f |", ms, rate, rate / ceiling);
}

double sum_ms(const std::vector<double>& seconds) {
  double sum = 0;
  for (const double s : seconds) sum += s;
  return 1e3 * sum;
}

void run_operator(const Case& c, DType dtype, const KernelTiming& options, double ceiling) {
  const std::string name = std::string(c.name) + ", " + std::string(to_string(dtype));
  if (!options.takes(name.c_str())) return;
  const OperatorTime bytes = bytes_of(c, dtype);
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const Operands operands = c.make(cpu, dtype);
  Tensor seed;
  {
    const Tensor y = c.run(operands);
    if (y.elements() > 1) seed = values(y.shape(), y.dtype(), cpu);
  }
  Tape tape;
  TapeTimes times;
  tape.time(&times);
  double forward_ms = INFINITY, backward_ms = INFINITY;
  best_ms(2 * options.seconds, [&] {
    Tensor y;
    {
      const Recording on(tape);
      y = c.run(operands);
    }
    tape.backward(y, seed);
    forward_ms = std::min(forward_ms, sum_ms(times.forward));
    backward_ms = std::min(backward_ms, sum_ms(times.backward));
    for (Tensor x : operands.tensors) {
      if (x.requires_grad()) x.grad() = Tensor();
    }
  });
  std::printf("| %s |", name.c_str());
  print_rate(forward_ms, bytes.forward_bytes, ceiling);
  print_rate(backward_ms, bytes.backward_bytes, ceiling);
  std::printf("\n");
}

template <class Optimizer, class Options>
void run_optimizer(const KernelTiming& options, double ceiling, const char* name, double bytes_per_element,
                   const Options& own) {
  if (!options.takes(name)) return;
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Tensor p = values({rows, width}, DType::f32, cpu).require_grad();
  p.grad() = values({rows, width}, DType::f32, cpu);
  Optimizer optimizer({{"p", p}}, own);
  const double ms = best_ms(options.seconds, [&] { optimizer.step(); });
  std::printf("| %s |", name);
  print_rate(ms, bytes_per_element * static_cast<double>(p.elements()), ceiling);
  std::printf("\n");
}

void run(const KernelTiming& options) {
  const double ceiling = memory_gbs(kernels::isa(), options.threads, rows * width, options.seconds);
  std::printf("triad of %lld elements: %.1f GB/s\n\n", static_cast<long long>(rows * width), ceiling);
  std::printf(
      "| operator | forward ms | GB/s | share | backward ms | GB/s | share |\n|---|---:|---:|---:|---:|---:|---:|\n");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& c : cases()) run_operator(c, dtype, options, ceiling);
  }
  std::printf("\n| optimizer | update ms | GB/s | share |\n|---|---:|---:|---:|\n");
  // Parameter, gradient and state: read all, write parameter and state.
  run_optimizer<optim::Sgd>(options, ceiling, "sgd", 12, optim::SgdOptions{});
  run_optimizer<optim::Sgd>(options, ceiling, "momentum", 20, optim::SgdOptions{.momentum = 0.9});
  run_optimizer<optim::Adam>(options, ceiling, "adam", 28, optim::AdamOptions{});
  const optim::MomentFormat codes{.dtype = DType::u8};
  run_optimizer<optim::Sgd>(options, ceiling, "momentum8", 14 + 8.0 / 256,
                            optim::SgdOptions{.momentum = 0.9, .moments = codes});
  run_optimizer<optim::Adam>(options, ceiling, "adam8", 16 + 16.0 / 256, optim::AdamOptions{.moments = codes});
  run_optimizer<optim::Adafactor>(options, ceiling, "adafactor", 12, optim::AdafactorOptions{});
}

}  // namespace

int main(int argc, char** argv) {
  return time_kernels(argc, argv, "Kernels that the memory's speed bounds, forward and backward, and optimizers", run);
}
