#include <thimble/models/training/training.h>

#include <algorithm>
#include <array>
#include <utility>

#include <thimble/autograd/functions/loss.h>
#include <thimble/core/error.h>
#include <thimble/core/numbers/philox.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/checkpoints.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/step/captured_step.h>
#include <thimble/nn/step/read.h>
#include <thimble/optim/schedule.h>

namespace thimble::models {
namespace {

Tensor random_classes(const Shape& shape, std::int64_t classes, memory::Device device) {
  if (device.is_dry) return zeros(shape, DType::i64, device, memory::Category::input);
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const PhiloxBlock bits = philox4x32({{static_cast<std::uint32_t>(i), 0, 0, 0}}, {{1, 2}});
    values[i] = bits.word[0] % classes;
  }
  return from_host(values, shape, device, memory::Category::input);
}

}  // namespace

BatchShare share_of(const Setup& setup) {
  if (setup.layout.ranks == 1) return {};
  return {data_rank(setup), data_ranks(setup), setup.micro_batches};
}

double rate_at(const RunOptions& options, double rate, std::int64_t step) {
  const std::int64_t warmup = options.warmup, total = options.steps;
  if (warmup < 0 || warmup > total) {
    throw ValueError("`warmup`: " + std::to_string(warmup) + " steps; expected 0 to " + std::to_string(total));
  }
  if (options.schedule == "cosine") return optim::cosine_rate(rate, step, warmup, total, options.min_rate);
  if (options.schedule != "constant" && options.schedule != "step") {
    throw ValueError("`schedule`: '" + options.schedule + "' is not one of constant, cosine, step");
  }
  if (step < warmup) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (options.schedule == "constant") return optim::constant_rate(rate, step);
  return std::max(options.min_rate, optim::step_rate(rate, step, std::max<std::int64_t>(1, (total + 2) / 3)));
}

nn::TrainerOptions trainer_options(const RunOptions& options, memory::Device device) {
  const Setup& setup = options.setup;
  rate_at(options, 1, 0);
  nn::TrainerOptions chosen;
  chosen.process_budget_bytes = options.process_budget_bytes;
  chosen.device = device;
  chosen.seed = setup.seed;
  chosen.steps = options.steps;
  chosen.evaluate_every = options.eval_every;
  chosen.step = counted_steps(setup, is_text(setup));
  chosen.step.fuses_optimizer = setup.fuses_optimizer ? nn::FusedUpdate::secured : nn::FusedUpdate::off;
  chosen.loss_scale = loss_scaling(setup);
  chosen.rate = [options, rate = optimizer_numbers(setup).rate](std::int64_t step) {
    return rate_at(options, rate, step);
  };
  chosen.offload.gradients = setup.offload.gradients;
  chosen.planner.make_tier = [setup](memory::Device on) { return make_tier(setup, on, "offloads_gradients"); };
  chosen.is_strict = options.is_strict;
  chosen.captures_steps = options.captures_steps;
  chosen.save = options.save;
  chosen.save_every = options.save_every;
  chosen.keep = options.keep;
  chosen.log = options.log;
  chosen.overwrites = options.overwrites;
  chosen.resume = options.resume;
  return chosen;
}

class ModelProgram::Run final : public nn::ProgramRun {
 public:
  Run(const ModelProgram& program, memory::Device device)
      : options_(program.options_),
        data_(program.data_),
        kept_(program.kept_),
        device_(device),
        parts_(program.options_.setup, device, program.options_.ranks) {}

  void make_optimizers() override {
    if (data_ != nullptr) return;
    const Setup& setup = options_.setup;
    batch_ = parts_.model->empty_batch(setup.batch / data_ranks(setup), device_);
    if (kept_ == KeptBatch::random) draw_batch();
  }
  optim::Optimizer& optimizer(std::size_t) override { return *parts_.optimizer; }
  std::vector<nn::Module*> modules() override { return {parts_.model.get()}; }
  void take_batch(std::int64_t step) override {
    if (data_ != nullptr) batch_ = data_->batch(step, device_, options_.setup.precision.dtype);
  }
  void drop_batch() noexcept override {
    if (data_ != nullptr) batch_ = {};
  }
  void load_batch(std::int64_t step) override {
    if (data_ == nullptr || device_.is_dry) return;
    const Batch next = data_->batch(step, cpu, options_.setup.precision.dtype);
    nn::load_input(batch_.input, next.input);
    nn::load_input(batch_.target, next.target);
    if (batch_.mask.defined()) nn::load_input(batch_.mask, next.mask);
    batch_.counts = next.counts;
  }
  void prepare_batch(std::int64_t step) override {
    if (data_ != nullptr) data_->prepare(step, options_.setup.precision.dtype);
  }
  std::vector<optim::MicroBatch> weights(std::int64_t count) override {
    if (data_ == nullptr || (count == 1 && parts_.ranks == nullptr)) return {};
    return micro_batches(batch_, count);
  }
  Tensor loss(std::size_t, std::int64_t index, std::int64_t count) override {
    return parts_.loss(micro_batch(batch_, index, count));
  }
  nn::Evaluation evaluate() override;
  void end(bool writes) override {
    if (writes) {
      save_weights();
    } else if (!options_.save_weights.empty()) {
      visit_save_weights();
    }
    if (options_.sample > 0) draw_sample();
  }
  dist::DataParallel* parallel() override { return parts_.parallel.get(); }
  optim::Pipeline* stage() override { return parts_.pipeline(); }
  nn::RankFiles rank_files() override;
  std::optional<nn::Metadata> metadata() override {
    if (data_ == nullptr) return std::nullopt;
    return metadata_of(options_, *data_, *parts_.model);
  }

