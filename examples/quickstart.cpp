// Predicts the peak of a training run, then measures it: one function on a dry device and on the real one.

#include <cstdio>

#include <thimble/thimble.h>

using namespace thimble;

std::size_t peak_bytes(memory::Device device, int steps) {
  const memory::Stack stack = memory::make_resource(device);  // a separate arena
  const ResourceScope scope(stack.top);
  const auto model = models::make_model("resnet18", {.image = 32}, {device});
  optim::Sgd sgd(model->trainable(), {.rate = 0.05, .momentum = 0.9});
  const models::Batch batch = model->empty_batch(16, device);  // zeros: no value changes a byte
  for (int i = 0; i < steps; ++i) {
    const Tensor loss = nn::training_step(sgd, [&](std::int64_t) { return model->loss(batch); });
    if (!device.is_dry) std::printf("step %d  loss %.4f\n", i, item(loss));
  }
  std::printf("%s%s\n", stack.ledger->summary(4).c_str(), memory::committed_table(stack).c_str());
  return stack.arena->statistics().peak_committed_bytes;
}

int main() {
  const std::size_t predicted = peak_bytes(dry(cpu), 2), measured = peak_bytes(cpu, 3);
  std::printf("predicted %zu bytes, measured %zu bytes\n", predicted, measured);
  return predicted == measured ? 0 : 1;
}
