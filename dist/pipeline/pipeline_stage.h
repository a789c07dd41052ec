#pragma once
// A stage of a pipeline in a training step (optim/pipeline.h): what comes from the stages around it, and goes to them.
//
//   stage 0        stage 1        stage 2
//   F0 ---- y0 ---> F0 ---- y0 ---> F0, loss
//   B0 <--- dy0 --- B0 <--- dy0 --- B0
//
// A stage may have several chunks of the model's layers (dist/pipeline/schedule.h). Then the last stage gives its
// results to the first one, too, for the next chunk, and takes their gradients from it: a ring.
//
// - A result is sent when its forward is over, and its bytes are free when the n-th next pass begins, a gradient's when
//   the n-th next one goes: the stage waits there until the other one has taken it. n is 1, and with chunks the least
//   with which no stage waits for ever (check_hand_over).
// - A parameter that the first and the last stage both have (a table of tokens that is the head, too) is updated by the
//   first one. The last one has its gradient's sum over all micro-batches, which is sent once and added to the sum
//   there, and is sent the values after the update. One rank that has all stages adds up the two uses apart as well.
//
// Bytes: a stage holds what a chunk reads of each micro-batch that is under way (an activation), but of the model's
// first one. The last stage has a parameter that is shared, and its gradient, but no state. `communication` is what is
// on its way.

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <thimble/dist/communicator.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/pipeline/schedule.h>
#include <thimble/dist/transit.h>
#include <thimble/optim/pipeline.h>

namespace thimble::dist {

struct PipelineOptions {
  Schedule schedule;  ///< of as many stages as there are ranks
  /// What the stage before gives for one sample, which is the first axis.
  struct Input {
    Shape shape = {};
    DType dtype = DType::f32;
  };
  std::vector<Input> inputs = {};  ///< of each chunk; the model's first one: none
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

  /// Of the chunks of all stages.
  bool is_first(std::size_t chunk) const noexcept { return stages_.rank() == 0 && chunk == 0; }
  bool is_last(std::size_t chunk) const noexcept { return has_last() && chunk + 1 == chunks(); }
  /// Of the pass under way.
  std::size_t chunk() const noexcept { return pass_.chunk; }
  Communicator::Volume volume() const noexcept;

  /// What the stage before gives for the pass under way, a micro-batch of so many samples: a leaf, whose gradient goes
  /// back. Not for the model's first chunk.
  Tensor receive_input(std::int64_t samples);
  /// Without gradients, as often as the stages agree, through one chunk after the other, then end_passes(): what the
  /// stage before gives, and what goes to the next.
  Tensor receive(std::size_t chunk, std::int64_t samples);
  void send(const Tensor& result);
  /// `count` numbers of the last stage, on every stage.
  void share_numbers(double* numbers, std::size_t count);

  void begin_step() override;
  std::span<const optim::StagePass> passes() const noexcept override { return passes_; }
  void begin_pass(const optim::StagePass& pass) override;
  void send_result(const Tensor& result) override;
  Tensor receive_gradient() override;
  bool take_gradient(const std::shared_ptr<Leaf>& leaf) override;
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
    std::int64_t ends_at = 0;  // of a result: the pass before which it is waited for
  };
  bool has_last() const noexcept { return stages_.rank() + 1 == stages_.size(); }
  std::size_t chunks() const noexcept { return options_.inputs.size(); }
  int stage_before() const noexcept { return (stages_.rank() + stages_.size() - 1) % stages_.size(); }
  int stage_after() const noexcept { return (stages_.rank() + 1) % stages_.size(); }
  /// Of the pass under way, among micro-batches through chunks.
  std::size_t place() const noexcept;
  static void begin_send(Communicator& ranks, int to, const Tensor& tensor, Sent& sent);
  static void end_first(std::deque<Sent>& sent);
  Tensor receive(Communicator& ranks, int from, const Shape& shape, DType dtype, Category category);
  void add_squares(const Tensor& own, std::size_t chunk, const Tensor& sum) const;

  Communicator& stages_;
  DataParallel& ranks_;
  std::unique_ptr<Communicator> apart_;  // the same ranks: what goes between them besides results and gradients
  PipelineOptions options_;
  std::vector<optim::StagePass> passes_;
  optim::StagePass pass_;                       // under way
  std::int64_t number_ = 0;                     // its, in the step
  int open_ = 1;                                // passes, and gradients, that what is sent stays open for
  std::vector<std::shared_ptr<Leaf>> inputs_;   // by place(), of micro-batches under way
  std::vector<std::pair<Shape, DType>> given_;  // what their gradients will be
  std::deque<Sent> results_, gradients_;        // the first one sent first
  std::unique_ptr<DataParallel> head_;  // of the last stage: sums the gradients of `shared`; null: there is none
};

/// One rank that has all stages of a pipeline, and of each shared parameter a leaf for each of its two uses.
class AllStages final : public optim::Pipeline {
 public:
  /// `last` are `first` under other leaves. Throws ValueError below 1 micro-batch.
  AllStages(std::int64_t micro_batches, std::vector<Tensor> first, std::vector<Tensor> last);

  void begin_step() override {}
  std::span<const optim::StagePass> passes() const noexcept override { return passes_; }
  void begin_pass(const optim::StagePass&) override {}
  void send_result(const Tensor&) override {}
  Tensor receive_gradient() override { return Tensor(); }
  bool take_gradient(const std::shared_ptr<Leaf>&) override { return false; }
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
