#pragma once
// A stage of a pipeline in a training step (optim/pipeline.h): what comes from the stages around it, and goes to them.
//
//   stage 0        stage 1        stage 2
//   F0 ---- y0 ---> F0 ---- y0 ---> F0, loss
//   B0 <--- dy0 --- B0 <--- dy0 --- B0
//
// - A result is sent when its forward is over, and its bytes are free when the next pass begins: the stage waits there
//   until the next one has taken it. A gradient is sent when backward has made it, and stays until the next one goes.
// - A parameter that the first and the last stage both have (a table of tokens that is the head, too) is updated by the
//   first one. The last one has its gradient's sum over all micro-batches, which is sent once and added to the sum
//   there, and is sent the values after the update. One rank that has all stages adds up the two uses apart as well.
//
// Bytes: a stage that is not the first holds what it reads of each micro-batch that is under way (an activation). The
// last one has a parameter that is shared, and its gradient, but no state. `communication` is what is on its way.

#include <optional>
#include <vector>

#include <thimble/dist/communicator.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/pipeline/schedule.h>
#include <thimble/dist/transit.h>
#include <thimble/optim/pipeline.h>

namespace thimble::dist {

struct PipelineOptions {
  Schedule schedule;  ///< of as many stages as there are ranks, in one chunk each
  Shape input = {};   ///< of what the stage before gives for one sample, which is the first axis; the first stage: none
  DType dtype = DType::f32;  ///< of it
  Device device = cpu;
  /// The parameter that the first and the last stage have; undefined: there is none. On the last stage no optimizer
  /// updates it, and it is here as a whole.
  optim::Named shared = {};
};

class PipelineStage final : public optim::Pipeline {
 public:
  /// `stages` has a rank for each stage, in order; `ranks` are those that have this one. Both must live as long. Throws
  /// ValueError for a schedule of other sizes, and as check_schedule and check_hand_over do.
  PipelineStage(Communicator& stages, DataParallel& ranks, PipelineOptions options);

  bool is_first() const noexcept { return stages_.rank() == 0; }
  bool is_last() const noexcept override { return stages_.rank() + 1 == stages_.size(); }
  Communicator::Volume volume() const noexcept;

  /// What the stage before gives for a micro-batch of so many samples: a leaf, whose gradient goes back. Not on the
  /// first stage.
  Tensor receive_input(std::int64_t micro_batch, std::int64_t samples);
  /// Without gradients, as often as the stages agree, then end_passes(): what the stage before gives, and what goes to
  /// the next.
  Tensor receive(std::int64_t samples);
  void send(const Tensor& result);
  /// `count` numbers of the last stage, on every stage.
  void share_numbers(double* numbers, std::size_t count);

  void begin_step() override;
  std::span<const optim::StagePass> passes() const noexcept override { return passes_; }
  void begin_pass() override;
  void send_result(std::int64_t micro_batch, const Tensor& result) override;
  Tensor receive_gradient(std::int64_t micro_batch) override;
  bool take_gradient(std::int64_t micro_batch, const std::shared_ptr<Leaf>& leaf) override;
  void end_passes() override;
  void complete_gradients() override;
  Tensor share_loss(const Tensor& loss) override;
  Tensor sum_squares(const Tensor& own) override;
  void share_parameters() override;
  void drop() noexcept override;

 private:
  /// On its way to another stage.
  struct Sent {
    Tensor tensor;
    Transit transit;
  };
  void begin_send(Communicator& ranks, int to, Tensor tensor, Sent& sent);
  Tensor receive(Communicator& ranks, int from, const Shape& shape, DType dtype, Category category);

  Communicator& stages_;
  DataParallel& ranks_;
  std::unique_ptr<Communicator> apart_;  // the same ranks: what goes between them besides results and gradients
  PipelineOptions options_;
  std::vector<optim::StagePass> passes_;
  std::vector<std::shared_ptr<Leaf>> inputs_;   // of micro-batches under way
  std::vector<std::pair<Shape, DType>> given_;  // what their gradients will be
  std::optional<Sent> result_, gradient_;
  std::unique_ptr<DataParallel> head_;  // of the last stage: sums the gradients of `shared`; null: there is none
};

/// One rank that has all stages of a pipeline, and of each shared parameter a leaf for each of its two uses.
class AllStages final : public optim::Pipeline {
 public:
  /// `last` are `first` under other leaves. Throws ValueError below 1 micro-batch.
  AllStages(std::int64_t micro_batches, std::vector<Tensor> first, std::vector<Tensor> last);

  void begin_step() override {}
  std::span<const optim::StagePass> passes() const noexcept override { return passes_; }
  bool is_last() const noexcept override { return true; }
  void begin_pass() override {}
  void send_result(std::int64_t, const Tensor&) override {}
  Tensor receive_gradient(std::int64_t) override { return Tensor(); }
  bool take_gradient(std::int64_t, const std::shared_ptr<Leaf>&) override { return false; }
  void end_passes() override {}
  void complete_gradients() override;
  Tensor share_loss(const Tensor& loss) override { return loss; }
  Tensor sum_squares(const Tensor& own) override { return own; }
  void share_parameters() override {}
  void drop() noexcept override;

 private:
  std::vector<optim::StagePass> passes_;
  std::vector<Tensor> first_, last_;
};

}  // namespace thimble::dist
