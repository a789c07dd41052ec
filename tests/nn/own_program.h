#pragma once
// A user's programs for nn::Trainer: a small residual net over vectors, and two nets trained against each other.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/random.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/trainer/trainer.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace own_program {

using namespace thimble;

/// x + down(dropout(gelu(norm(up(x))))) repeated, then a number per sample; batch norm sees images (N, 1, 1, C).
class Net : public nn::Module {
 public:
  Net(std::int64_t width, std::int64_t depth, memory::Device device) : width_(width) {
    const nn::TensorOptions on{device};
    for (std::int64_t i = 0; i < depth; ++i) {
      const std::string name = "block" + std::to_string(i);
      blocks_.push_back({&child<nn::Linear>(name + ".up", width, 2 * width, on),
                         &child<nn::BatchNorm2d>(name + ".norm", 2 * width, on),
                         &child<nn::Dropout>(name + ".drop", 0.1),
                         &child<nn::Linear>(name + ".down", 2 * width, width, on)});
    }
    head_ = &child<nn::Linear>("head", width, 1, on);
  }
  /// (N, width) -> (N, 1)
  Tensor operator()(Tensor x) {
    for (const Block& block : blocks_) {
      const Tensor h = (*block.up)(x);  // (N, 2 width)
      const Tensor image = reshape(h, {h.size(0), 1, 1, 2 * width_});
      const Tensor normal = reshape((*block.norm)(image), h.shape());
      x = add(x, (*block.down)((*block.drop)(gelu(normal))));
    }
    return (*head_)(x);
  }

 private:
  struct Block {
    nn::Linear* up;
    nn::BatchNorm2d* norm;
    nn::Dropout* drop;
    nn::Linear* down;
  };
  std::int64_t width_;
  std::vector<Block> blocks_;
  nn::Linear* head_;
};

struct Batch {
  Tensor x, y;  // (N, width), (N, 1)
};

struct Sizes {
  std::int64_t width = 96, depth = 6;
  /// Samples in the batch of a step.
  std::function<std::int64_t(std::int64_t step)> samples = [](std::int64_t) { return std::int64_t{800}; };
};

inline Batch make_batch(const Sizes& sizes, std::int64_t step, memory::Device device) {
  const std::int64_t n = sizes.samples(step);
  Batch batch{Tensor::empty({n, sizes.width}, DType::f32, device, memory::Category::input),
              Tensor::empty({n, 1}, DType::f32, device, memory::Category::input)};
  fill_normal(batch.x, 0, 1);
  fill_normal(batch.y, 0, 1);
  return batch;
}

using Program = nn::TrainedProgram<Net, Batch>;

inline Program program(const Sizes& sizes = {}) {
  Program program;
  program.model = [sizes](memory::Device device) { return std::make_unique<Net>(sizes.width, sizes.depth, device); };
  program.optimizer = [](Net& net) {
    optim::AdamOptions options;
    options.rate = 1e-3;
    return std::make_unique<optim::Adam>(net.trainable(), options);
  };
  program.loss = [](Net& net, const Batch& batch) { return mse_loss(net(batch.x), batch.y); };
  program.batch = [sizes](std::int64_t step, memory::Device device) { return make_batch(sizes, step, device); };
  program.evaluate = [sizes](Net& net, memory::Device device) {
    const Batch batch = make_batch(sizes, 0, device);
    return nn::read_value(mse_loss(net(batch.x), batch.y));
  };
  return program;
}

/// A generator and a judge of its samples, with an optimizer each, updated alternately.
struct Rivals {
  Rivals(std::int64_t width, std::int64_t depth, memory::Device device) {
    {
      const PathScope path("generator");
      generator = std::make_unique<Net>(width, depth, device);
    }
    const PathScope path("judge");
    judge = std::make_unique<Net>(width, depth, device);
    shift = std::make_unique<nn::Linear>(width, width, nn::TensorOptions{device});
  }
  std::vector<nn::Module*> modules() { return {generator.get(), judge.get(), shift.get()}; }
  /// (N, width) of noise -> (N, width)
  Tensor imitate(const Tensor& noise) { return (*shift)(mul(noise, (*generator)(noise))); }

  std::unique_ptr<Net> generator, judge;
  std::unique_ptr<nn::Linear> shift;
};

inline nn::TrainedProgram<Rivals, Batch> rivals(const Sizes& sizes) {
  nn::TrainedProgram<Rivals, Batch> program;
  program.model = [sizes](memory::Device device) { return std::make_unique<Rivals>(sizes.width, sizes.depth, device); };
  program.batch = [sizes](std::int64_t step, memory::Device device) { return make_batch(sizes, step, device); };
  const auto rate = [](double r) {
    optim::SgdOptions options;
    options.rate = r;
    options.momentum = 0.9;
    return options;
  };
  program.parts = {
      {"judge", [=](Rivals& nets) { return std::make_unique<optim::Sgd>(nets.judge->trainable(), rate(0.01)); },
       [](Rivals& nets, const Batch& batch) {
         const Tensor fake = nets.imitate(batch.x).detach();
         return mean(square((*nets.judge)(fake))) + mean(square(add((*nets.judge)(batch.x), -1.0)));
       }},
      {"generator",
       [=](Rivals& nets) {
         std::vector<optim::Named> leaves = nets.generator->trainable();
         for (optim::Named& p : nets.shift->trainable()) leaves.push_back({"shift." + p.name, p.tensor});
         return std::make_unique<optim::Sgd>(leaves, rate(0.02));
       },
       [](Rivals& nets, const Batch& batch) { return mean(square(add((*nets.judge)(nets.imitate(batch.x)), -1.0))); }}};
  return program;
}

}  // namespace own_program
