// Your model, trained within a number of bytes.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <thimble/thimble.h>

using namespace thimble;

struct Net : nn::Module {  // (N, 64) -> (N, 1)
  Net() {
    for (int i = 0; i < 8; ++i) {
      layers.push_back(&child<nn::Linear>("layer" + std::to_string(i), i == 0 ? 64 : 256, i == 7 ? 1 : 256));
    }
  }
  Tensor operator()(const Tensor& x) {
    Tensor h = (*layers[0])(x);
    for (int i = 1; i < 8; ++i) h = (*layers[i])(gelu(h));
    return h;
  }
  std::vector<nn::Linear*> layers;
};

struct Batch {
  Tensor x, y;  // (N, 64), (N, 1)
};

int main() {
  const nn::TrainedProgram<Net, Batch> program{
      .model = [](memory::Device) { return std::make_unique<Net>(); },
      .optimizer =
          [](Net& net) { return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.rate = 1e-3}); },
      .loss = [](Net& net, const Batch& batch) { return mse_loss(net(batch.x), batch.y); },
      .batch =
          [](std::int64_t, memory::Device device) {
            const Tensor x = uniform({1024, 64}, -1, 1, DType::f32, device);
            return Batch{x, sum(mul(x, x), {1}, true)};
          }};
  nn::Trainer<Net, Batch> trainer(program, {.budget_bytes = 16 << 20, .steps = 20});
  std::printf("%s", trainer.plan().text().c_str());      // known before the first step
  std::printf("%s", trainer.certify(2).text().c_str());  // two steps with the budget and without, bit by bit
  trainer.run([](const nn::Progress& progress) {
    if (progress.step % 10 == 0)
      std::printf("step %2lld  loss %.4f\n", static_cast<long long>(progress.step), progress.loss);
  });
  std::printf("predicted %zu, measured %zu bytes\n", trainer.plan().peak_bytes, trainer.peak_bytes());
  return trainer.peak_bytes() == trainer.plan().peak_bytes ? 0 : 1;
}
