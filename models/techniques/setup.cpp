#include <thimble/models/techniques/setup.h>

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/shard_store.h>
#include <thimble/memory/offload/tier_store.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/models/pieces.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/nn/quant/weight_only.h>

namespace thimble::models {

bool is_text(const Setup& setup) {
  const std::string_view family = model_family(setup.model);
  return family == "gpt" || family == "llama" || family == "bert";
}

namespace {

class Inference final : public nn::TrainingRun {
 public:
  Inference(const Setup& setup, memory::Device device)
      : model_(make_model(setup.model, setup.sizes, tensor_options(setup, device))),
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
  std::unique_ptr<Model> model_;
  Batch batch_;
  nn::StepOptions options_;
};

}  // namespace

std::unique_ptr<Model> make_stage(const Setup& setup, const dist::StagePlace& place, const nn::TensorOptions& on,
                                  dist::Communicator* group) {
  ModelOptions sizes = setup.sizes;
  sizes.group = {group_size(setup), group, setup.layout.sequence_parallel || setup.layout.cp > 1, setup.layout.cp > 1};
  sizes.stage = place;
  return make_model(setup.model, sizes, on);
}

std::unique_ptr<Model> make_model(const Setup& setup, memory::Device device, dist::Communicator* ranks,
                                  dist::Communicator* group) {
  const memory::UnitOptions away{.read_ahead = setup.offload.read_ahead};
  std::shared_ptr<ParameterStore> store;
  if (ranks != nullptr && setup.layout.zero == 3) store = std::make_shared<dist::ShardStore>(*ranks, away);
  if (setup.offload.parameters) {
    store = std::make_shared<memory::TierStore>(make_tier(setup, device, "offloads_parameters"), away);
  }
  const ParameterStoreScope scope(store);
  nn::TensorOptions on = tensor_options(setup, device);
  if (const auto code = base_code(setup)) on.coded_weights = std::make_shared<nn::quant::CodedStore>(*code);
  std::unique_ptr<Model> model = make_stage(setup, stage_of(setup), on, group);
  if (setup.layout.chunks > 1 && !model->options().stage.has_all) {
    std::vector<std::unique_ptr<Model>> pieces;
    pieces.push_back(std::move(model));
    for (int chunk = 1; chunk < setup.layout.chunks; ++chunk) {
      pieces.push_back(make_stage(setup, stage_of(setup, chunk), on, group));
    }
    const PathScope path(pieces.front()->path());
    model = std::make_unique<Pieces>(std::move(pieces));
  }
  if (setup.recomputes_blocks) model->recompute_blocks();
  begin_fine_tuning(setup, *model, device);
  return model;
}

double clip_norm(const Setup& setup, bool is_text) {
  if (setup.optimizer.clip_norm >= 0) return setup.optimizer.clip_norm;
  return is_text && !setup.fuses_optimizer ? 1 : 0;
}

std::int64_t whole_batch(const Setup& setup, std::int64_t batch) {
  const std::int64_t parts = data_ranks(setup) * std::max<std::int64_t>(1, setup.micro_batches);
  return (batch + parts - 1) / parts * parts;
}

nn::StepOptions counted_steps(const Setup& setup, bool is_text) {
  check_techniques(setup, is_text);
  if (setup.micro_batches == auto_micro_batches) {
    throw ValueError("`micro_batches`: auto needs a budget to choose for; expected a number");
  }
  nn::StepOptions options;
  options.clip_norm = clip_norm(setup, is_text);
  options.micro_batches = setup.micro_batches;
  options.micro_samples = setup.batch / (data_ranks(setup) * setup.micro_batches);
  return options;
}

nn::StepOptions step_options(const Setup& setup, bool is_text, memory::Device device) {
  nn::StepOptions options = counted_steps(setup, is_text);
  if (setup.offload.gradients) options.gradient_tier = make_tier(setup, device, "offloads_gradients");
  if (setup.fuses_optimizer) {
    const bool is_placed = memory::PlacedArena::find(*current_resource(device)) != nullptr;
    options.fuses_optimizer = is_placed ? nn::FusedUpdate::secured : nn::FusedUpdate::unsecured;
  }
  return options;
}

nn::MakeRun inference_run(const Setup& setup) {
  return [setup](memory::Device device) { return std::make_unique<Inference>(setup, device); };
}

}  // namespace thimble::models
