#pragma once
// A small training run for tests; its whole state can be copied out, compared bytewise and put back.

#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/accumulate.h>

#include "tensor_bytes.h"

/// All that a step may change: bytes of parameters, buffers and optimizer state, and two counters.
struct TrainingState {
  std::vector<std::vector<std::byte>> tensors;
  std::int64_t updates = 0;
  std::uint64_t generator_step = 0;

  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

class SmallTraining {
 public:
  struct Options {
    const char* model = "char-gpt";  ///< or "resnet18"
    const char* optimizer = "adamw";
    bool recomputes = false;
    std::int64_t micro_batches = 1;
    std::int64_t samples = 2;  ///< per micro-batch
    std::int64_t width = 0;    ///< defaults to the smallest possible
    std::int64_t length = 0;   ///< tokens of a sequence, or sides of an image; defaults to the smallest possible
  };

  explicit SmallTraining(const Options& options, thimble::memory::Device device = thimble::cpu)
      : options_(options), generator_(7), scope_(generator_) {
    thimble::models::Setup setup;
    setup.model = options.model;
    setup.optimizer.name = options.optimizer;
    setup.batch = options.samples;
    const auto or_else = [](std::int64_t given, std::int64_t smallest) { return given > 0 ? given : smallest; };
    setup.sizes.width = or_else(options.width, is_gpt() ? 16 : 2);
    if (is_gpt()) {
      setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.sequence = or_else(options.length, 4);
      setup.sizes.vocabulary = 11, setup.sizes.dropout = 0.1;
    } else {
      setup.sizes.image = or_else(options.length, 8);
    }
    model_ = thimble::models::make_model(setup.model, setup.sizes, {device, thimble::DType::f32});
    if (is_gpt()) dynamic_cast<thimble::models::Gpt&>(*model_).recompute_blocks(options.recomputes);
    optimizer_ = thimble::models::make_optimizer(setup, *model_);
    for (std::int64_t i = 0; i < options.micro_batches; ++i) {
      batches_.push_back(model_->empty_batch(setup.batch, device));
      if (!device.is_dry) fill_batch(batches_.back(), i);
    }
  }

  /// Gradients of the batch, as bytes; the next step is not affected.
  std::vector<std::vector<std::byte>> gradients() {
    std::vector<std::vector<std::byte>> list;
    const thimble::tape::Transaction dropped;  // takes the gradients with it
    thimble::optim::accumulate_gradients(options_.micro_batches, options_.samples,
                                         [this](std::int64_t i) { return loss_of(i); });
    for (const auto& p : model_->trainable()) list.push_back(thimble::testing::bytes_of(p.tensor.grad()));
    optimizer_->zero_grad();
    return list;
  }

  /// One training step; returns the loss without reading it.
  thimble::Tensor step() {
    thimble::nn::StepOptions options;
    options.clip_norm = is_gpt() ? 1 : 0;
    options.micro_batches = options_.micro_batches;
    options.micro_samples = options_.samples;
    return thimble::nn::training_step(
        *optimizer_, [this](std::int64_t i) { return loss_of(i); }, options);
  }

  TrainingState state() const {
    TrainingState state;
    for (const thimble::Tensor& t : tensors()) state.tensors.push_back(thimble::testing::bytes_of(t));
    state.updates = optimizer_->step_count();
    state.generator_step = generator_.step();
    return state;
  }

  void restore(const TrainingState& state) {
    const std::vector<thimble::Tensor> list = tensors();
    for (std::size_t i = 0; i < list.size(); ++i) {
      thimble::testing::put_bytes(list[i], state.tensors[i].data());
    }
    optimizer_->set_step_count(state.updates);
    generator_.set_step(state.generator_step);
  }

  bool has_gradient() const {
    for (const auto& p : model_->trainable()) {
      if (p.tensor.grad().defined()) return true;
    }
    return false;
  }

 private:
  bool is_gpt() const { return std::string(options_.model) == "char-gpt"; }

  thimble::Tensor loss_of(std::int64_t i) {
    const thimble::models::Batch& batch = batches_[static_cast<std::size_t>(i)];
    if (is_gpt() || !options_.recomputes) return model_->loss(batch);
    return thimble::checkpoint([&](const thimble::Tensor& x) { return model_->loss({x, batch.target}); }, batch.input);
  }

  std::vector<thimble::Tensor> tensors() const {
    std::vector<thimble::Tensor> list;
    for (const auto& p : model_->parameters()) list.push_back(p.tensor);
    for (const auto& b : model_->buffers()) list.push_back(b.tensor);
    for (const auto& s : optimizer_->state()) list.push_back(s.tensor);
    return list;
  }

  /// Values differ from sample to sample; draws no random numbers.
  void fill_batch(const thimble::models::Batch& batch, std::int64_t index) {
    const auto fill_ids = [&](const thimble::Tensor& t, std::int64_t kinds) {
      std::vector<std::int64_t> values(static_cast<std::size_t>(t.elements()));
      for (std::int64_t i = 0; i < t.elements(); ++i) {
        values[static_cast<std::size_t>(i)] = (i * i * 7 + i + index * 5) % kinds;
      }
      thimble::testing::put_bytes(t, values.data());
    };
    if (is_gpt()) {
      fill_ids(batch.input, 11);
      fill_ids(batch.target, 11);
      return;
    }
    std::vector<float> pixels(static_cast<std::size_t>(batch.input.elements()));
    for (std::int64_t i = 0; i < batch.input.elements(); ++i) {
      pixels[static_cast<std::size_t>(i)] = static_cast<float>((i * 37 + index * 11) % 101) / 50 - 1;
    }
    thimble::testing::put_bytes(batch.input, pixels.data());
    fill_ids(batch.target, 10);
  }

  Options options_;
  thimble::RandomGenerator generator_;
  thimble::GeneratorScope scope_;
  std::unique_ptr<thimble::models::Model> model_;
  std::unique_ptr<thimble::optim::Optimizer> optimizer_;
  std::vector<thimble::models::Batch> batches_;
};
