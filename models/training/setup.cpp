#include <thimble/models/training/setup.h>

#include <algorithm>
#include <cmath>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/shard_store.h>
#include <thimble/memory/offload/device_tier.h>
#include <thimble/memory/offload/direct_file.h>
#include <thimble/memory/offload/tier_store.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/adapting.h>
#include <thimble/models/training/trained_parts.h>
#include <thimble/nn/quant/coded_store.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace thimble::models {
namespace setup_detail {

class Run final : public nn::TrainingRun {
 public:
  Run(const Setup& setup, Device device)
      : parts_(setup, device), batch_(parts_.model->empty_batch(setup.batch / setup.ranks, device)) {}

  void step() override {
    const std::int64_t count = parts_.options.micro_batches;
    nn::training_step(
        *parts_.optimizer, [&](std::int64_t i) { return parts_.model->loss(micro_batch(batch_, i, count)); },
        parts_.options);
  }
  nn::StepOptions& options() override { return parts_.options; }
  std::int64_t parameters() const override { return parts_.model->parameter_count(); }
  std::size_t tier_bytes() const override { return nn::tier_bytes(*parts_.optimizer, parts_.options); }

 private:
  TrainedParts parts_;
  Batch batch_;
};

class Inference final : public nn::TrainingRun {
 public:
  Inference(const Setup& setup, Device device)
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

constexpr const char* host = "host";

// Whether tensors of the device can wait where the setup says.
void check_place(const Setup& setup, Device device) {
  if (device.is_cuda() && setup.offload != host) {
    throw ValueError("`offload`: '" + setup.offload + "' for " + to_string(device) +
                     ", whose tensors wait in the host's pinned memory; host is allowed");
  }
  if (!device.is_cuda() && setup.offload == host) {
    throw ValueError("`offload`: host is for `device` cuda; a folder on a disk is allowed");
  }
}

void require_place(const Setup& setup, const char* option) {
  if (!setup.offload.empty()) return;
  throw ValueError(std::string(option) + ": no folder; with `offload` FOLDER, on a GPU `offload` host, it is allowed");
}

std::shared_ptr<Tier> make_tier(const Setup& setup, Device device) {
  check_place(setup, device);
  memory::TierOptions options;
  if (!device.is_cuda()) options.folder = setup.offload;
  return memory::make_tier(device, options);
}

}  // namespace setup_detail

std::string optimizer_name(const Setup& setup, bool is_text) {
  if (setup.optimizer.empty()) return is_text ? "adamw" : "momentum";
  for (const char* name : {"sgd", "momentum", "adam", "adamw", "adafactor", "momentum8", "adam8", "adamw8"}) {
    if (setup.optimizer == name) return setup.optimizer;
  }
  throw ValueError("optimizer: '" + setup.optimizer +
                   "' is not one of sgd, momentum, adam, adamw, adafactor, momentum8, adam8, adamw8");
}

DType optimizer_state(const Setup& setup, bool is_text) {
  const std::string name = optimizer_name(setup, is_text);
  const std::string begin = "`state` " + std::string(to_string(setup.state)) + ": ";
  const bool is_narrow = name.back() == '8';
  if (setup.state != DType::f32 && setup.state != DType::bf16 && setup.state != DType::u8) {
    throw ValueError(begin + "allowed are f32, bf16, u8");
  }
  if (setup.state != DType::f32 && (name == "sgd" || name == "adafactor")) {
    throw ValueError(begin + name + " has no moments to keep so; allowed with momentum, adam, adamw");
  }
  if (is_narrow && setup.state == DType::bf16) {
    throw ValueError(begin + name + " keeps its state in u8; allowed with " + name.substr(0, name.size() - 1));
  }
  const DType state = is_narrow ? DType::u8 : setup.state;
  if (state == DType::f32 && !setup.full_state.empty()) {
    throw ValueError("`full_state` " + setup.full_state.front() +
                     ": all state is f32; allowed with `state` bf16 or u8");
  }
  return state;
}

namespace setup_detail {

// With momentum 0.9 a step is ten times as long in the end. Batch norm takes 0.1; nets without it diverge there, and
// kernels that many layers share get the gradients of all of them.
double momentum_rate(const std::string& model) {
  if (model == "mlp" || model.starts_with("vit")) return 0.01;
  return model == "sharedconv" ? 0.03 : 0.1;
}

}  // namespace setup_detail

OptimizerNumbers optimizer_numbers(const Setup& setup, const Model& model) {
  const std::string name = optimizer_name(setup, model.is_text());
  OptimizerNumbers numbers;
  if (name == "adafactor") {
    numbers.rate = 0.03;
    numbers.weight_decay = optim::AdafactorOptions{}.weight_decay;
  } else if (name.starts_with("adam")) {
    // Wide transformers want smaller steps: 3e-3 at width 128, 7.8e-4 at 768.
    const auto width = static_cast<double>(model.options().width);
    numbers.rate = model.is_text() ? 3e-3 * std::pow(128 / width, 0.75) : 1e-3;
    numbers.beta2 = name.starts_with("adamw") ? 0.99 : optim::AdamOptions{}.beta2;
    numbers.weight_decay = name.starts_with("adamw") ? 0.1 : 0;
    if (setup.beta2 >= 0) numbers.beta2 = setup.beta2;
  } else {
    numbers.rate = name == "sgd" ? 0.1 : setup_detail::momentum_rate(setup.model);
  }
  if (setup.rate >= 0) numbers.rate = setup.rate;
  if (setup.weight_decay >= 0) numbers.weight_decay = setup.weight_decay;
  return numbers;
}

std::unique_ptr<Model> make_model(const Setup& setup, Device device, dist::Communicator* ranks) {
  std::shared_ptr<ParameterStore> store;
  if (ranks != nullptr && setup.zero == 3) store = std::make_shared<dist::ShardStore>(*ranks);
  if (setup.offloads_parameters) {
    setup_detail::require_place(setup, "`offloads_parameters`");
    store = std::make_shared<memory::TierStore>(setup_detail::make_tier(setup, device));
  }
  const ParameterStoreScope scope(store);
  nn::TensorOptions on = tensor_options(setup, device);
  if (const auto code = base_code(setup)) on.coded_weights = std::make_shared<nn::quant::CodedStore>(*code);
  std::unique_ptr<Model> model = make_model(setup.model, setup.sizes, on);
  begin_fine_tuning(setup, *model, device);
  return model;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model) {
  return make_optimizer(setup, model, model.trainable());
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model,
                                                 std::vector<optim::Named> parameters) {
  const std::string name = optimizer_name(setup, model.is_text());
  const OptimizerNumbers numbers = optimizer_numbers(setup, model);
  const optim::MomentFormat moments{.dtype = optimizer_state(setup, model.is_text()), .full = setup.full_state};
  const bool has_beta2 = setup.beta2 >= 0;
  optim::NarrowUpdate narrow = optim::NarrowUpdate::rounded;
  if (!setup.precision.empty()) narrow = nn::precision(setup.precision).update;
  std::shared_ptr<Tier> tier;
  if (setup.offloads_optimizer) {
    setup_detail::require_place(setup, "`offloads_optimizer`");
    tier = setup_detail::make_tier(setup, parameters.front().tensor.device());
  }
  if (name == "adafactor") {
    if (has_beta2) throw ValueError("beta2: adafactor's follows from the step; it belongs to adam and adamw");
    return std::make_unique<optim::Adafactor>(std::move(parameters),
                                              optim::AdafactorOptions{.rate = numbers.rate,
                                                                      .weight_decay = numbers.weight_decay,
                                                                      .smallest_decayed_rank = 2,
                                                                      .tier = tier,
                                                                      .narrow = narrow});
  }
  if (name.starts_with("adam")) {
    const bool is_adamw = name.starts_with("adamw");
    return std::make_unique<optim::Adam>(std::move(parameters),
                                         optim::AdamOptions{.rate = numbers.rate,
                                                            .beta2 = *numbers.beta2,
                                                            .weight_decay = numbers.weight_decay,
                                                            .is_decoupled = is_adamw,
                                                            .smallest_decayed_rank = is_adamw ? 2 : 0,
                                                            .tier = tier,
                                                            .narrow = narrow,
                                                            .moments = moments});
  }
  if (has_beta2) throw ValueError("beta2: " + name + " has none; it belongs to adam and adamw");
  return std::make_unique<optim::Sgd>(std::move(parameters), optim::SgdOptions{.rate = numbers.rate,
                                                                               .momentum = name == "sgd" ? 0 : 0.9,
                                                                               .weight_decay = numbers.weight_decay,
                                                                               .tier = tier,
                                                                               .narrow = narrow,
                                                                               .moments = moments});
}

double clip_norm(const Setup& setup, bool is_text) {
  if (setup.clip_norm >= 0) return setup.clip_norm;
  return is_text && !setup.fuses_optimizer ? 1 : 0;
}

namespace setup_detail {

void check_ranks(const Setup& setup) {
  const std::string begin = "`ranks`: " + std::to_string(setup.ranks);
  if (setup.ranks < 1 || setup.rank < 0 || setup.rank >= setup.ranks) {
    throw ValueError(begin + ", of which this is rank " + std::to_string(setup.rank) +
                     "; at least 1, and ranks from 0 to one less, are allowed");
  }
  if (setup.zero < 0 || setup.zero > 3) {
    throw ValueError("`zero`: stage " + std::to_string(setup.zero) + "; allowed are 0 to 3");
  }
  if (setup.ranks == 1) return;
  if (setup.micro_batches == auto_micro_batches) {
    throw ValueError("`micro_batches`: auto is for one rank, and there are " + std::to_string(setup.ranks) +
                     "; a number is allowed");
  }
  const std::int64_t parts = setup.ranks * setup.micro_batches;
  if (setup.batch % parts != 0) {
    throw ValueError(
        begin +
        (setup.micro_batches > 1 ? " with `micro_batches` " + std::to_string(setup.micro_batches) + " each" : "") +
        " do not divide `batch` " + std::to_string(setup.batch) + "; a multiple of " + std::to_string(parts) +
        " is allowed");
  }
  const char* const other = setup.fuses_optimizer ? "`fuses_optimizer`, whose gradients go before all ranks have theirs"
                            : setup.offloads_gradients ? "`offloads_gradients`, whose gradients are not here to be sent"
                            : setup.offloads_parameters
                                ? "`offloads_parameters`; stage 3 of `zero` shares the parameters out"
                                : nullptr;
  if (other != nullptr) throw ValueError(begin + " are not allowed with " + other);
}

}  // namespace setup_detail

void check_techniques(const Setup& setup, bool is_text) {
  check_adapting(setup);
  const std::string parts = setup.micro_batches == auto_micro_batches ? "auto" : std::to_string(setup.micro_batches);
  if (setup.fuses_optimizer && setup.clip_norm > 0) {
    throw ValueError(std::string("`fuses_optimizer`: not with `clip_norm` ") + format_real(setup.clip_norm) +
                     ", because the norm is known when all gradients are there; `clip_norm` 0 is allowed");
  }
  if (setup.fuses_optimizer && setup.micro_batches != 1) {
    throw ValueError("`fuses_optimizer`: not with `micro_batches` " + parts +
                     ", because gradients are complete after the last one; `micro_batches` 1 is allowed");
  }
  if (setup.offloads_gradients) {
    setup_detail::require_place(setup, "`offloads_gradients`");
    if (setup.fuses_optimizer) {
      throw ValueError(
          "`offloads_gradients`: not with `fuses_optimizer`, whose gradients never wait; one of them is allowed");
    }
    if (setup.micro_batches != 1) {
      throw ValueError("`offloads_gradients`: not with `micro_batches` " + parts +
                       ", which all add to every gradient; `micro_batches` 1 is allowed");
    }
    if (loss_scaling(setup)) {
      throw ValueError("`offloads_gradients`: not with " + loss_scale_option(setup) +
                       ", whose loss scale judges gradients that are here; training that does not scale the loss is "
                       "allowed");
    }
  }
  if (setup.fuses_optimizer && loss_scaling(setup) && loss_scaling(setup)->is_dynamic) {
    throw ValueError("`fuses_optimizer`: not with " + loss_scale_option(setup) +
                     ", because whether a step is skipped is known when all gradients are there; a static "
                     "`loss_scale`, or none, is allowed");
  }
  if (setup.sizes.head == Head::chunked && !may_chunk_head(setup)) {
    throw ValueError("`head`: chunked is not for " +
                     (setup.precision.empty() ? loss_scale_option(setup) : "`precision` " + setup.precision) +
                     ": it makes gradients in f16 before the loss scale; full is allowed");
  }
  if (setup.micro_batches < 0) throw ValueError("`micro_batches`: " + parts + "; at least 1, or auto, is allowed");
  if (setup.micro_batches > 1 && setup.batch % setup.micro_batches != 0) {
    throw ValueError("`micro_batches`: " + parts + " does not divide `batch` " + std::to_string(setup.batch) +
                     "; a divisor of it is allowed");
  }
  setup_detail::check_ranks(setup);
  if (setup.sizes.head == Head::chunked && !is_text) {
    throw ValueError("`head`: chunked is for models over tokens; " + setup.model +
                     " has scores per class alone, and full is allowed");
  }
}

std::int64_t whole_batch(const Setup& setup, std::int64_t batch) {
  const std::int64_t parts = setup.ranks * std::max<std::int64_t>(1, setup.micro_batches);
  return (batch + parts - 1) / parts * parts;
}

nn::StepOptions step_options(const Setup& setup, bool is_text, Device device) {
  check_techniques(setup, is_text);
  if (setup.micro_batches == auto_micro_batches) {
    throw ValueError("`micro_batches`: auto needs a budget to choose for; a number is allowed");
  }
  nn::StepOptions options;
  options.clip_norm = clip_norm(setup, is_text);
  options.micro_batches = setup.micro_batches;
  options.micro_samples = setup.batch / (setup.ranks * setup.micro_batches);
  if (setup.offloads_gradients) options.gradient_tier = setup_detail::make_tier(setup, device);
  if (setup.fuses_optimizer) {
    const bool is_placed = PlacedArena::find(*current_resource(device)) != nullptr;
    options.fuses_optimizer = is_placed ? nn::FusedUpdate::secured : nn::FusedUpdate::unsecured;
  }
  return options;
}

nn::PlannerOptions planner_options(const Setup& setup, Device device) {
  nn::PlannerOptions options;
  options.spilling.packs = setup.allows_lossy;
  options.spilling.packed = setup.lossy;
  options.spilling.rules = setup.lossy_rules;
  options.spilling.packs_rest = setup.packs_rest;
  if (setup.offload.empty()) return options;
  setup_detail::check_place(setup, device);
  if (!device.is_cuda()) DirectFile(setup.offload);  // can it take a tier?
  options.spilling.offloads = true;
  options.make_tier = [setup](Device on) { return setup_detail::make_tier(setup, on); };
  return options;
}

nn::MakeRun zero_batch_run(const Setup& setup) {
  return [setup](Device device) { return std::make_unique<setup_detail::Run>(setup, device); };
}

nn::MakeRun inference_run(const Setup& setup) {
  return [setup](Device device) { return std::make_unique<setup_detail::Inference>(setup, device); };
}

}  // namespace thimble::models
