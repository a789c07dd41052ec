#include <thimble/models/planning/planned_run.h>

#include <thimble/models/images.h>
#include <thimble/models/training/training.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/models/weights/follow_weights.h>

namespace thimble::models {
namespace planned_run_detail {

/// Data without values: batches are zeros with the bytes of real ones.
class Outline final : public Dataset {
 public:
  /// Batches of `samples`; in the last of `validation_batches` there are `last_samples`.
  Outline(bool is_text, ModelOptions sizes, std::int64_t samples, std::int64_t validation_batches,
          std::int64_t last_samples)
      : is_text_(is_text),
        sizes_(sizes),
        samples_(samples),
        validation_batches_(validation_batches),
        last_samples_(last_samples) {}

  void fit(ModelOptions&) const override {}
  void open(const ModelOptions&, std::int64_t, std::uint64_t) override {}
  Batch batch(std::int64_t, memory::Device device, DType dtype) const override {
    return make(samples_ / share().ranks, device, dtype);
  }
  std::int64_t validation_batches() const override { return validation_batches_; }
  Batch validation_batch(std::int64_t index, memory::Device device, DType dtype) const override {
    return make(index + 1 == validation_batches_ ? last_samples_ : samples_, device, dtype);
  }
  std::int64_t items_per_sample() const override { return is_text_ ? sizes_.sequence : 1; }
  std::string decode(const std::vector<std::int64_t>&) const override { return {}; }

 private:
  Batch make(std::int64_t samples, memory::Device device, DType dtype) const {
    return is_text_ ? empty_token_batch(sizes_, samples, device) : empty_image_batch(sizes_, samples, dtype, device);
  }

  bool is_text_;
  ModelOptions sizes_;
  std::int64_t samples_, validation_batches_, last_samples_;
};

}  // namespace planned_run_detail

PlannedRuns::PlannedRuns(Setup& setup, memory::Device device, const std::string& data) : device_(device) {
  if (!setup.weights.empty()) {
    follow_weights(setup.model, setup.sizes, read_weight_facts(setup.weights), WeightUse::training);
  }
  if (data.empty() && !setup.tokenizer.empty()) {
    throw ValueError("`tokenizer`: '" + setup.tokenizer + "' has no text to read; expected `data` beside it");
  }
  if (data.empty()) return;
  const auto model = make_model(setup.model, setup.sizes, tensor_options(setup, dry(device)));
  data_ = open_dataset(data, *model, setup.model, setup.seed, setup.tokenizer);
  data_->fit(setup.sizes);
}

nn::MakeRun PlannedRuns::of(const Setup& setup) const {
  const memory::Device on = dry(device_);
  const auto model = make_model(setup.model, setup.sizes, tensor_options(setup, on));
  std::int64_t batches = 1, last_samples = setup.batch;
  if (data_ != nullptr) {
    data_->set_share(share_of(setup));
    data_->open(model->options(), setup.batch, setup.seed);
    batches = data_->validation_batches();
    last_samples = data_->validation_batch(batches - 1, on, setup.dtype).target.size(0);
  }
  const auto prepared = std::make_shared<PreparedTraining>();
  prepared->options.setup = setup;
  prepared->options.device = device_;
  prepared->is_text = model->is_text();
  prepared->data = std::make_unique<planned_run_detail::Outline>(prepared->is_text, model->options(), setup.batch,
                                                                 batches, last_samples);
  prepared->data->set_share(share_of(setup));
  return [prepared](memory::Device device) { return training_program(*prepared)(device); };
}

}  // namespace thimble::models
