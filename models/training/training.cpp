#include <thimble/models/training/training.h>

#include <algorithm>
#include <array>
#include <utility>

#include <thimble/autograd/functions/loss.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/training/checkpoints.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/step/read.h>
#include <thimble/optim/schedule.h>

namespace thimble::models {
namespace training_detail {

// Rows of (N, K) scores whose largest is at the row's target.
std::int64_t count_correct(const std::vector<float>& scores, const std::vector<std::int64_t>& targets) {
  const std::size_t classes = scores.size() / targets.size();
  std::int64_t correct = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto row = scores.begin() + static_cast<std::ptrdiff_t>(i * classes);
    const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(classes)) - row;
    correct += best == targets[i] ? 1 : 0;
  }
  return correct;
}

// A captured step repeats the weights of its micro-batches.
void require_equal_parts(const Batch& batch, std::int64_t count) {
  const std::vector<optim::MicroBatch> parts = micro_batches(batch, count);
  if (std::any_of(parts.begin(), parts.end(), [&](const optim::MicroBatch& part) { return !(part == parts[0]); })) {
    throw PlanError(
        "training: the micro-batches of a step that is recorded must have as many targets that count as "
        "each other; steps that are not recorded may differ");
  }
}

}  // namespace training_detail

BatchShare share_of(const Setup& setup) {
  if (setup.ranks == 1) return {};
  return {data_rank(setup), data_ranks(setup), setup.micro_batches};
}

double rate_at(const TrainOptions& options, double rate, std::int64_t step) {
  const std::int64_t warmup = options.warmup, total = options.steps;
  if (warmup < 0 || warmup > total) {
    throw ValueError("`warmup`: " + std::to_string(warmup) + " steps; 0 to " + std::to_string(total) + " are allowed");
  }
  if (options.schedule == "cosine") return optim::cosine_rate(rate, step, warmup, total, options.min_rate);
  if (options.schedule != "constant" && options.schedule != "step") {
    throw ValueError("`schedule`: '" + options.schedule + "' is not one of constant, cosine, step");
  }
  if (step < warmup) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (options.schedule == "constant") return optim::constant_rate(rate, step);
  return std::max(options.min_rate, optim::step_rate(rate, step, std::max<std::int64_t>(1, (total + 2) / 3)));
}

Training::Training(const TrainOptions& options, Dataset& data, memory::Device device, const nn::Plan& plan)
    : options_(options),
      data_(data),
      device_(device),
      parts_(options.setup, device, options.ranks),
      rate_(parts_.optimizer->rate()),
      placed_(PlacedArena::find(*current_resource(device))) {
  plan.apply(parts_.options, device);
}

void Training::prepare_steps() {
  if (options_.captures_steps) batch_ = data_.batch(0, device_, options_.setup.dtype);
}

void Training::rest() noexcept {
  if (recorded_) recorded_->drop();
  if (placed_ != nullptr) placed_->release_region();
}

double Training::captured_step(std::int64_t step) {
  if (!device_.is_dry) {
    const Batch next = data_.batch(step, cpu, options_.setup.dtype);
    training_detail::require_equal_parts(next, parts_.options.micro_batches);
    nn::load_input(batch_.input, next.input);
    nn::load_input(batch_.target, next.target);
    if (batch_.mask.defined()) nn::load_input(batch_.mask, next.mask);
  }
  const auto loss_of = [this](std::int64_t i) {
    return parts_.loss(micro_batch(batch_, i, parts_.options.micro_batches));
  };
  if (placed_ == nullptr) {
    if (!device_.is_dry) throw PlanError("training: no placed arena is there to record steps in; it needs one");
    nn::training_step(*parts_.optimizer, loss_of, parts_.options);
    return 0;
  }
  if (!recorded_) recorded_ = std::make_unique<nn::CapturedStep>(*placed_, *parts_.optimizer, loss_of, parts_.options);
  const Tensor loss = recorded_->run();
  captured_launches_ = recorded_->launches();
  prepare_next(step);
  return nn::read_value(loss);
}