  ModelParts& parts() noexcept { return parts_; }
  bool can_sample() const { return parts_.model->is_text() && !parts_.model->is_masked(); }
  const std::vector<std::int64_t>& sample() const noexcept { return sample_; }

 private:
  void save_weights();
  void draw_sample();
  void draw_batch();
  void visit_save_weights();
  Tensor evaluated(Batch part);

  const RunOptions& options_;
  Dataset* data_;
  KeptBatch kept_;
  memory::Device device_;
  ModelParts parts_;
  Batch batch_;
  std::vector<std::int64_t> sample_;
  nn::WholeState whole_;
  std::vector<nn::StageOutline> later_;
  std::vector<nn::NamedTensor> others_;
};

std::unique_ptr<nn::ProgramRun> ModelProgram::make(memory::Device device) const {
  return std::make_unique<Run>(*this, device);
}

/// All batches have the shapes of the setup.
nn::BatchOutline ModelProgram::outline(std::int64_t, memory::Device, std::int64_t) const {
  nn::BatchOutline outline;
  outline.shapes = std::to_string(options_.setup.batch) + " samples";
  return outline;
}

/// Replaces zeros by random values.
void ModelProgram::Run::draw_batch() {
  const Model& model = *parts_.model;
  const std::int64_t classes = model.is_text() ? model.options().vocabulary : model.options().classes;
  batch_.target = random_classes(batch_.target.shape(), classes, device_);
  batch_.input = model.is_text() ? random_classes(batch_.input.shape(), classes, device_)
                                 : randn(batch_.input.shape(), options_.setup.precision.dtype, device_);
}

/// Scores (N, K) of images, or the mean loss over tokens; undefined on all stages of a pipeline but the last.
Tensor ModelProgram::Run::evaluated(Batch part) {
  dist::PipelineStage* const stage = parts_.stage.get();
  const auto through = [&](Model& piece) { return piece.is_text() ? piece.loss(part) : piece.forward(part.input); };
  if (stage == nullptr) return through(*parts_.model);
  for (std::size_t chunk = 0; chunk < parts_.pieces.size(); ++chunk) {  // in order, as on all ranks
    if (!stage->is_first(chunk)) part.input = stage->receive(chunk, part.target.size(0));
    const Tensor result = through(*parts_.pieces[chunk]);
    if (stage->is_last(chunk)) return result;
    stage->send(result);
  }
  return Tensor();
}

nn::Evaluation ModelProgram::Run::evaluate() {
  const std::int64_t all = data_->validation_batches();
  const std::int64_t count = options_.eval_batches > 0 ? std::min(all, options_.eval_batches) : all;
  double loss = 0;
  // Samples of a step's micro-batch.
  const std::int64_t most = options_.setup.batch / (data_ranks(options_.setup) * options_.setup.micro_batches);
  std::int64_t samples = 0, correct = 0;
  const memory::Arena* const arena = device_.is_dry ? memory::Arena::find(*current_resource(device_)) : nullptr;
  std::uint64_t layout = 0, of_parts = 0;
  bool is_settled = false;
  // All but the last have equal samples: once one leaves the arena as it was before, the next needs no more.
  const auto leaves_as_before = [&](std::uint64_t& known, bool is_first) {
    const std::uint64_t before = std::exchange(known, arena->layout_digest());
    return !is_first && known == before;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    if (is_settled && i + 1 < count) continue;
    const ParameterUse use;
    const Batch batch = data_->validation_batch(i, device_, options_.setup.precision.dtype);
    const std::int64_t all_samples = batch.target.size(0);
    bool is_part_settled = false;
    for (std::int64_t begin = 0; begin < all_samples; begin += most) {
      const std::int64_t end = std::min(begin + most, all_samples);
      if (is_part_settled && end < all_samples) continue;
      const Batch part = slice_samples(batch, begin, end);
      samples += end - begin;
      if (Tensor result = evaluated(part); result.defined()) {
        if (!parts_.model->is_text()) {  // scores (N, K)
          correct += count_correct(result, part.target);
          result = cross_entropy(result, part.target);
        }
        loss += nn::read_value(result) * static_cast<double>(end - begin);
      }
      if (arena != nullptr) is_part_settled = leaves_as_before(of_parts, begin == 0);
    }
    if (arena == nullptr) continue;
    is_settled = leaves_as_before(layout, i == 0);
  }
  if (parts_.stage != nullptr) {
    parts_.stage->end_passes();
    std::array<double, 2> of_last{loss, static_cast<double>(correct)};
    parts_.stage->share_numbers(of_last.data(), of_last.size());
    loss = of_last[0];
    correct = static_cast<std::int64_t>(of_last[1]);
  }
  nn::Evaluation evaluation{loss / static_cast<double>(samples), std::nullopt};
  if (!parts_.model->is_text()) evaluation.accuracy = static_cast<double>(correct) / static_cast<double>(samples);
  return evaluation;
}

