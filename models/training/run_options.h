#pragma once
// Options of a named model's run, for its plan, its training and its certificate.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <thimble/core/files/outputs.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/levers.h>

namespace thimble::dist {
class Communicator;
}

namespace thimble::models {

struct RunOptions {
  Setup setup;
  memory::Device device = cpu;   ///< a plan's need not exist: only its dry twin runs
  std::string data;              ///< a path or "synthetic" (open_dataset); empty for a plan with the model's own sizes
  std::size_t budget_bytes = 0;  ///< that the run's arena may commit; 0 sets no limit
  std::size_t process_budget_bytes = 0;  ///< for the whole process, arena included; 0 sets no limit
  CostOptions costs;                     ///< for plans
  /// On a CUDA device f32 products may use TF32 (core/launch/compute_capability.h).
  bool allows_tf32 = false;
  double refusal_ms = nn::default_refusal_ms;  ///< most processor time for refusing a budget (nn::LeverSearch)
  std::function<void(const std::string& text)> progress = {};  ///< called for each step of planning, if set

  // ---- The program.
  std::int64_t steps = 100;           ///< in total: a resumed run does the rest
  std::string schedule = "constant";  ///< constant; cosine, down to min_rate; step, x 0.1 after each third of the steps
  std::int64_t warmup = 0;            ///< steps in which the rate first rises linearly
  double min_rate = 0;                ///< lower bound of the rate after the warm-up
  std::int64_t eval_every = 0;        ///< steps between evaluations; 0 evaluates only at the end
  std::int64_t eval_batches = 16;     ///< batches of an evaluation; 0 takes the whole validation split
  std::int64_t sample = 0;            ///< tokens to generate at the end, with a text model
  bool is_strict = false;             ///< a step that leaves its plan is an error
  bool captures_steps = false;        ///< captures and replays steps, on a CUDA device (nn/step/captured_step.h)
  /// For a setup of several ranks, which all make an Engine with the same options, except for `setup.layout.rank`. Must
  /// outlive the engine.
  dist::Communicator* ranks = nullptr;

  // ---- Files.
  std::string save;             ///< a checkpoint, written at the end and every `save_every` steps
  std::int64_t save_every = 0;  ///< 0 saves only at the end
  std::int64_t keep = 1;        ///< checkpoints to keep: the newest, and older ones as `<save>.step-K`
  std::string resume;           ///< a checkpoint to resume from
  std::string save_weights;     ///< a file for the parameters at the end, in the model's public layout
  std::string save_adapters;    ///< a PEFT folder for the adapters at the end (nn/lora/adapter_files.h)
  std::string log;              ///< a folder for TensorBoard
  bool overwrites = false;      ///< may replace files of other kinds
  std::string plan;             ///< a file of nn::write_plan to follow, without planning
  std::vector<files::Output> other_outputs = {};  ///< that the caller writes, to check with these
};

}  // namespace thimble::models
