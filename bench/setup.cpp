#include <thimble/bench/setup.h>

#include <cmath>

#include <thimble/core/error.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace thimble::bench {
namespace setup_detail {

class Run final : public nn::TrainingRun {
 public:
  Run(const Setup& setup, Device device)
      : generator_(setup.seed),
        scope_(generator_),
        model_(models::make_model(setup.model, setup.sizes, {device, setup.dtype})),
        optimizer_(make_optimizer(setup, *model_)),
        batch_(model_->empty_batch(setup.batch, device)),
        options_{.clip_norm = clip_norm(setup, model_->is_text())} {}

  void step() override {
    nn::training_step(
        *optimizer_, [this](std::int64_t) { return model_->loss(batch_); }, options_);
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return model_->parameter_count(); }

 private:
  Generator generator_;
  GeneratorScope scope_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  models::Batch batch_;
  nn::StepOptions options_;
};

class Inference final : public nn::TrainingRun {
 public:
  Inference(const Setup& setup, Device device)
      : model_(models::make_model(setup.model, setup.sizes, {device, setup.dtype})),
        batch_(model_->empty_batch(setup.batch, device)) {
    model_->eval();
  }
  void step() override {
    const NoGrad off;
    model_->forward(batch_.input);
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return model_->parameter_count(); }

 private:
  std::unique_ptr<models::Model> model_;
  models::Batch batch_;
  nn::StepOptions options_;
};

}  // namespace setup_detail

std::string optimizer_name(const Setup& setup, bool is_text) {
  if (setup.optimizer.empty()) return is_text ? "adamw" : "momentum";
  for (const char* name : {"sgd", "momentum", "adam", "adamw"}) {
    if (setup.optimizer == name) return setup.optimizer;
  }
  throw ValueError("optimizer: '" + setup.optimizer + "' is not one of sgd, momentum, adam, adamw");
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const models::Model& model) {
  const std::string name = optimizer_name(setup, model.is_text());
  if (name == "sgd" || name == "momentum") {
    optim::SgdOptions options;
    options.rate = setup.rate < 0 ? 0.1 : setup.rate;
    options.momentum = name == "momentum" ? 0.9 : 0;
    if (setup.weight_decay >= 0) options.weight_decay = setup.weight_decay;
    if (setup.beta2 >= 0) throw ValueError("beta2: " + name + " has none; it belongs to adam and adamw");
    return std::make_unique<optim::Sgd>(model.trainable(), options);
  }
  optim::AdamOptions options;
  // Wide transformers want smaller steps: 3e-3 at width 128, 7.8e-4 at 768.
  const auto width = static_cast<double>(model.options().width);
  options.rate = model.is_text() ? 3e-3 * std::pow(128 / width, 0.75) : 1e-3;
  if (setup.rate >= 0) options.rate = setup.rate;
  options.is_decoupled = name == "adamw";
  if (options.is_decoupled) {
    options.beta2 = 0.99;
    options.weight_decay = 0.1;
    options.smallest_decayed_rank = 2;
  }
  if (setup.weight_decay >= 0) options.weight_decay = setup.weight_decay;
  if (setup.beta2 >= 0) options.beta2 = setup.beta2;
  return std::make_unique<optim::Adam>(model.trainable(), options);
}

double clip_norm(const Setup& setup, bool is_text) { return setup.clip_norm >= 0 ? setup.clip_norm : is_text ? 1 : 0; }

nn::MakeRun training_run(const Setup& setup) {
  return [setup](Device device) { return std::make_unique<setup_detail::Run>(setup, device); };
}

nn::MakeRun inference_run(const Setup& setup) {
  return [setup](Device device) { return std::make_unique<setup_detail::Inference>(setup, device); };
}

}  // namespace thimble::bench
