#pragma once
// A stage of a pipeline in a training step (optim/pipeline.h): exchanges messages with its neighbours.
//
//   stage 0        stage 1        stage 2
//   F0 ---- y0 ---> F0 ---- y0 ---> F0, loss
//   B0 <--- dy0 --- B0 <--- dy0 --- B0
//
// A stage may have several chunks of the model's layers (dist/pipeline/schedule.h). Then stages form a ring: the last
// stage sends results to the first one for the next chunk, and receives their gradients from it.
//
// - A result is sent when its forward ends. Its bytes are freed when the n-th next pass begins, a gradient's when the
//   n-th next gradient is sent; the stage waits there until the receiver has taken it. n is 1, or with chunks the least
//   n without deadlock (check_hand_over).
// - The first stage updates a parameter that it shares with the last one (a table of tokens that is also the head). The
//   last stage sums its gradient over all micro-batches, sends the sum once, to be added to the first stage's, and
//   receives the values after the update. One rank with all stages also sums the two uses separately.
//
// Bytes: a stage holds a chunk's input for each micro-batch in flight (an activation), except for the model's first
// chunk. The last stage has a shared parameter and its gradient, but no state. Bytes in flight count as
// `communication`.

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
  Schedule schedule;  ///< one stage per rank
  /// The previous stage's output for one sample, which is the first axis.
  struct Input {
    Shape shape = {};
    DType dtype = DType::f32;
  };
  std::vector<Input> inputs = {};  ///< per chunk; empty for the model's first chunk
  memory::Device device = cpu;
  /// The parameter that the first and the last stage share, if defined. The last stage has it whole and does not
  /// update it.
  optim::Named shared = {};
};

class PipelineStage final : public optim::Pipeline {
 public:
  /// `stages` has a rank for each stage, in order; `ranks` has this stage's ranks. Both must live as long. Throws
  /// ValueError for a schedule of other sizes, and as check_schedule and check_hand_over do.
  PipelineStage(Communicator& stages, DataParallel& ranks, PipelineOptions options);

  /// Whether `chunk` of this stage is the model's first or last one.
  bool is_first(std::size_t chunk) const noexcept { return stages_.rank() == 0 && chunk == 0; }
  bool is_last(std::size_t chunk) const noexcept { return has_last() && chunk + 1 == chunks(); }
  /// The current pass's chunk.
  std::size_t chunk() const noexcept { return pass_.chunk; }
  Communicator::Volume volume() const noexcept;

  /// The previous stage's output for the current pass, a micro-batch of `samples`, as a leaf whose gradient is sent
  /// back. Not for the model's first chunk.
  Tensor receive_input(std::int64_t samples);
  /// Passes without gradients: receive() from the previous stage and send() to the next, chunk after chunk, equally
  /// often on all stages, then end_passes().
  Tensor receive(std::size_t chunk, std::int64_t samples);
  void send(const Tensor& result);
  /// Broadcasts `count` numbers from the last stage to all stages.
  void share_numbers(double* numbers, std::size_t count);

  void begin_step() override;
  std::span<const optim::StagePass> passes() const noexcept override { return passes_; }
  void begin_pass(const optim::StagePass& pass) override;
  void send_result(const Tensor& result) override;
  Tensor receive_gradient() override;
  bool take_gradient(const std::shared_ptr<tape::Leaf>& leaf) override;
  void end_passes() override;
  void complete_gradients() override;
  Tensor share_loss(const Tensor& loss) override;
  Tensor sum_squares(const Tensor& own) override;
  void share_parameters() override;
  void drop() noexcept override;

 private:
  /// A tensor in flight to another stage.
  struct Sent {
    Tensor tensor;
    Transit transit;
    std::int64_t ends_at = 0;  // for a result: the pass before which it must be taken
  };
  bool has_last() const noexcept { return stages_.rank() + 1 == stages_.size(); }
  std::size_t chunks() const noexcept { return options_.inputs.size(); }
  int stage_before() const noexcept { return (stages_.rank() + stages_.size() - 1) % stages_.size(); }
  int stage_after() const noexcept { return (stages_.rank() + 1) % stages_.size(); }
  /// Index of the current pass's micro-batch and chunk in inputs_.
  std::size_t place() const noexcept;
  static void begin_send(Communicator& ranks, int to, const Tensor& tensor, Sent& sent);
  static void end_first(std::deque<Sent>& sent);
  Tensor receive(Communicator& ranks, int from, const Shape& shape, DType dtype, memory::Category category);
  void add_squares(const Tensor& own, std::size_t chunk, const Tensor& sum) const;

  Communicator& stages_;
  DataParallel& ranks_;
  std::unique_ptr<Communicator> apart_;  // the same ranks, for messages other than results and gradients
  PipelineOptions options_;
  std::vector<optim::StagePass> passes_;
  optim::StagePass pass_;                            // current
  std::int64_t number_ = 0;                          // its index in the step
  int open_ = 1;                                     // passes (or gradients) during which a sent tensor stays open
  std::vector<std::shared_ptr<tape::Leaf>> inputs_;  // by place(), of micro-batches in flight
  std::vector<std::pair<Shape, DType>> given_;       // shapes and dtypes of their gradients
  std::deque<Sent> results_, gradients_;             // in the order of sending
  std::unique_ptr<DataParallel> head_;  // on the last stage: sums the gradients of `shared`; null without it
};

/// One rank that has all stages of a pipeline, and for each shared parameter a leaf for each of its two uses.
class AllStages final : public optim::Pipeline {
 public:
  /// `last` has the tensors of `first` under other leaves. Throws ValueError if micro_batches < 1.
  AllStages(std::int64_t micro_batches, std::vector<Tensor> first, std::vector<Tensor> last);

  void begin_step() override {}
  std::span<const optim::StagePass> passes() const noexcept override { return passes_; }
  void begin_pass(const optim::StagePass&) override {}
  void send_result(const Tensor&) override {}
  Tensor receive_gradient() override { return Tensor(); }
  bool take_gradient(const std::shared_ptr<tape::Leaf>&) override { return false; }
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
