// Your model, trained in 60 % of the bytes that it takes without a budget. The peak is known before the first step and
// kept, and every bit equals a run without a budget. Exits with 1 if one of these fails.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <thimble/thimble.h>

using namespace thimble;

/// A multilayer perceptron with residual blocks: (N, 64) -> (N, 1).
class Net : public nn::Module {
 public:
  Net() : in_(child<nn::Linear>("in", 64, 256)) {
    for (int i = 0; i < 8; ++i) {
      blocks_.push_back(&child<nn::Linear>("block" + std::to_string(i), 256, 256));
    }
    out_ = &child<nn::Linear>("out", 256, 1);
  }
  Tensor operator()(const Tensor& x) {
    Tensor h = in_(x);
    for (nn::Linear* const block : blocks_) h = h + dropout(gelu((*block)(h)), 0.05);
    return (*out_)(h);
  }

 private:
  nn::Linear& in_;
  std::vector<nn::Linear*> blocks_;
  nn::Linear* out_;
};

struct Batch {
  Tensor x, y;  // (N, 64), (N, 1)
};

/// New random points of a function for every step. A dry device ignores the values.
Batch make_batch(std::int64_t, memory::Device device) {
  const Tensor x = uniform({1024, 64}, -1, 1, DType::f32, device);
  return {x, sum(mul(x, x), {1}, true)};
}

int main() {
  const nn::TrainedProgram<Net, Batch> program{
      .model = [](memory::Device) { return std::make_unique<Net>(); },
      .optimizer =
          [](Net& net) { return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.rate = 1e-3}); },
      .loss = [](Net& net, const Batch& batch) { return mse_loss(net(batch.x), batch.y); },
      .batch = make_batch,
      .evaluate =
          [](Net& net, memory::Device device) {
            const Batch batch = make_batch(0, device);
            return nn::read_value(mse_loss(net(batch.x), batch.y));
          }};
  nn::TrainerOptions options{.seed = 1, .steps = 12, .evaluate_every = 6};
  nn::Trainer<Net, Batch> plain(program, options);
  options.budget_bytes = plain.plan().peak_bytes * 6 / 10;
  nn::Trainer<Net, Batch> trainer(program, options);
  std::printf("without a budget %zu bytes; %s", plain.plan().peak_bytes, trainer.plan().text().c_str());

  const nn::Certificate certificate = trainer.certify(2);
  std::printf("%s", certificate.text().c_str());
  trainer.run([](const nn::Progress& p) {
    std::printf("step %2lld  loss %.4f", static_cast<long long>(p.step), p.loss);
    p.evaluation ? std::printf("  evaluation %.4f\n", p.evaluation->loss) : std::printf("\n");
  });
  std::printf("budget %zu, predicted %zu, measured %zu bytes\n", options.budget_bytes, trainer.plan().peak_bytes,
              trainer.peak_bytes());
  const bool is_kept =
      trainer.peak_bytes() == trainer.plan().peak_bytes && trainer.peak_bytes() <= options.budget_bytes;
  return certificate.holds() && is_kept ? 0 : 1;
}
