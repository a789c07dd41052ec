// The list of experiments.

#include <algorithm>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/core/error.h>

namespace thimble::bench {

const std::vector<NamedExperiment>& all_experiments() {
  static const std::vector<NamedExperiment> list{{"training", training_experiment},
                                                 {"resnet-batch", resnet_batch_experiment},
                                                 {"resnet-branches", resnet_branches_experiment},
                                                 {"gpt-layer", gpt_layer_experiment},
                                                 {"gpt-curve", gpt_curve_experiment},
                                                 {"step-peak", step_peak_experiment},
                                                 {"prediction", prediction_experiment},
                                                 {"techniques", techniques_experiment},
                                                 {"known-schedules", known_schedules_experiment},
                                                 {"checkpoint-depth", checkpoint_depth_experiment},
                                                 {"checkpoint-sequence", checkpoint_sequence_experiment},
                                                 {"checkpoint-batch", checkpoint_batch_experiment},
                                                 {"accumulation", accumulation_experiment},
                                                 {"sharing", sharing_experiment},
                                                 {"rules-of-thumb", rules_of_thumb_experiment},
                                                 {"long-sequences", long_sequences_experiment},
                                                 {"llama", llama_experiment},
                                                 {"overhead", overhead_experiment},
                                                 {"placement", placement_experiment},
                                                 {"fragmentation", fragmentation_experiment},
                                                 {"distributed", distributed_experiment},
                                                 {"distributed-parts", distributed_parts_experiment},
                                                 {"distributed-layouts", distributed_layouts_experiment},
                                                 {"distributed-activations", activation_curves_experiment},
                                                 {"distributed-zero", distributed_zero_experiment},
                                                 {"eight-bits", eight_bits_experiment},
                                                 {"precision", precision_experiment},
                                                 {"precision-bytes", precision_bytes_experiment},
                                                 {"precision-state", precision_state_experiment},
                                                 {"precision-encoder", precision_encoder_experiment},
                                                 {"precision-int8", precision_int8_experiment},
                                                 {"precision-int8-bytes", precision_int8_bytes_experiment}};
  return list;
}

std::vector<NamedExperiment> select_experiments(const std::vector<std::string>& names) {
  const auto stands_for = [](const std::string& name, const NamedExperiment& e) {
    return name == "all" || e.name == name || e.name.starts_with(name + "-");
  };
  const auto& all = all_experiments();
  std::string known = "all";
  for (const NamedExperiment& e : all) known += ", " + e.name;
  for (const std::string& name : names) {
    const bool is_known = std::any_of(all.begin(), all.end(), [&](const auto& e) { return stands_for(name, e); });
    if (!is_known) throw ValueError("reproduce: '" + name + "' is not one of " + known);
  }
  std::vector<NamedExperiment> chosen;
  for (const NamedExperiment& e : all) {
    const bool is_asked_for =
        names.empty() || std::any_of(names.begin(), names.end(), [&](const auto& name) { return stands_for(name, e); });
    if (is_asked_for) chosen.push_back(e);
  }
  return chosen;
}

}  // namespace thimble::bench
