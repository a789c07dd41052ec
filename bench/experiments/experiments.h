#pragma once
// The memory-scaling experiments of `thimble reproduce`: each holds theory, prediction (dry run) and measurement (real
// run) side by side.

#include <functional>
#include <string>
#include <vector>

#include <thimble/bench/experiments/process_row.h>
#include <thimble/bench/report/experiment.h>
#include <thimble/core/tensor/device.h>
#include <thimble/models/training/setup.h>

namespace thimble::bench {

struct ExperimentOptions {
  Device device = cpu;    ///< where the measured runs are
  bool is_quick = false;  ///< small sizes: minutes become seconds
  /// Largest predicted peak that is also measured; above it the measured column is empty.
  std::size_t most_measured_bytes = std::size_t{18} << 30;
  std::function<void(const std::string&)> progress = [](const std::string&) {};  ///< told before every run
};

/// Activation bytes of ResNets against the batch: linear, with the slope of the textbook count.
report::Experiment resnet_batch_experiment(const ExperimentOptions& options);
/// What the blocks of a ResNet-50 keep, on their main path and on their shortcut.
report::Experiment resnet_branches_experiment(const ExperimentOptions& options);
/// Activation bytes of one GPT layer against sequence, batch, width and heads: the formula of Korthikanti et al. 2022,
/// and tiled attention beside it.
report::Experiment gpt_layer_experiment(const ExperimentOptions& options);
/// Where the bytes of a training step are at its peak, per model and optimizer, and over time.
report::Experiment step_peak_experiment(const ExperimentOptions& options);
/// Predicted and measured peaks over models, batches and optimizers.
report::Experiment prediction_experiment(const ExperimentOptions& options);

/// The same under every technique and combination of them.
report::Experiment techniques_experiment(const ExperimentOptions& options);

/// How many rows of `techniques` have a technique, alone or combined, and in how many of them all figures are equal.
struct TechniqueCount {
  std::string name;
  std::size_t rows = 0, equal = 0;
};
/// By technique, in order of appearance; budgets count as one technique, and so do micro-batches. `rows` are those of
/// the experiment `techniques`; those that were not measured do not count.
std::vector<TechniqueCount> count_by_technique(const std::vector<report::Row>& rows);

/// A transformer's activations under checkpointing, against its layers and against its sequence.
report::Experiment checkpoint_depth_experiment(const ExperimentOptions& options);
report::Experiment checkpoint_sequence_experiment(const ExperimentOptions& options);
/// What checkpointing saves, and costs, at every batch.
report::Experiment checkpoint_batch_experiment(const ExperimentOptions& options);
/// A batch in micro-batches.
report::Experiment accumulation_experiment(const ExperimentOptions& options);
/// Convolutions that share their kernels, and their plain twins.
report::Experiment sharing_experiment(const ExperimentOptions& options);
/// What plans cost in time: the cost model's word against steps on the device. Needs up to 15 GiB in full.
report::Experiment overhead_experiment(const ExperimentOptions& options);
/// The largest batches of BERT-base and ViT-Large on cards of named sizes, plain and planned; dry.
report::Experiment rules_of_thumb_experiment(const ExperimentOptions& options);
/// The longest sequences of Llamas in budgets, way by way; large ones dry, a small one measured at its longest.
report::Experiment long_sequences_experiment(const ExperimentOptions& options);
/// Llama and Qwen, scaled down, in every form of training and in generation.
report::Experiment llama_experiment(const ExperimentOptions& options);
/// What GPT's layers keep against the time that plans add; gpt2 dry, a small one measured.
report::Experiment gpt_curve_experiment(const ExperimentOptions& options);
/// Known schedules on a network of 100 equal blocks: forwards and bytes.
report::Experiment known_schedules_experiment(const ExperimentOptions& options);

/// Heights of the dynamic and of the placed arena against the load.
report::Experiment placement_experiment(const ExperimentOptions& options);
/// Holes between blocks: what freeing, trimming and compaction give back.
report::Experiment fragmentation_experiment(const ExperimentOptions& options);

/// A GPT and a ResNet train on generated data, inside memory that was predicted.
report::Experiment training_experiment(const ExperimentOptions& options);

/// Training on ranks that are threads: files and losses beside those of one rank, every rank's bytes.
report::Experiment distributed_experiment(const ExperimentOptions& options);
/// Blocks in parts over teams of ranks: each rank's bytes as they were told, losses those of one rank with all parts.
report::Experiment distributed_parts_experiment(const ExperimentOptions& options);
/// One model over shares, parts, stages and ZeRO's stages: each rank's bytes as they were told, losses of one rank.
report::Experiment distributed_layouts_experiment(const ExperimentOptions& options);
/// What Llamas keep for backward over teams and sequences, by the closed form and dry, beside 34 s b h L / t.
report::Experiment activation_curves_experiment(const ExperimentOptions& options);
/// Model state of GPTs up to 10^12 parameters on up to 1024 ranks in every stage of ZeRO, dry.
report::Experiment distributed_zero_experiment(const ExperimentOptions& options);

/// Saved tensors and optimizer state in 16 and 8 bits: bytes, gradients, losses.
report::Experiment eight_bits_experiment(const ExperimentOptions& options);

/// Every precision policy, 8-bit state and packed tensors: what a training commits, its loss, its time.
report::Experiment precision_experiment(const ExperimentOptions& options);
/// The same, category by category: theory, predicted, measured.
report::Experiment precision_bytes_experiment(const ExperimentOptions& options);
/// What a parameter costs under every policy, and master copies among it.
report::Experiment precision_state_experiment(const ExperimentOptions& options);
/// BERT under O0, O1, O2, bf16 and fp8: when 40 % are saved, and how fast it is.
report::Experiment precision_encoder_experiment(const ExperimentOptions& options);
/// A net in 8 bits: file, accuracy, bytes and time of inference. On the cpu, wherever the others are.
report::Experiment precision_int8_experiment(const ExperimentOptions& options);
/// Inference in f32 and in 8 bits, category by category: theory, predicted, measured; likewise.
report::Experiment precision_int8_bytes_experiment(const ExperimentOptions& options);

struct NamedExperiment {
  std::string name;
  report::Experiment (*run)(const ExperimentOptions&);
};
/// All of them, in the order of the report.
const std::vector<NamedExperiment>& all_experiments();

/// Those that are asked for, in the order of the report. A name stands for the experiment of that name and for those
/// that begin with it and a dash ("precision", "checkpoint"); no names, or "all", for all of them. Throws ValueError,
/// listing the names, for one that stands for none.
std::vector<NamedExperiment> select_experiments(const std::vector<std::string>& names);

/// What backward would find kept after a forward of `setup` in training, in an arena of its own.
struct ForwardBytes {
  std::size_t activation = 0;  ///< temporaries kept for backward
  std::size_t input = 0;       ///< the batch
  /// Activation bytes at and below a module path.
  std::vector<std::pair<std::string, std::size_t>> by_path;
  ProcessBytes process;  ///< of the forward
};
ForwardBytes forward_bytes(Device device, const models::Setup& setup, const std::vector<std::string>& paths);

/// Adds the curves `name` theory (with the named remainder), predicted and measured, against the setting of number `x`.
void add_curves(report::Plot& plot, const std::vector<report::Row>& rows, std::size_t x, const std::string& name,
                const std::string& group);

}  // namespace thimble::bench