nn::RankFiles ModelProgram::Run::rank_files() {
  const Setup& setup = options_.setup;
  if (whole_.empty()) {
    whole_ = models::whole_state(setup, device_);
    if (setup.layout.rank == 0 && setup.layout.pp > 1) later_ = later_stages(setup, device_);
    others_ = tensors_of_others(setup, device_, *parts_.model);
  }
  return {whole_, later_, others_};
}

void ModelProgram::Run::visit_save_weights() {
  if (parts_.parallel == nullptr) return nn::visit_save_weights(*parts_.model);
  nn::visit_save_weights(*parts_.model, *parts_.parallel, rank_files().later);
}

void ModelProgram::Run::save_weights() {
  const Setup& setup = options_.setup;
  if (!options_.save_adapters.empty() && setup.layout.rank == 0) {
    nn::save_adapters(*parts_.model, options_.save_adapters, adapter_files(setup, *parts_.model));
  }
  if (options_.save_weights.empty()) return;
  const nn::Metadata metadata = metadata_of(options_, *data_, *parts_.model);
  if (parts_.parallel == nullptr) return nn::save_weights(*parts_.model, options_.save_weights, metadata);
  nn::save_weights(options_.save_weights, *parts_.model, *parts_.parallel, metadata, rank_files().later);
}

/// Tokens that the model generates after token 0.
void ModelProgram::Run::draw_sample() {
  Model& model = *parts_.model;
  const ParameterUse use;
  // The context grows up to the model's sequence; from then on every token needs the same bytes.
  const std::int64_t count = device_.is_dry ? std::min(options_.sample, model.options().sequence + 1) : options_.sample;
  sample_ = generate(model, {0}, count, 0.8, 0, options_.setup.seed);
  sample_.erase(sample_.begin());  // the prompt
}

namespace {

RunOptions of_kept_batch(const Setup& setup) {
  RunOptions options;
  options.setup = setup;
  return options;
}

nn::TrainerOptions without_schedule(nn::TrainerOptions options) {
  options.rate = nullptr;
  return options;
}

}  // namespace

Training::Training(const RunOptions& options, Dataset& data, memory::Device device, const nn::Plan& plan,
                   std::int64_t first_step)
    : TrainingProgram{ModelProgram(options, data), trainer_options(options, device)},
      nn::TrainerRun(named, chosen, device, {.is_scheduled = true, .updates = first_step}, first_step) {
  plan.apply(nn::TrainerRun::options(), device);
}

Training::Training(const Setup& setup, KeptBatch batch, memory::Device device)
    : TrainingProgram{ModelProgram(setup, batch), without_schedule(trainer_options(of_kept_batch(setup), device))},
      nn::TrainerRun(named, chosen, device, {.reads_losses = false}) {}

ModelProgram::Run& Training::run() { return static_cast<ModelProgram::Run&>(program()); }
Model& Training::model() { return *run().parts().model; }
dist::Communicator::Volume Training::volume() { return run().parts().volume(); }
bool Training::can_sample() { return run().can_sample(); }
const std::vector<std::int64_t>& Training::sample() { return run().sample(); }

nn::MakeRun Engine::runs() const { return runs(plan_); }

nn::MakeRun Engine::runs(const nn::Plan& plan) const {
  return [this, &plan](memory::Device device) {
    return std::make_unique<Training>(options_, *data_, device, plan, first_step_);
  };
}

nn::MakeRun zero_batch_run(const Setup& setup) {
  return [setup](memory::Device device) { return std::make_unique<Training>(setup, KeptBatch::zeros, device); };
}

nn::MakeRun random_run(const Setup& setup) {
  return [setup](memory::Device device) { return std::make_unique<Training>(setup, KeptBatch::random, device); };
}

}  // namespace thimble::models
