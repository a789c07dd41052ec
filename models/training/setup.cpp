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
#include <thimble/models/pieces.h>
#include <thimble/models/training/adapting.h>
#include <thimble/models/training/trained_parts.h>
#include <thimble/nn/quant/coded_store.h>
#include <thimble/nn/step/gradient_sink.h>

namespace thimble::models {

bool is_text(const Setup& setup) {
  const std::string_view family = model_family(setup.model);
  return family == "gpt" || family == "llama" || family == "bert";
}

namespace setup_detail {

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

constexpr const char* host = "host";

// Whether tensors of the device can wait where the setup says.
void check_place(const Setup& setup, memory::Device device) {
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

}  // namespace setup_detail

std::shared_ptr<Tier> make_tier(const Setup& setup, memory::Device device, const char* option) {
  setup_detail::require_place(setup, option);
  setup_detail::check_place(setup, device);
  memory::TierOptions options;
  if (!device.is_cuda()) options.folder = setup.offload;
  return memory::make_tier(device, options);
}

std::unique_ptr<Model> make_stage(const Setup& setup, const dist::StagePlace& place, const nn::TensorOptions& on,
                                  dist::Communicator* team) {
  ModelOptions sizes = setup.sizes;
  sizes.team = {team_size(setup), team, setup.sequence_parallel || setup.cp > 1, setup.cp > 1};
  sizes.stage = place;
  return make_model(setup.model, sizes, on);
}

std::unique_ptr<Model> make_model(const Setup& setup, memory::Device device, dist::Communicator* ranks,
                                  dist::Communicator* team) {
  const memory::UnitOptions away{.read_ahead = setup.read_ahead};
  std::shared_ptr<ParameterStore> store;
  if (ranks != nullptr && setup.zero == 3) store = std::make_shared<dist::ShardStore>(*ranks, away);
  if (setup.offloads_parameters) {
    store = std::make_shared<memory::TierStore>(make_tier(setup, device, "`offloads_parameters`"), away);
  }
  const ParameterStoreScope scope(store);
  nn::TensorOptions on = tensor_options(setup, device);
  if (const auto code = base_code(setup)) on.coded_weights = std::make_shared<nn::quant::CodedStore>(*code);
  std::unique_ptr<Model> model = make_stage(setup, stage_of(setup), on, team);
  if (setup.chunks > 1 && !model->options().stage.has_all) {
    std::vector<std::unique_ptr<Model>> pieces;
    pieces.push_back(std::move(model));
    for (int chunk = 1; chunk < setup.chunks; ++chunk) {
      pieces.push_back(make_stage(setup, stage_of(setup, chunk), on, team));
    }
    const PathScope path(pieces.front()->path());
    model = std::make_unique<Pieces>(std::move(pieces));
  }
  if (setup.recomputes_blocks) model->recompute_blocks();
  begin_fine_tuning(setup, *model, device);
  return model;
}

double clip_norm(const Setup& setup, bool is_text) {
  if (setup.clip_norm >= 0) return setup.clip_norm;
  return is_text && !setup.fuses_optimizer ? 1 : 0;
}

namespace setup_detail {

/// "`tp` 2".
std::string team_in_words(const Setup& setup) {
  return (setup.cp > 1 ? "`cp` " : "`tp` ") + std::to_string(team_size(setup));
}
std::string in_teams(const Setup& setup) { return team_size(setup) > 1 ? " in teams of " + team_in_words(setup) : ""; }

void check_chunks(const Setup& setup) {
  const bool is_interleaved = setup.pipeline == "interleaved";
  if (setup.pipeline != "1f1b" && setup.pipeline != "gpipe" && !is_interleaved) {
    throw ValueError("`pipeline`: '" + setup.pipeline + "' is not one of 1f1b, gpipe, interleaved");
  }
  const std::string begin = "`chunks`: " + std::to_string(setup.chunks);
  if (!is_interleaved && setup.chunks != 1) {
    throw ValueError(begin + " with `pipeline` " + setup.pipeline + "; 1, or `pipeline` interleaved, is allowed");
  }
  if (!is_interleaved) return;
  if (setup.chunks < 2) throw ValueError(begin + " with `pipeline` interleaved; 2 and more are allowed");
  if (setup.pp == 1) throw ValueError(begin + " with `pp` 1; 2 stages and more are allowed");
  if (setup.micro_batches % least_micro_batches(setup) != 0) {
    throw ValueError("`micro_batches`: " + std::to_string(setup.micro_batches) +
                     " with `pipeline` interleaved and `pp` " + std::to_string(setup.pp) +
                     "; a multiple of the stages is allowed");
  }
}

void check_ranks(const Setup& setup) {
  const std::string begin = "`ranks`: " + std::to_string(setup.ranks);
  if (setup.ranks < 1 || setup.rank < 0 || setup.rank >= setup.ranks) {
    throw ValueError(begin + ", of which this is rank " + std::to_string(setup.rank) +
                     "; at least 1, and ranks from 0 to one less, are allowed");
  }
  if (setup.zero < 0 || setup.zero > 3) {
    throw ValueError("`zero`: stage " + std::to_string(setup.zero) + "; allowed are 0 to 3");
  }
  if (setup.tp < 1 || (setup.ranks > 1 && setup.ranks % setup.tp != 0)) {
    throw ValueError("`tp`: " + std::to_string(setup.tp) + " with `ranks` " + std::to_string(setup.ranks) +
                     "; a divisor of the ranks, or any number of parts on one rank, is allowed");
  }
  if (setup.cp < 1 || (setup.ranks > 1 && setup.ranks % setup.cp != 0)) {
    throw ValueError("`cp`: " + std::to_string(setup.cp) + " with `ranks` " + std::to_string(setup.ranks) +
                     "; a divisor of the ranks, or any number of parts on one rank, is allowed");
  }
  if (setup.cp > 1 && setup.tp > 1) {
    throw ValueError("`cp`: " + std::to_string(setup.cp) + " with `tp` " + std::to_string(setup.tp) +
                     ": sequences of whole layers alone are cut by heads; one of the two is allowed");
  }
  if (setup.pp < 1 || (setup.ranks > 1 && setup.ranks % (team_size(setup) * setup.pp) != 0)) {
    throw ValueError("`pp`: " + std::to_string(setup.pp) + " with `ranks` " + std::to_string(setup.ranks) +
                     in_teams(setup) + "; as many stages as divide the ranks, or any number on one rank, are allowed");
  }
  check_chunks(setup);
  if (setup.pp > 1 && (setup.lora_rank > 0 || !setup.offload.empty())) {
    throw ValueError("`pp`: " + std::to_string(setup.pp) + " with " +
                     (setup.lora_rank > 0 ? "`lora_rank`; models with adapters are whole"
                                          : "`offload`; one stage, or tensors that stay, are allowed"));
  }
  if (setup.sequence_parallel && setup.tp == 1) {
    throw ValueError("`sequence_parallel`: with `tp` 1; 2 and more parts are allowed");
  }
  if (team_size(setup) > 1 && setup.lora_rank > 0) {
    throw ValueError((setup.cp > 1 ? "`cp`: " : "`tp`: ") + std::to_string(team_size(setup)) +
                     " with `lora_rank`; blocks with adapters are whole");
  }
  if (setup.ranks == 1) return;
  if (setup.micro_batches == auto_micro_batches) {
    throw ValueError("`micro_batches`: auto is for one rank, and there are " + std::to_string(setup.ranks) +
                     "; a number is allowed");
  }
  const std::int64_t parts = data_ranks(setup) * setup.micro_batches;
  if (setup.batch % parts != 0) {
    throw ValueError(
        begin + in_teams(setup) +
        (setup.micro_batches > 1 ? " with `micro_batches` " + std::to_string(setup.micro_batches) + " each" : "") +
        " do not divide `batch` " + std::to_string(setup.batch) + "; a multiple of " + std::to_string(parts) +
        " is allowed");
  }
  if (setup.offloads_parameters) {
    throw ValueError("`offloads_parameters`: not with `ranks` " + std::to_string(setup.ranks) +
                     "; stage 3 of `zero` shards the parameters");
  }
}

/// Where gradients go, and whether a step as the setup asks for it can be made with that (nn/step/gradient_sink.h).
void check_sink(const Setup& setup, const std::string& micro_batches) {
  if (!setup.fuses_optimizer && !setup.offloads_gradients) return;
  const nn::SinkKind sink = setup.fuses_optimizer ? nn::SinkKind::fused : nn::SinkKind::offloaded;
  const char* const option = setup.fuses_optimizer ? "`fuses_optimizer`" : "`offloads_gradients`";
  const auto refuse = [&](const std::string& other, const char* why) {
    throw ValueError(std::string(option) + ": not with " + other + ": " + why + "; expected one of the two");
  };
  const char* const why = nn::traits_of(sink).why;
  if (setup.fuses_optimizer && setup.offloads_gradients) refuse("`offloads_gradients`", why);
  if (setup.ranks > 1) refuse("`ranks` " + std::to_string(setup.ranks), why);
  const auto scaling = loss_scaling(setup);
  switch (nn::refusal_of(sink, {.clip_norm = setup.clip_norm,
                                .micro_batches = setup.micro_batches,
                                .is_scaled = scaling.has_value(),
                                .is_scale_dynamic = scaling && scaling->is_dynamic})) {
    case nn::SinkRefusal::clip_norm:
      refuse("`clip_norm` " + format_real(setup.clip_norm), why);
      break;
    case nn::SinkRefusal::micro_batches:
      refuse("`micro_batches` " + micro_batches, why);
      break;
    case nn::SinkRefusal::loss_scale:
      refuse(loss_scale_option(setup), why);
      break;
    case nn::SinkRefusal::none:
    case nn::SinkRefusal::hook:
      break;
  }
}

}  // namespace setup_detail

void check_techniques(const Setup& setup, bool is_text) {
  check_adapting(setup);
  const std::string parts = setup.micro_batches == auto_micro_batches ? "auto" : std::to_string(setup.micro_batches);
  if (setup.read_ahead < 0) {
    throw ValueError("`read_ahead`: " + std::to_string(setup.read_ahead) + "; 0 and more are allowed");
  }
  if (setup.read_ahead != 1 && !setup.offloads_parameters && setup.zero != 3) {
    throw ValueError("`read_ahead`: " + std::to_string(setup.read_ahead) +
                     ", and no parameters are away; with `offloads_parameters` or `zero` 3 it is allowed");
  }
  if (setup.offloads_gradients) setup_detail::require_place(setup, "`offloads_gradients`");
  setup_detail::check_sink(setup, parts);
  if (setup.sizes.head == Head::chunked && team_size(setup) > 1) {
    throw ValueError("`head`: chunked with " + setup_detail::team_in_words(setup) +
                     ", whose heads have a part of the " + (setup.tp > 1 ? "vocabulary" : "tokens") +
                     " each; full is allowed");
  }
  if (setup.sizes.feed_forward == FeedForward::tiled && team_size(setup) > 1) {
    throw ValueError("`feed_forward`: tiled with " + setup_detail::team_in_words(setup) +
                     ", whose layers have a part each; expected full");
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
  const std::int64_t parts = data_ranks(setup) * std::max<std::int64_t>(1, setup.micro_batches);
  return (batch + parts - 1) / parts * parts;
}

nn::StepOptions counted_steps(const Setup& setup, bool is_text) {
  check_techniques(setup, is_text);
  if (setup.micro_batches == auto_micro_batches) {
    throw ValueError("`micro_batches`: auto needs a budget to choose for; a number is allowed");
  }
  nn::StepOptions options;
  options.clip_norm = clip_norm(setup, is_text);
  options.micro_batches = setup.micro_batches;
  options.micro_samples = setup.batch / (data_ranks(setup) * setup.micro_batches);
  return options;
}

nn::StepOptions step_options(const Setup& setup, bool is_text, memory::Device device) {
  nn::StepOptions options = counted_steps(setup, is_text);
  if (setup.offloads_gradients) options.gradient_tier = make_tier(setup, device, "`offloads_gradients`");
  if (setup.fuses_optimizer) {
    const bool is_placed = PlacedArena::find(*current_resource(device)) != nullptr;
    options.fuses_optimizer = is_placed ? nn::FusedUpdate::secured : nn::FusedUpdate::unsecured;
  }
  return options;
}

nn::PlannerOptions planner_options(const Setup& setup, memory::Device device) {
  nn::PlannerOptions options;
  options.spilling.packs = setup.allows_lossy;
  options.spilling.packed = setup.lossy;
  options.spilling.rules = setup.lossy_rules;
  options.spilling.packs_rest = setup.packs_rest;
  if (setup.offload.empty()) return options;
  setup_detail::check_place(setup, device);
  if (!device.is_cuda()) DirectFile(setup.offload);  // can it take a tier?
  options.spilling.offloads = true;
  options.make_tier = [setup](memory::Device on) { return models::make_tier(setup, on, "`offload`"); };
  return options;
}

nn::MakeRun inference_run(const Setup& setup) {
  return [setup](memory::Device device) { return std::make_unique<setup_detail::Inference>(setup, device); };
}

}  // namespace thimble::models
