#pragma once
// The steps of a trainer's program on one device: planned or not, real or dry.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/nn/trainer/trainer_core.h>

namespace thimble::nn::trainer_detail {

/// The part of its program that a run executes.
struct RunRequest {
  /// The batches' steps, over and over; empty: those that the run is at.
  std::vector<std::int64_t> batch_steps = {};
  std::optional<std::size_t> only_part = std::nullopt;  ///< none: all, one after the other
  /// Plans to follow; null: none, or, of one part alone, that of options().
  const std::vector<std::unique_ptr<ShapePlan>>* shapes = nullptr;
};

class TrainerRun final : public TrainingRun {
 public:
  /// `first_step`: steps that are done, in the checkpoint that the run goes on from.
  TrainerRun(const ErasedProgram& program, const TrainerOptions& options, Device device, RunRequest request,
             std::int64_t first_step = 0);

  void step() override;
  StepOptions& options() override { return options_; }
  bool begins_placed_steps() const override { return true; }
  void finish(FunctionRef<void()> step) override;
  std::int64_t parameters() const override;
  RunView view() override;
  std::size_t tier_bytes() const override;

  /// The key of the next step's batch.
  const std::string& next_key();
  /// Without a tape, in evaluation mode, with the region given back.
  double evaluate();
  ErasedRun& program() noexcept { return *run_; }
  const std::vector<double>& losses() const noexcept { return losses_; }
  std::int64_t steps() const noexcept { return steps_; }
  Generator& generator() noexcept { return generator_; }
  optim::GradScaler* scaler() noexcept { return scaler_.get(); }
  /// Of a program with one part and one module. Throws as nn/files/checkpoint.h says. On a dry device a file is held
  /// against the program, and nothing is loaded.
  void save(const std::string& path);
  void load(const std::string& path);

 private:
  std::int64_t batch_step() const;
  const ShapePlan* next_shape();
  void make_tier(const ShapePlan& shape);
  void update_part(std::size_t part, const ShapePlan* shape);
  void free_gradients();
  void visit_state();

  const ErasedProgram& program_;
  const TrainerOptions& trainer_options_;
  Device device_;
  RunRequest request_;
  Generator generator_;
  std::size_t part_count_;
  std::unique_ptr<ErasedRun> run_;
  std::unique_ptr<optim::GradScaler> scaler_;
  StepOptions options_;
  std::shared_ptr<Tier> tier_;  // of what plans offload; null: none does
  PlacedArena* placed_;         // behind the resource; null: none
  std::int64_t first_step_;
  std::int64_t steps_;          // done
  std::vector<double> losses_;  // of the last step
  std::optional<std::string> key_;
};

}  // namespace thimble::nn::trainer_detail