double Training::step(std::int64_t step) {
  parts_.optimizer->set_rate(rate_at(options_, rate_, step));
  if (options_.captures_steps) return captured_step(step);
  const Batch batch = data_.batch(step, device_, options_.setup.dtype);
  if (parts_.options.micro_batches > 1 || parts_.ranks != nullptr) {
    parts_.options.parts = micro_batches(batch, parts_.options.micro_batches);
  }
  const Tensor loss = nn::training_step(
      *parts_.optimizer,
      [&](std::int64_t i) { return parts_.loss(micro_batch(batch, i, parts_.options.micro_batches)); }, parts_.options);
  prepare_next(step);
  return nn::read_value(loss);
}

void Training::prepare_next(std::int64_t step) {
  if (device_.is_cuda() && !device_.is_dry && step + 1 < options_.steps) data_.prepare(step + 1, options_.setup.dtype);
}

Tensor Training::evaluated(Batch part) {
  dist::PipelineStage* const stage = parts_.stage.get();
  const auto through = [&](Model& piece) { return piece.is_text() ? piece.loss(part) : piece.forward(part.input); };
  if (stage == nullptr) return through(*parts_.model);
  for (std::size_t chunk = 0; chunk < parts_.pieces.size(); ++chunk) {  // one after the other, as those of other ranks
    if (!stage->is_first(chunk)) part.input = stage->receive(chunk, part.target.size(0));
    const Tensor result = through(*parts_.pieces[chunk]);
    if (stage->is_last(chunk)) return result;
    stage->send(result);
  }
  return Tensor();
}

void Training::train_step(std::int64_t step, nn::Progress& progress) {
  const bool begins = placed_ != nullptr && !options_.captures_steps;  // captured steps begin and end themselves
  if (begins) placed_->begin_step(steps_taken_++);
  progress.loss = this->step(step);
  progress.losses = {progress.loss};
  progress.rate = parts_.optimizer->rate();
  if (!begins) return;
  placed_->end_step();
  placed_->require_kept();
}

void Training::write_checkpoint(const std::string& path) {
  if (parts_.optimizer->updates_one_by_one()) rest();  // offloaded tensors need room to be written
  save_checkpoint(*this, options_, data_, path);
}

void Training::refuse_checkpoint(const std::string& why) {
  if (parts_.parallel == nullptr) return;
  nn::refuse_checkpoint(*parts_.model, *parts_.parallel, *parts_.optimizer, whole_state(), why, later_stages());
}

