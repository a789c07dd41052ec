#include <thimble/dist/pipeline/pipeline_stage.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/dist/fold.h>
#include <thimble/dist/window.h>

namespace thimble::dist {
PipelineStage::PipelineStage(Communicator& stages, DataParallel& ranks, PipelineOptions options)
    : stages_(stages),
      ranks_(ranks),
      apart_(stages.split([](int rank) {
        return Communicator::Place{0, rank};
      })),
      options_(std::move(options)) {
  const Schedule& schedule = options_.schedule;
  if (schedule.stages != stages.size() || schedule.chunks != 1) {
    throw ValueError("pipeline: a schedule of " + std::to_string(schedule.stages) + " stages in " +
                     std::to_string(schedule.chunks) + " chunks for " + std::to_string(stages.size()) +
                     " ranks; as many stages in one chunk are allowed");
  }
  check_schedule(schedule);
  check_hand_over(schedule);
  for (const Action& action : schedule.of_stage[static_cast<std::size_t>(stages.rank())]) {
    passes_.push_back({action.pass == Pass::forward, action.micro_batch});
  }
  const auto count = static_cast<std::size_t>(schedule.micro_batches);
  inputs_.resize(count);
  given_.resize(count);
  if (!options_.shared.tensor.defined() || !is_last()) return;
  options_.shared.tensor.leaf()->is_input = true;  // no optimizer here has it
  head_ = std::make_unique<DataParallel>(ranks.communicator(), std::vector{options_.shared});
}

Communicator::Volume PipelineStage::volume() const noexcept {
  const Communicator::Volume a = stages_.volume(), b = apart_->volume();
  return {a.bytes_sent + b.bytes_sent, a.messages + b.messages};
}

void PipelineStage::begin_send(Communicator& ranks, int to, Tensor tensor, Sent& sent) {
  sent.tensor = contiguous(tensor.detach());
  sent.transit.send(to, sent.tensor);
  sent.transit.begin(ranks);
}

Tensor PipelineStage::receive(Communicator& ranks, int from, const Shape& shape, DType dtype, Category category) {
  const PathScope path = ranks_path();
  Tensor tensor = Tensor::empty(shape, dtype, options_.device, category);
  Transit transit;
  transit.receive(from, tensor);
  transit.begin(ranks);
  transit.wait();
  return tensor;
}

Tensor PipelineStage::receive(std::int64_t samples) {
  Shape shape = options_.input;
  shape[0] = samples;
  return receive(stages_, stages_.rank() - 1, shape, options_.dtype, Category::activation);
}

Tensor PipelineStage::receive_input(std::int64_t micro_batch, std::int64_t samples) {
  Tensor x = receive(samples);
  x.require_grad();
  x.leaf()->is_input = true;
  inputs_[static_cast<std::size_t>(micro_batch)] = x.leaf();
  return x;
}

void PipelineStage::begin_pass() {
  if (!result_) return;
  result_->transit.wait();
  result_.reset();
}

void PipelineStage::send(const Tensor& result) {
  begin_pass();
  begin_send(stages_, stages_.rank() + 1, result, result_.emplace());
}

void PipelineStage::send_result(std::int64_t micro_batch, const Tensor& result) {
  given_[static_cast<std::size_t>(micro_batch)] = {result.shape(), result.dtype()};
  send(result);
}

Tensor PipelineStage::receive_gradient(std::int64_t micro_batch) {
  const auto& [shape, dtype] = given_[static_cast<std::size_t>(micro_batch)];
  return receive(stages_, stages_.rank() + 1, shape, dtype, Category::temporary);
}

bool PipelineStage::take_gradient(std::int64_t micro_batch, const std::shared_ptr<Leaf>& leaf) {
  if (gradient_) gradient_->transit.advance();  // MPI moves bytes while it is called
  std::shared_ptr<Leaf>& input = inputs_[static_cast<std::size_t>(micro_batch)];
  if (leaf == input) {
    input.reset();
    if (gradient_) gradient_->transit.wait();
    begin_send(stages_, stages_.rank() - 1, std::exchange(leaf->grad, Tensor()), gradient_.emplace());
    return true;
  }
  if (!head_ || leaf != options_.shared.tensor.leaf()) return false;
  head_->take_gradient(leaf);
  head_->end_micro_batch();  // it has no other
  return true;
}

void PipelineStage::begin_step() {
  if (head_) head_->begin_step(options_.schedule.micro_batches);
}

void PipelineStage::end_passes() {
  begin_pass();
  if (gradient_) gradient_->transit.wait();
  gradient_.reset();
}

void PipelineStage::complete_gradients() {
  const Tensor& shared = options_.shared.tensor;
  if (!shared.defined()) return;
  if (head_) {
    head_->complete_gradients();
    Sent sent;
    begin_send(*apart_, 0, std::exchange(shared.grad(), Tensor()), sent);
    sent.transit.wait();
    head_->drop_gradients();
  } else if (is_first()) {
    const Tensor theirs = receive(*apart_, apart_->size() - 1, shared.shape(), shared.dtype(), Category::communication);
    for (const optim::Named& p : ranks_.parameters()) {
      if (p.name == options_.shared.name) add_to(p.tensor.grad(), window_of(theirs, p.first_element, p.tensor.shape()));
    }
  }
}

Tensor PipelineStage::share_loss(const Tensor& loss) {
  const int last = apart_->size() - 1;
  if (!is_last()) return receive(*apart_, last, {}, DType::f64, Category::communication);
  const PathScope path = ranks_path();
  const Tensor value = to_dtype(loss.detach(), DType::f64);
  Transit transit;
  for (int stage = 0; stage < last; ++stage) transit.send(stage, value);
  transit.begin(*apart_);
  transit.wait();
  return loss;
}

void PipelineStage::share_numbers(double* numbers, std::size_t count) {
  apart_->broadcast(numbers, count * sizeof(double), apart_->size() - 1);
}

Tensor PipelineStage::sum_squares(const Tensor& own) {
  const int rank = apart_->rank(), last = apart_->size() - 1;
  const PathScope path = ranks_path();
  const Tensor sum = Tensor::empty({1}, DType::f64, options_.device, Category::workspace);
  const auto add_own = [&](const double* terms, double* to) {
    for (std::int64_t i = 0; i < own.elements(); ++i) *to += terms[i];
  };
  if (rank > 0) {
    Transit transit;
    transit.receive(rank - 1, sum);
    transit.begin(*apart_);
    transit.wait();
  } else {
    fill(sum, 0);
  }
  if (own.defined() && options_.device == cpu) {
    launch(cpu, [&](const Addresses& at) { add_own(at.as<double>(own), at.as<double>(sum)); });
  } else if (own.defined() && !options_.device.is_dry) {
    std::vector<double> so_far = to_host<double>(sum);
    add_own(to_host<double>(own).data(), so_far.data());
    copy_into(sum, from_host(so_far, {1}, options_.device));
  }
  Transit on;  // to the next stage, or the sum of all to all
  for (int stage = rank < last ? rank + 1 : 0; stage < (rank < last ? rank + 2 : last); ++stage) on.send(stage, sum);
  on.begin(*apart_);
  on.wait();
  Tensor all = rank < last ? receive(*apart_, last, {1}, DType::f64, Category::workspace) : sum;
  all.set_tape_ref({}, Origin::gradient);
  return all;
}

void PipelineStage::share_parameters() {
  const Tensor& shared = options_.shared.tensor;
  if (!shared.defined()) return;
  fetch_parameters(shared);
  Transit transit;
  if (is_first()) {
    transit.send(apart_->size() - 1, shared);
  } else {
    transit.receive(0, shared);
  }
  transit.begin(*apart_);
  transit.wait();
  if (is_last() && shared.storage()) shared.storage()->bump_version();
}

void PipelineStage::drop() noexcept {
  result_.reset();
  gradient_.reset();
  if (head_) head_->drop_gradients();
  for (std::shared_ptr<Leaf>& leaf : inputs_) leaf.reset();
}

AllStages::AllStages(std::int64_t micro_batches, std::vector<Tensor> first, std::vector<Tensor> last)
    : first_(std::move(first)), last_(std::move(last)) {
  if (micro_batches < 1) {
    throw ValueError("pipeline: " + std::to_string(micro_batches) + " micro-batches; 1 and more are allowed");
  }
  for (std::int64_t i = 0; i < micro_batches; ++i) passes_.insert(passes_.end(), {{true, i}, {false, i}});
}

void AllStages::complete_gradients() {
  for (std::size_t i = 0; i < first_.size(); ++i) {
    const Tensor theirs = std::exchange(last_[i].grad(), Tensor());
    add_to(first_[i].grad(), theirs);
  }
}

void AllStages::drop() noexcept {
  for (Tensor& last : last_) last.grad() = Tensor();
}

}  // namespace thimble::dist
