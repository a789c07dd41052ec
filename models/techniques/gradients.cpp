// Gradients: used and freed during backward, summed over micro-batches, clipped (docs/less-memory.md).

#include <thimble/core/error.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/nn/step/gradient_sink.h>

namespace thimble::models {
namespace {

constexpr std::int64_t max_priced = 8;  // micro-batches

std::string count_of(const Setup& setup) {
  return setup.micro_batches == auto_micro_batches ? "auto" : std::to_string(setup.micro_batches);
}

void set_count(Setup& setup, const std::string& name, const std::string& text) {
  setup.micro_batches =
      text == "auto" ? auto_micro_batches : parse_integer(name, text, 1, fields::max_size, " or auto");
}

void check_count(const Setup& setup, bool) {
  const std::string begin = "`micro_batches`: " + count_of(setup);
  if (setup.micro_batches < 0) throw ValueError(begin + "; expected at least 1, or auto");
  if (setup.micro_batches > 1 && setup.batch % setup.micro_batches != 0) {
    throw ValueError(begin + " does not divide `batch` " + std::to_string(setup.batch) + "; expected a divisor of it");
  }
}

std::vector<Variant> counts(const LeverFacts& facts) {
  const char* note = "";
  for (const nn::NamedTensor& b : facts.model.buffers()) {
    if (b.name.find("running_mean") != std::string::npos) note = "batch norm sees one micro-batch at a time";
  }
  std::vector<Variant> list;
  for (std::int64_t count = 2; count <= max_priced; count *= 2) {
    if (count > facts.setup.micro_batches) list.push_back({std::to_string(count), note});
  }
  return list;
}

std::vector<Variant> fused(const LeverFacts& facts) {
  const bool is_clipped = clip_norm(facts.setup, facts.model.is_text()) > 0;
  Variant on{"on", is_clipped ? "gradients are not clipped" : ""};
  if (facts.setup.optimizer.clip_norm > 0) on.besides = "clip_norm";
  return {on};
}

bool is_scale_dynamic(const Setup& setup) {
  const auto scaling = loss_scaling(setup);
  return setup.fuses_optimizer && scaling && scaling->is_dynamic;
}

}  // namespace

std::span<const Technique> of_gradients() {
  static const char* const why = nn::traits_of(nn::SinkKind::fused).why;
  static const Technique list[] = {
      {.flag = {"fuses_optimizer", "--fuse-optimizer",
                "Update each parameter during backward and free its gradient; without clipping and micro-batches",
                fields::toggle<&Setup::fuses_optimizer>},
       .example = {"on", true},
       .excludes = {{"offloads_gradients", why},
                    {"ranks", why},
                    {"pp", "stages that share a table sum its gradients after backward"},
                    {"clip_norm", why, [](const Setup& s) { return s.fuses_optimizer && s.optimizer.clip_norm > 0; }},
                    {"micro_batches", why},
                    {"loss_scale", why, [](const Setup& s) { return s.precision.loss_scale && is_scale_dynamic(s); }},
                    {"precision", why, [](const Setup& s) { return !s.precision.loss_scale && is_scale_dynamic(s); }}},
       .identity = {OnRanks::alike},
       .variants = fused,
       .words = [](const Setup&) -> std::string { return ", optimizer fused into backward"; },
       .document = {"the optimizer fused into backward", "those of the run without it and without clipping"}},
      {.flag = {"micro_batches",
                "--micro-batches N|auto",
                "Gradient-accumulation steps; auto: the fastest that fits the budget (1)",
                {set_count, count_of},
                "everyday"},
       .example = {"2"},
       .check = check_count,
       .excludes = {{"ranks", "only one rank can choose",
                     [](const Setup& s) { return s.layout.ranks > 1 && s.micro_batches == auto_micro_batches; }}},
       .identity = {OnRanks::each, OnResume::told, "micro_batches",
                    [](const Setup& s, const Model&) -> std::optional<Saved> {
                      return Saved{std::to_string(data_ranks(s) * s.micro_batches), ""};
                    }},
       .variants = counts,
       .document = {"gradient accumulation", "those of the same N without a budget"}},
      {.flag = {"clip_norm",
                "--clip X",
                "Largest norm of the gradient; 0: no clipping (1 for text, else 0)",
                {fields::real<&OptimizerSetup::clip_norm>.set,
                 [](const Setup&
                        s) { return s.optimizer.clip_norm >= 0 ? format_real(s.optimizer.clip_norm) : std::string(); }},
                "training"},
       .example = {"0.25"},
       .identity = {OnRanks::free, OnResume::told, "clip",
                    [](const Setup& s, const Model& model) -> std::optional<Saved> {
                      return Saved{format_real(clip_norm(s, model.is_text())), ""};
                    }}}};
  return list;
}

}  // namespace thimble::models