std::optional<nn::Evaluation> Training::evaluate() {
  rest();
  const NoGrad off;
  parts_.model->eval();
  const std::int64_t all = data_.validation_batches();
  const std::int64_t count = options_.eval_batches > 0 ? std::min(all, options_.eval_batches) : all;
  double loss = 0;
  // Samples at a time, as in a step.
  const std::int64_t most = options_.setup.batch / (data_ranks(options_.setup) * parts_.options.micro_batches);
  std::int64_t samples = 0, correct = 0;
  const Arena* const arena = device_.is_dry ? Arena::find(*current_resource(device_)) : nullptr;
  std::uint64_t layout = 0, of_parts = 0;
  bool is_settled = false;
  // All but the last have as many samples: once one leaves the arena as it was before, the next needs no more.
  const auto leaves_as_before = [&](std::uint64_t& known, bool is_first) {
    const std::uint64_t before = std::exchange(known, arena->layout_digest());
    return !is_first && known == before;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    if (is_settled && i + 1 < count) continue;
    const ParameterUse use;
    const Batch batch = data_.validation_batch(i, device_, options_.setup.dtype);
    const std::int64_t all_samples = batch.target.size(0);
    bool is_part_settled = false;
    for (std::int64_t begin = 0; begin < all_samples; begin += most) {
      const std::int64_t end = std::min(begin + most, all_samples);
      if (is_part_settled && end < all_samples) continue;
      const Batch part = slice_samples(batch, begin, end);
      samples += end - begin;
      if (Tensor result = evaluated(part); result.defined()) {
        if (!parts_.model->is_text()) {  // scores (N, K)
          correct += training_detail::count_correct(nn::read_values<float>(result),
                                                    nn::read_values<std::int64_t>(part.target));
          result = cross_entropy(result, part.target);
        }
        loss += nn::read_value(result) * static_cast<double>(end - begin);
      }
      if (arena != nullptr) is_part_settled = leaves_as_before(of_parts, begin == 0);
    }
    if (arena == nullptr) continue;
    is_settled = leaves_as_before(layout, i == 0);
  }
  parts_.model->train();
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

void Training::visit_save() {
  if (parts_.parallel == nullptr) return nn::visit_save(*parts_.model, *parts_.optimizer);
  nn::visit_save(*parts_.model, *parts_.parallel, *parts_.optimizer, whole_state(), later_stages());
}

void Training::visit_save_weights() {
  if (parts_.parallel == nullptr) return nn::visit_save_weights(*parts_.model);
  nn::visit_save_weights(*parts_.model, *parts_.parallel, later_stages());
}

void Training::visit_load() { nn::visit_state(*parts_.model, *parts_.optimizer); }

const nn::WholeState& Training::whole_state() {
  if (whole_state_.empty()) whole_state_ = models::whole_state(options_.setup, device_);
  return whole_state_;
}

std::span<const nn::StageOutline> Training::later_stages() {
  const Setup& setup = options_.setup;
  if (later_stages_.empty() && setup.rank == 0 && setup.pp > 1) {
    later_stages_ = models::later_stages(setup, device_);
  }
  return later_stages_;
}

bool Training::can_sample() const noexcept { return parts_.model->is_text() && !parts_.model->is_masked(); }

std::vector<std::int64_t> Training::sample() {
  if (!can_sample())
    throw ValueError("`sample`: " + options_.setup.model + " cannot write; the GPT and Llama families can");
  Model& model = *parts_.model;
  const ParameterUse use;
  // The window over the last tokens grows up to the model's sequence; from there on every token needs the same bytes.
  const std::int64_t count = device_.is_dry ? std::min(options_.sample, model.options().sequence + 1) : options_.sample;
  std::vector<std::int64_t> tokens = generate(model, {0}, count, 0.8, 0, options_.setup.seed);
  tokens.erase(tokens.begin());  // the prompt
  return tokens;
}

namespace training_detail {

class DataRun final : public nn::TrainingRun {
 public:
  DataRun(const PreparedTraining& prepared, memory::Device device, const nn::Plan& plan)
      : prepared_(prepared), training_(prepared.options, *prepared.data, device, plan), step_(prepared.first_step) {
    if (!prepared.options.resume.empty()) training_.visit_load();
    training_.prepare_steps();
  }

  void step() override {
    if (step_ < prepared_.options.steps) loss_ = training_.step(step_++);
  }
  void finish(FunctionRef<void()> step) override {
    const TrainOptions& options = prepared_.options;
    if (!options.save.empty() && comes_between(options.save_every) && step_ < options.steps) {
      training_.visit_save();
      step();
    }
    evaluate_and_save();
    if (!comes_between(options.eval_every)) return end();
    for (std::uint64_t before = layout(), after = 0; step_ < options.steps; before = after) {
      step();
      evaluate_and_save();
      after = layout();
      if (after == before) break;  // from here on everything repeats
    }
    end();
  }
  nn::StepOptions& options() override { return training_.step_options(); }
  bool begins_placed_steps() const override { return prepared_.options.captures_steps; }
  std::int64_t parameters() const override { return training_.model().parameter_count(); }
  std::size_t tier_bytes() const override { return training_.tier_bytes(); }
  nn::RunView view() override {
    return {{loss_}, {&training_.optimizer()}, training_.model().buffers(), &training_.generator(), training_.scaler()};
  }

 private:
  /// Whether what is done every so many steps is done before the last one.
  bool comes_between(std::int64_t every) const {
    return every > 0 && (prepared_.first_step / every + 1) * every < prepared_.options.steps;
  }
  void end() {
    if (!prepared_.options.save_weights.empty()) training_.visit_save_weights();
    if (prepared_.options.sample > 0) training_.sample();
  }
  void evaluate_and_save() {
    training_.evaluate();
    if (!prepared_.options.save.empty()) training_.visit_save();
  }
  std::uint64_t layout() const {
    const Arena* const arena = Arena::find(*current_resource(dry(prepared_.options.device)));
    return arena != nullptr ? arena->layout_digest() : 0;
  }

  const PreparedTraining& prepared_;
  Training training_;
  std::int64_t step_;
  double loss_ = 0;
};

}  // namespace training_detail

nn::MakeRun training_program(const PreparedTraining& prepared) { return training_program(prepared, prepared.plan); }

nn::MakeRun training_program(const PreparedTraining& prepared, const nn::Plan& plan) {
  return [&prepared, &plan](memory::Device device) {
    return std::make_unique<training_detail::DataRun>(prepared, device, plan);
  };
}

}  // namespace thimble::models
