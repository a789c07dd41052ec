#include <thimble/models/training/random_run.h>

#include <utility>
#include <vector>

#include <thimble/core/random/philox.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::models {
namespace random_run_detail {

Tensor random_classes(const Shape& shape, std::int64_t classes, memory::Device device) {
  if (device.is_dry) return zeros(shape, DType::i64, device, Category::input);
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const PhiloxBlock bits = philox4x32({{static_cast<std::uint32_t>(i), 0, 0, 0}}, {{1, 2}});
    values[i] = bits.word[0] % classes;
  }
  return from_host(values, shape, device, Category::input);
}

class Run final : public nn::TrainingRun {
 public:
  Run(const Setup& setup, memory::Device device)
      : setup_(setup),
        generator_(setup.seed),
        scope_(generator_),
        model_(make_model(setup, device)),
        scaler_(make_scaler(setup)),
        batch_(model_->empty_batch(setup.batch, device)),
        options_(step_options(setup, model_->is_text(), device)) {
    options_.scaler = scaler_.get();
    const ModelOptions& sizes = model_->options();
    const std::int64_t classes = model_->is_text() ? sizes.vocabulary : sizes.classes;
    batch_.target = random_classes(batch_.target.shape(), classes, device);
    batch_.input = model_->is_text() ? random_classes(batch_.input.shape(), classes, device)
                                     : randn(batch_.input.shape(), setup.dtype, device);
  }
  void step() override {
    if (!optimizer_) optimizer_ = make_optimizer(setup_, *model_);
    nn::training_step(
        *optimizer_, [this](std::int64_t i) { return model_->loss(micro_batch(batch_, i, options_.micro_batches)); },
        options_);
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return model_->parameter_count(); }

 private:
  Setup setup_;
  RandomGenerator generator_;
  GeneratorScope scope_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradScaler> scaler_;
  Batch batch_;
  nn::StepOptions options_;
};

}  // namespace random_run_detail

nn::MakeRun random_run(const Setup& setup) {
  return [setup](memory::Device device) { return std::make_unique<random_run_detail::Run>(setup, device); };
}

}  // namespace thimble::models
