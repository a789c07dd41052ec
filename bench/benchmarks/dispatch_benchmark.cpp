// Overhead of an operator call, and of training steps of small nets:
// `dispatch_benchmark [--nodes N] [--rounds K] [--threads N]`.
//
// Records a chain of one-element additions on a reused tape, then drops it or runs it backward. The dry device launches
// nothing, which leaves the cost of allocation and tape. Reports the thread's best processor time over all rounds, and
// the heap calls of the last round.
//
// Then times f32 training steps (AdamW, batch 1) of a 64-256-64 perceptron and of a two-layer GPT of width 64 on 32
// tokens: wall-clock microseconds per step, the best round of 50 steps and the mean of all rounds. The mean includes
// time that other programs took. bench/peers/mlp_loop.cpp and `bench/torch/step.py small` train the same nets.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <new>
#include <vector>

#include <CLI/CLI.hpp>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/loss.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>

namespace {
std::atomic<std::uint64_t> heap_calls{0};
}

// noinline, because gcc would otherwise warn that operator delete frees malloc's block.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  heap_calls.fetch_add(1, std::memory_order_relaxed);
  if (void* const at = std::malloc(bytes)) return at;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* at) noexcept { std::free(at); }
__attribute__((noinline)) void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace {

using namespace thimble;

double now_ns(clockid_t clock) {
  std::timespec now{};
  clock_gettime(clock, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

struct Cost {
  double record_ns = std::numeric_limits<double>::infinity(), backward_ns = record_ns, drop_ns = record_ns;
  double heap_calls = 0;  // per node, recording and dropping
};

Tensor chain(Tensor x, const Tensor& y, int nodes) {
  for (int i = 0; i < nodes; ++i) x = add(x, y);
  return x;
}

Cost measure(memory::Device device, int nodes, int rounds) {
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope scope(stack.top);
  Tensor x = zeros({1}, DType::f32, device);
  x.require_grad();
  const Tensor y = zeros({1}, DType::f32, device);
  Tape tape;
  Cost cost;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t calls = heap_calls.load();
    double start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    {
      const Recording on(tape);
      chain(x, y, nodes);
    }
    cost.record_ns = std::min(cost.record_ns, (now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / nodes);
    start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    tape.clear();
    cost.drop_ns = std::min(cost.drop_ns, (now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / nodes);
    cost.heap_calls = static_cast<double>(heap_calls.load() - calls) / nodes;
    Tensor loss;
    {
      const Recording on(tape);
      loss = chain(x, y, nodes);
    }
    start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    tape.backward(loss);
    cost.backward_ns = std::min(cost.backward_ns, (now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / nodes);
    x.grad() = Tensor();
  }
  return cost;
}

void print(const char* name, const Cost& cost) {
  std::printf("| %s | %.0f | %.0f | %.0f | %.3f |\n", name, cost.record_ns, cost.backward_ns, cost.drop_ns,
              cost.heap_calls);
}

template <class LossOf>
void measure_net(const char* name, std::vector<optim::Named> parameters, int rounds, const LossOf& loss_of) {
  constexpr int steps = 50;  // the rate is tiny: gradients must not shrink to denormals, which are slow
  optim::Adam adam(std::move(parameters), {.rate = 1e-7, .weight_decay = 0.01});
  double least = std::numeric_limits<double>::infinity(), sum = 0;
  std::uint64_t calls = 0;
  for (int round = -1; round < rounds; ++round) {
    const double start = now_ns(CLOCK_MONOTONIC);
    const std::uint64_t before = heap_calls.load();
    for (int step = 0; step < steps; ++step) nn::training_step(adam, [&](std::int64_t) { return loss_of(); });
    calls = heap_calls.load() - before;
    if (round < 0) continue;  // touches pages for the first time
    const double us = 1e-3 * (now_ns(CLOCK_MONOTONIC) - start) / steps;
    least = std::min(least, us);
    sum += us;
  }
  std::printf("| %s | %.2f | %.2f | %.3f |\n", name, least, sum / rounds, static_cast<double>(calls) / steps);
}

void measure_nets(int rounds) {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const Tensor x = randn({1, 64}, DType::f32, cpu), target = from_host(std::vector<std::int64_t>{3}, {1}, cpu);
  nn::Sequential perceptron;
  perceptron.add<nn::Linear>(64, 256, nn::TensorOptions(), nn::LinearOptions{.activation = kernels::Activation::relu});
  perceptron.add<nn::Linear>(256, 64);
  measure_net("perceptron", perceptron.trainable(), rounds, [&] { return cross_entropy(perceptron(x), target); });
  models::ModelOptions sizes;
  sizes.layers = 2, sizes.heads = 4, sizes.width = 64, sizes.sequence = 32, sizes.dropout = 0, sizes.vocabulary = 64;
  models::Gpt gpt(models::gpt_options("char-gpt", sizes), {});
  std::vector<std::int64_t> ids(32);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * 11 % 64);
  const models::Batch batch{from_host(ids, {1, 32}, cpu), from_host(ids, {1, 32}, cpu)};
  measure_net("gpt", gpt.trainable(), rounds, [&] { return gpt.loss(batch); });
}

}  // namespace

int main(int argc, char** argv) {
  int nodes = 1000, rounds = 200, threads = thread_count();
  CLI::App app("What calling an operator costs");
  app.add_option("--nodes", nodes, "Operators of a chain")->check(CLI::Range(1, 1'000'000));
  app.add_option("--rounds", rounds, "Rounds")->check(CLI::Range(1, 1'000'000));
  app.add_option("--threads", threads, "Threads of the nets' kernels")->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  try {
    std::printf(
        "| device | record ns | backward ns | drop ns | heap calls per operator |\n|---|---:|---:|---:|---:|\n");
    print("dry(cpu)", measure(dry(cpu), nodes, rounds));
    print("cpu", measure(cpu, nodes, rounds));
    set_thread_count(threads);
    std::printf("\n| net, %d threads | best us | mean us | heap calls per step |\n|---|---:|---:|---:|\n", threads);
    measure_nets(rounds);
  } catch (const Error& error) {
    std::fprintf(stderr, "dispatch_benchmark: %s\n", error.what());
    return 2;
  }
}
