// Experiment: what a parameter costs under every policy, and what master copies cost among them.

#include <map>

#include <thimble/bench/experiments/precision/precision.h>
#include <thimble/bench/report/text.h>

namespace thimble::bench {
namespace precision_state_detail {

struct Model {
  const char* title;
  models::Setup setup;  // of O0
  bool is_measured;
};

// Of the model that `per_parameter` is of.
std::string verdict(const std::map<std::string, double>& per_parameter) {
  const double half = per_parameter.at("O3");
  std::string text = "Bytes of a parameter, its gradient and the optimizer's state: ";
  for (const char* name : {"O0", "O2", "O3", "bf16-stochastic", "bf16-kahan"}) {
    text += std::string(name) + " " + report::format_fixed(per_parameter.at(name), 2) + ", ";
  }
  const double master = per_parameter.at("O2") - half, kahan = per_parameter.at("bf16-kahan") - half;
  return text + "so master copies cost " + report::format_fixed(master, 2) + " (" +
         report::format_fixed(100 * master / half, 0) + " % more than O3) and Kahan's sum " +
         report::format_fixed(kahan, 2) + "; O2 holds " +
         with_sign(100 * (per_parameter.at("O2") / per_parameter.at("O0") - 1), 1) + " % beside f32; ";
}

}  // namespace precision_state_detail

report::Experiment precision_state_experiment(const ExperimentOptions& options) {
  using namespace precision_state_detail;
  report::Experiment experiment;
  experiment.name = "precision-state";
  experiment.title = "What a parameter costs under every policy";
  experiment.question = "What do master copies cost beside rounding, stochastic rounding and Kahan's sum?";
  experiment.theory =
      "Parameters, gradients and the optimizer's state, which are all there while it updates. Per weight with Adam: 4 "
      "+ 4 + 8 in f32; 2 + 2 + 8 and 4 for a master copy, 2 for what Kahan's sum keeps; 2 + 2 + 2 (1 + 4 / 256) with "
      "8-bit state, and 4 more with master copies. Norms' parameters are f32 under policies with master copies.";
  experiment.columns = {{"per_parameter", "bytes per parameter", report::Unit::plain, 3},
                        {"parameter", "parameters", report::Unit::bytes},
                        {"gradient", "gradients", report::Unit::bytes},
                        {"optimizer_bytes", "optimizer", report::Unit::bytes}};
  models::Setup gpt2;
  gpt2.model = "gpt2";
  gpt2.batch = 1;
  gpt2.sizes.sequence = 64;
  const models::Setup small = prepare_training(precision_training(options, precision_cases().front())).options.setup;
  std::map<std::string, double> of_gpt2;
  for (const Model& model : {Model{"small GPT", small, true}, Model{"gpt2", gpt2, false}}) {
    for (const PrecisionCase& one : precision_cases()) {
      if (!one.saved.empty()) continue;  // which changes nothing here
      options.progress(std::string("precision-state: ") + model.title + ", " + one.name() + ", " + one.optimizer);
      models::Setup setup = model.setup;
      one.apply(setup);
      const StepBytes predicted = step_bytes(dry(options.device), zero_batch_run(setup));
      report::Row row;
      row.config = {{"model", std::string(model.title)}, {"precision", one.name()}, {"optimizer", one.optimizer}};
      row.theory_bytes = 0;
      for (const Category category : {Category::parameter, Category::gradient, Category::optimizer}) {
        *row.theory_bytes += *precision_theory(one, setup, category);
      }
      row.predicted_bytes = predicted.state();
      if (model.is_measured) {
        const StepBytes measured = step_bytes(options.device, zero_batch_run(setup));
        row.measured_bytes = measured.state();
        add_process(row, predicted.process.arena_bytes, measured.process);
      }
      const double each = static_cast<double>(predicted.state()) / static_cast<double>(predicted.parameters);
      const auto most = [&](Category category) {
        return static_cast<double>(predicted.most[static_cast<std::size_t>(category)]);
      };
      row.numbers = {{"per_parameter", each},
                     {"parameter", most(Category::parameter)},
                     {"gradient", most(Category::gradient)},
                     {"optimizer_bytes", most(Category::optimizer)}};
      experiment.rows.push_back(row);
      if (!model.is_measured && one.optimizer == "adamw") of_gpt2[one.name()] = each;
    }
  }
  experiment.verdict = "gpt2. " + verdict(of_gpt2) + equal_rows(experiment, "measured rows") + ".";
  return experiment;
}

}  // namespace thimble::bench
