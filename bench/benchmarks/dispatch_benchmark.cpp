// What calling an operator costs besides its arithmetic: `dispatch_benchmark [--nodes N] [--rounds K]`. A chain of
// additions of one element is recorded on a tape that is used again and again, run backward, or dropped. On the dry
// device nothing is launched, so that allocation and tape are left. Processor time of the thread, best of the rounds;
// and how often the heap was asked, in one round after several.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <new>

#include <CLI/CLI.hpp>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/memory/stack.h>

namespace {
std::atomic<std::uint64_t> heap_calls{0};
}

// Never inlined, or gcc takes malloc's block for one that operator delete must not free.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  heap_calls.fetch_add(1, std::memory_order_relaxed);
  if (void* const at = std::malloc(bytes)) return at;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* at) noexcept { std::free(at); }
__attribute__((noinline)) void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace {

using namespace thimble;

double thread_ns() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
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
    double start = thread_ns();
    {
      const Recording on(tape);
      chain(x, y, nodes);
    }
    cost.record_ns = std::min(cost.record_ns, (thread_ns() - start) / nodes);
    start = thread_ns();
    tape.clear();
    cost.drop_ns = std::min(cost.drop_ns, (thread_ns() - start) / nodes);
    cost.heap_calls = static_cast<double>(heap_calls.load() - calls) / nodes;
    Tensor loss;
    {
      const Recording on(tape);
      loss = chain(x, y, nodes);
    }
    start = thread_ns();
    tape.backward(loss);
    cost.backward_ns = std::min(cost.backward_ns, (thread_ns() - start) / nodes);
    x.grad() = Tensor();
  }
  return cost;
}

void print(const char* name, const Cost& cost) {
  std::printf("| %s | %.0f | %.0f | %.0f | %.3f |\n", name, cost.record_ns, cost.backward_ns, cost.drop_ns,
              cost.heap_calls);
}

}  // namespace

int main(int argc, char** argv) {
  int nodes = 1000, rounds = 200;
  CLI::App app("What calling an operator costs");
  app.add_option("--nodes", nodes, "Operators of a chain")->check(CLI::Range(1, 1'000'000));
  app.add_option("--rounds", rounds, "Rounds")->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  try {
    std::printf(
        "| device | record ns | backward ns | drop ns | heap calls per operator |\n|---|---:|---:|---:|---:|\n");
    print("dry(cpu)", measure(dry(cpu), nodes, rounds));
    print("cpu", measure(cpu, nodes, rounds));
  } catch (const Error& error) {
    std::fprintf(stderr, "dispatch_benchmark: %s\n", error.what());
    return 2;
  }
}
