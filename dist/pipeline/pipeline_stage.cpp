#include <thimble/dist/pipeline/pipeline_stage.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
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
  const auto chunks = static_cast<std::size_t>(schedule.chunks),
             count = static_cast<std::size_t>(schedule.micro_batches);
  if (schedule.stages != stages.size() || options_.inputs.size() != chunks) {
    throw ValueError("pipeline: a schedule of " + std::to_string(schedule.stages) + " stages in " +
                     std::to_string(schedule.chunks) + " chunks for " + std::to_string(stages.size()) + " ranks and " +
                     std::to_string(options_.inputs.size()) + " inputs; expected equal numbers");
  }
  check_schedule(schedule);
  open_ = check_hand_over(schedule);
  for (const Action& action : schedule.of_stage[static_cast<std::size_t>(stages.rank())]) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    passes_.push_back({action.pass == Pass::forward, action.micro_batch, chunk, is_last(chunk)});
  }
  inputs_.resize(chunks * count);
  given_.resize(chunks * count);
  if (!options_.shared.tensor.defined() || !has_last()) return;
  options_.shared.tensor.leaf()->is_input = true;  // no optimizer of this stage updates it
  head_ = std::make_unique<DataParallel>(ranks.communicator(), std::vector{options_.shared});
}

Communicator::Volume PipelineStage::volume() const noexcept {
  const Communicator::Volume a = stages_.volume(), b = apart_->volume();
  return {a.bytes_sent + b.bytes_sent, a.messages + b.messages};
}

std::size_t PipelineStage::place() const noexcept {
  return pass_.chunk * static_cast<std::size_t>(options_.schedule.micro_batches) +
         static_cast<std::size_t>(pass_.micro_batch);
}

void PipelineStage::begin_send(Communicator& ranks, int to, const Tensor& tensor, Sent& sent) {
  sent.tensor = contiguous(tensor.detach());
  sent.transit.send(to, sent.tensor);
  sent.transit.begin(ranks);
}

void PipelineStage::end_first(std::deque<Sent>& sent) {
  sent.front().transit.wait();
  sent.pop_front();
}

Tensor PipelineStage::receive(Communicator& ranks, int from, const Shape& shape, DType dtype,
                              memory::Category category) {
  const PathScope path = ranks_path();
  Tensor tensor = Tensor::empty(shape, dtype, options_.device, category);
  Transit transit;
  transit.receive(from, tensor);
  transit.begin(ranks);
  transit.wait();
  return tensor;
}

Tensor PipelineStage::receive(std::size_t chunk, std::int64_t samples) {
  Shape shape = options_.inputs[chunk].shape;
  shape[0] = samples;
  return receive(stages_, stage_before(), shape, options_.inputs[chunk].dtype, memory::Category::activation);
}

Tensor PipelineStage::receive_input(std::int64_t samples) {
  Tensor x = receive(pass_.chunk, samples);
  x.require_grad();
  x.leaf()->is_input = true;
  inputs_[place()] = x.leaf();
  return x;
}

void PipelineStage::begin_pass(const optim::StagePass& pass) {
  pass_ = pass;
  ++number_;
  while (!results_.empty() && results_.front().ends_at <= number_) end_first(results_);
}

void PipelineStage::send(const Tensor& result) {
  while (!results_.empty()) end_first(results_);
  begin_send(stages_, stage_after(), result, results_.emplace_back());
}

void PipelineStage::send_result(const Tensor& result) {
  given_[place()] = {result.shape(), result.dtype()};
  begin_send(stages_, stage_after(), result, results_.emplace_back());
  results_.back().ends_at = number_ + open_;
}

Tensor PipelineStage::receive_gradient() {
  const auto& [shape, dtype] = given_[place()];
  return receive(stages_, stage_after(), shape, dtype, memory::Category::temporary);
}

bool PipelineStage::take_gradient(const std::shared_ptr<tape::Leaf>& leaf) {
  for (std::deque<Sent>* const sent : {&results_, &gradients_}) {
    for (Sent& one : *sent) one.transit.advance();  // MPI moves bytes only during its calls
  }
  std::shared_ptr<tape::Leaf>& input = inputs_[place()];
  if (leaf == input) {
    input.reset();
    while (gradients_.size() >= static_cast<std::size_t>(open_)) end_first(gradients_);
    begin_send(stages_, stage_before(), std::exchange(leaf->grad, Tensor()), gradients_.emplace_back());
    return true;
  }
  if (!head_ || leaf != options_.shared.tensor.leaf()) return false;
  head_->take_gradient(leaf);
  head_->end_micro_batch(0);  // its only chunk
  return true;
}

