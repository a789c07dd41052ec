// The program of every consumer, however it got the library: trains a small network with a user-defined operator, with
// and without activation checkpointing, and compares the two runs. Included after the library.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace consumer {

/// y = x sigmoid(x): an operator that the library does not know. Keeps x.
struct Silu {
  static constexpr const char* name = "consumer_silu";
  template <class T>
  T fwd(T x) const {
    return x * thimble::math::sigmoid(x);
  }
  template <class T>
  T bwd(thimble::functor::In<T> x, T dy) const {
    const T s = thimble::math::sigmoid(T(x));
    return dy * (s + x * s * (T(1) - s));
  }
};

inline constexpr std::int64_t width = 32;

class Network : public thimble::nn::Module {
 public:
  explicit Network(bool is_checkpointed) : is_checkpointed_(is_checkpointed) {
    in_ = &child<thimble::nn::Linear>("in", 2, width);
    for (int i = 0; i < 6; ++i) hidden_.push_back(&child<thimble::nn::Linear>("h" + std::to_string(i), width, width));
    out_ = &child<thimble::nn::Linear>("out", width, 2);
  }

  /// (N, 2) -> (N, 2)
  thimble::Tensor forward(const thimble::Tensor& points) {
    thimble::Tensor x = thimble::apply<Silu>((*in_)(points));  // (N, width)
    for (std::size_t i = 0; i < hidden_.size(); i += 2) {
      const auto block = [&](const thimble::Tensor& t) {
        return thimble::apply<Silu>((*hidden_[i + 1])(thimble::apply<Silu>((*hidden_[i])(t))));
      };
      x = is_checkpointed_ ? thimble::checkpoint(block, x) : block(x);
    }
    return (*out_)(x);
  }

 private:
  bool is_checkpointed_;
  thimble::nn::Linear *in_, *out_;
  std::vector<thimble::nn::Linear*> hidden_;
};

struct Run {
  std::vector<double> losses;
  std::vector<float> weights;        // of the last layer
  std::size_t peak_activations = 0;  // bytes kept for backward; in a budget, of everything
};

/// Learns which points of a square lie inside a circle.
inline Run train(bool is_checkpointed) {
  thimble::RandomGenerator generator(7);
  const thimble::GeneratorScope draws(generator);
  const thimble::memory::Stack memory = thimble::memory::make_resource(thimble::cpu);
  const thimble::ResourceScope bytes(memory.top);

  constexpr std::int64_t samples = 256;
  std::vector<float> points;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < samples; ++i) {
    const float a = static_cast<float>(i * 97 % samples) / 128 - 1, b = static_cast<float>(i) / 128 - 1;
    points.insert(points.end(), {a, b});
    labels.push_back(a * a + b * b < 0.6f ? 1 : 0);
  }
  const thimble::Tensor x = thimble::from_host(points, {samples, 2});
  const thimble::Tensor y = thimble::from_host(labels, {samples});

  Network network(is_checkpointed);
  thimble::optim::Adam optimizer(network.trainable(), {.rate = 5e-3});
  Run run;
  for (int step = 0; step < 50; ++step) {
    const thimble::Tensor loss = thimble::nn::training_step(
        optimizer, [&](std::int64_t) { return thimble::cross_entropy(network.forward(x), y); });
    run.losses.push_back(thimble::item(loss));
  }
  run.weights = thimble::to_host<float>(network.parameters().back().tensor);
  run.peak_activations = memory.ledger->max_allocated(thimble::memory::Category::activation);
  return run;
}

struct Points {
  thimble::Tensor x, y;  // (N, 2), (N)
};

/// Trains in a budget: the losses and weights of `steps` steps, from a checkpoint or from the beginning. Every call
/// writes a checkpoint.
inline Run train_in_budget(std::int64_t steps, std::size_t budget, const std::string& save, const std::string& resume) {
  namespace nn = thimble::nn;
  nn::TrainerOptions options;
  options.budget_bytes = budget;
  options.seed = 3;
  options.steps = steps;
  options.save = save;
  options.resume = resume;
  nn::Trainer<Network, Points> trainer(
      {.model = [](thimble::memory::Device) { return std::make_unique<Network>(false); },
       .optimizer =
           [](Network& net) {
             return std::make_unique<thimble::optim::Adam>(net.trainable(), thimble::optim::AdamOptions{.rate = 5e-3});
           },
       .loss = [](Network& net,
                  const Points& points) { return thimble::cross_entropy(net.forward(points.x), points.y); },
       .batch =
           [](std::int64_t step, thimble::memory::Device device) {
             std::vector<float> x;
             std::vector<std::int64_t> y;
             for (std::int64_t i = 0; i < 64; ++i) {
               x.insert(x.end(),
                        {static_cast<float>((i * 37 + step * 11) % 64) / 32 - 1, static_cast<float>(i) / 32 - 1});
               y.push_back(x[x.size() - 2] > x.back() ? 1 : 0);
             }
             return Points{thimble::from_host(x, {64, 2}, device), thimble::from_host(y, {64}, device)};
           }},
      options);
  Run run;
  trainer.run([&](const nn::Progress& progress) { run.losses.push_back(progress.loss); });
  run.weights = thimble::to_host<float>(trainer.model().parameters().back().tensor);
  run.peak_activations = trainer.peak_bytes();
  return run;
}

/// A run that stops after 7 of 12 steps and resumes from its checkpoint has the bits of an uninterrupted one.
inline bool survives_a_checkpoint() {
  const std::string path = "consumer.ckpt";
  const std::size_t budget = 4 << 20;
  const Run whole = train_in_budget(12, budget, path, "");
  const Run first = train_in_budget(7, budget, path, ""), rest = train_in_budget(12, budget, path, path);
  std::filesystem::remove(path);
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  return whole.peak_activations <= budget && losses == whole.losses && rest.weights == whole.weights;
}

inline int run() {
  const Run plain = train(false), checkpointed = train(true);
  std::printf("thimble %s: loss %.3f -> %.3f, activations %zu bytes, checkpointed %zu bytes\n", THIMBLE_VERSION,
              plain.losses.front(), plain.losses.back(), plain.peak_activations, checkpointed.peak_activations);
  const struct {
    const char* what;
    bool holds;
  } claims[] = {
      {"the loss falls", plain.losses.back() < 0.5 * plain.losses.front()},
      {"checkpointing changes no bit", plain.losses == checkpointed.losses && plain.weights == checkpointed.weights},
      {"checkpointing keeps less", checkpointed.peak_activations < plain.peak_activations},
      {"a run in a budget survives its checkpoint", survives_a_checkpoint()},
  };
  int failures = 0;
  for (const auto& claim : claims) {
    if (!claim.holds) std::printf("FAILED: %s\n", claim.what);
    failures += claim.holds ? 0 : 1;
  }
  return failures;
}

}  // namespace consumer
