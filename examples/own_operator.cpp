// User-defined operators (examples/own_operators.h) work everywhere that the library's do: on the tape, in gradcheck,
// dry runs, the ledger and recomputation. Exits with 1 if a check fails.

#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>

#include "own_operators.h"

using namespace thimble;

namespace {

// Both operators in one small network: (N, I) and (O, I) -> (N, O).
Tensor block(const Tensor& x, const Tensor& weight) {
  return apply(own::NormalizeRows{.epsilon = 1e-6}, apply<own::Mish>(linear(x, weight)));
}

struct Pass {
  std::vector<float> loss, gradient;  // empty on a dry device
  std::size_t kept_bytes;
  std::vector<memory::Trace::Event> events;
};

// Forward and backward in a separate arena; `recomputes` keeps only the block's operands.
Pass run(memory::Device device, bool recomputes) {
  const memory::Stack stack = memory::make_resource(device, {.trace = true});
  const ResourceScope scope(stack.top);
  RandomGenerator generator(7);
  const GeneratorScope random(generator);
  const Tensor x = randn({32, 24}, DType::f32, device);       // (N, I)
  Tensor weight = randn({16, 24}, DType::f32, device);        // (O, I)
  const Tensor target = randn({32, 16}, DType::f32, device);  // (N, O)
  for (const Tensor& t : {x, target}) t.storage()->set_category(memory::Category::input);
  weight.storage()->set_category(memory::Category::parameter);
  weight.require_grad();

  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = mse_loss(recomputes ? checkpoint(block, x, weight) : block(x, weight), target);
  }
  Pass pass;
  pass.kept_bytes = tape.kept_bytes();
  tape.backward(loss);
  pass.events = stack.trace->events();
  if (!device.is_dry) pass.loss = to_host<float>(loss), pass.gradient = to_host<float>(weight.grad());
  return pass;
}

// Prints a check and returns its result.
bool shows(const char* what, bool is_so) {
  std::printf("%-64s %s\n", what, is_so ? "yes" : "NO");
  return is_so;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

int main() {
  const std::vector<Tensor> operands{randn({4, 6}, DType::f64), randn({5, 6}, DType::f64)};
  const GradcheckResult check =
      gradcheck([](std::span<const Tensor> in) { return block(in[0], in[1]); }, std::span<const Tensor>(operands));
  std::printf("gradcheck: largest error %.1e %s\n", check.largest_error, check.report.c_str());

  const Pass real = run(cpu, false), dry_run = run(dry(cpu), false), recomputed = run(cpu, true);
  std::printf("loss %.6f; kept for backward %zu bytes, under checkpoint() %zu\n", static_cast<double>(real.loss[0]),
              real.kept_bytes, recomputed.kept_bytes);
  bool is_fine = shows("gradients agree with central differences in f64", check.passed);
  is_fine &= shows("a dry run makes the same allocations in the same order", real.events == dry_run.events);
  is_fine &= shows("recomputed in checkpoint(): the same loss, bit for bit", same_bits(real.loss, recomputed.loss));
  is_fine &= shows("... and the same gradient", same_bits(real.gradient, recomputed.gradient));
  is_fine &= shows("... and less is kept", recomputed.kept_bytes < real.kept_bytes);
  return is_fine ? 0 : 1;
}
