#include <thimble/bench/planning/packing_report.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include <thimble/bench/runs/checkpoints.h>
#include <thimble/core/launch/tf32.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>

namespace thimble::bench {
namespace packing_report_detail {

/// The plan with what it packs kept as it is.
std::shared_ptr<const TapePlan> without_packing(const std::shared_ptr<const TapePlan>& plan) {
  if (!plan) return nullptr;
  auto exact = std::make_shared<TapePlan>(*plan);
  std::erase_if(exact->spills, [](const TapePlan::Spill& s) { return s.form == TapePlan::Spill::Form::pack; });
  return exact;
}

bool is_finite(const nn::GradientReport& report) {
  return std::isfinite(report.all.norm) && !std::isnan(report.all.relative_error);
}

nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

std::string line(const std::string& name, std::size_t width, const nn::GradientError& e) {
  char figures[96];
  std::snprintf(figures, sizeof figures, "  %12.5g  %12.4g %%  %9.6f", e.norm, 100 * e.relative_error, e.cosine);
  return "  " + name + std::string(width - name.size(), ' ') + figures + "\n";
}

}  // namespace packing_report_detail

std::string to_json_text(const std::vector<nn::PackedResults>& packed) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const nn::PackedResults& p : packed) {
    list.push_back({{"operator", p.name},
                    {"dtype", to_string(p.dtype)},
                    {"tensors", p.tensors},
                    {"bytes", p.bytes},
                    {"packed_bytes", p.packed_bytes}});
  }
  return list.dump();
}

nn::GradientReport packing_gradients(const PreparedTraining& prepared) {
  using namespace packing_report_detail;
  TrainOptions options = prepared.options;
  options.records_steps = false;
  const memory::Stack stack = memory::make_resource(options.device);
  const ResourceScope scope(stack.top);
  const Tf32Scope products(options.allows_tf32);
  nn::Plan plan = prepared.plan;
  plan.placement.clear();
  Training training(options, *prepared.data, options.device, plan);
  if (!options.resume.empty()) restore(training, options.resume);
  const models::Batch batch = prepared.data->batch(prepared.first_step, options.device, options.setup.dtype);
  const nn::StepOptions& step = training.step_options();
  optim::RecordingOptions exact = step.recording;
  exact.plan = without_packing(step.recording.plan);
  const auto loss_of = [&](std::int64_t i) { return training.model().loss(micro_batch(batch, i, step.micro_batches)); };
  double scale = training.scaler() != nullptr ? training.scaler()->scale() : 1;
  while (true) {
    nn::GradientReport report =
        nn::compare_gradients(training.optimizer().parameters(), loss_of, exact, step.recording, step.micro_batches,
                              step.micro_samples, training.scaler() != nullptr ? std::optional(scale) : std::nullopt,
                              models::micro_batches(batch, step.micro_batches));
    const bool may_halve = training.scaler() != nullptr && training.scaler()->options().is_dynamic && scale > 1;
    if (!may_halve || is_finite(report)) return report;
    scale /= 2;
  }
}

std::string to_json_text(const nn::GradientReport& report) {
  using packing_report_detail::number;
  nlohmann::ordered_json parameters = nlohmann::ordered_json::array();
  for (const nn::GradientError& e : report.parameters) {
    parameters.push_back({{"name", e.name},
                          {"norm", number(e.norm)},
                          {"relative_error", number(e.relative_error)},
                          {"cosine", number(e.cosine)}});
  }
  return nlohmann::ordered_json{{"loss", number(report.exact_loss)},
                                {"loss_packed", number(report.lossy_loss)},
                                {"relative_error", number(report.all.relative_error)},
                                {"cosine", number(report.all.cosine)},
                                {"parameters", parameters}}
      .dump();
}

std::string to_lines(const nn::GradientReport& report) {
  using packing_report_detail::line;
  std::size_t width = 9;
  for (const nn::GradientError& e : report.parameters) width = std::max(width, e.name.size());
  char head[96];
  std::snprintf(head, sizeof head, "  %12s  %14s  %9s\n", "norm", "relative error", "cosine");
  std::string text =
      "gradients with packed tensors against those without\n  parameter" + std::string(width - 9, ' ') + head;
  for (const nn::GradientError& e : report.parameters) text += line(e.name, width, e);
  return text + line("all", width, report.all);
}

}  // namespace thimble::bench