void PipelineStage::begin_step() {
  number_ = 0;
  if (head_) head_->begin_step(options_.schedule.micro_batches);
}

void PipelineStage::end_passes() {
  while (!results_.empty()) end_first(results_);
  while (!gradients_.empty()) end_first(gradients_);
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
  } else if (stages_.rank() == 0) {
    const Tensor theirs =
        receive(*apart_, apart_->size() - 1, shared.shape(), shared.dtype(), memory::Category::communication);
    for (const optim::Named& p : ranks_.parameters()) {
      if (p.name == options_.shared.name) add_to(p.tensor.grad(), window_of(theirs, p.first_element, p.tensor.shape()));
    }
  }
}

Tensor PipelineStage::share_loss(const Tensor& loss) {
  const int last = apart_->size() - 1;
  if (!has_last()) return receive(*apart_, last, {}, DType::f64, memory::Category::communication);
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

/// Adds a chunk's squares to `sum` one after the other.
void PipelineStage::add_squares(const Tensor& own, std::size_t chunk, const Tensor& sum) const {
  const auto number = static_cast<int>(chunk);
  const std::int64_t first = number > 0 ? ranks_.square_sums_to(number - 1) : 0, end = ranks_.square_sums_to(number);
  const auto add_own = [&](const double* terms, double* to) {
    for (std::int64_t i = first; i < end; ++i) *to += terms[i];
  };
  if (!own.defined()) return;
  if (options_.device == cpu) {
    launch(cpu, [&](const Addresses& at) { add_own(at.as<double>(own), at.as<double>(sum)); });
  } else if (!options_.device.is_dry) {
    std::vector<double> so_far = to_host<double>(sum);
    add_own(to_host<double>(own).data(), so_far.data());
    copy_into(sum, from_host(so_far, {1}, options_.device));
  }
}

Tensor PipelineStage::sum_squares(const Tensor& own) {
  const int last = apart_->size() - 1;
  const PathScope path = ranks_path();
  const Tensor sum = Tensor::empty({1}, DType::f64, options_.device, memory::Category::workspace);
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {  // around the ring, in the order of the model
    if (is_first(chunk)) {
      fill(sum, 0);
    } else {
      Transit before;
      before.receive(stage_before(), sum);
      before.begin(*apart_);
      before.wait();
    }
    add_squares(own, chunk, sum);
    Transit on;  // the sum so far to the next stage, the total to all
    if (!is_last(chunk)) on.send(stage_after(), sum);
    for (int stage = 0; is_last(chunk) && stage < last; ++stage) on.send(stage, sum);
    on.begin(*apart_);
    on.wait();
  }
  Tensor all = has_last() ? sum : receive(*apart_, last, {1}, DType::f64, memory::Category::workspace);
  all.set_tape_ref({}, tape::Origin::gradient);
  return all;
}

void PipelineStage::share_parameters() {
  const Tensor& shared = options_.shared.tensor;
  if (!shared.defined()) return;
  fetch_parameters(shared);
  Transit transit;
  if (stages_.rank() == 0) {
    transit.send(apart_->size() - 1, shared);
  } else {
    transit.receive(0, shared);
  }
  transit.begin(*apart_);
  transit.wait();
  if (has_last() && shared.storage()) shared.storage()->bump_version();
}

void PipelineStage::drop() noexcept {
  results_.clear();
  gradients_.clear();
  if (head_) head_->drop_gradients();
  for (std::shared_ptr<tape::Leaf>& leaf : inputs_) leaf.reset();
}

AllStages::AllStages(std::int64_t micro_batches, std::vector<Tensor> first, std::vector<Tensor> last)
    : first_(std::move(first)), last_(std::move(last)) {
  if (micro_batches < 1) {
    throw ValueError("pipeline: " + std::to_string(micro_batches) + " micro-batches; expected at least 1");
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
