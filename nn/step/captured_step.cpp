#include <thimble/nn/step/captured_step.h>

#include <string>
#include <utility>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>

namespace thimble::nn {
namespace {

constexpr std::size_t eager_steps = 2;  // the first one and a steady one
constexpr std::int64_t block_bytes = 64 << 10, parameter_bytes = 128;

[[noreturn]] void refuse_capture(const std::string& why) { throw PlanError("captured step: " + why); }

memory::Device device_of(const optim::Optimizer& optimizer) {
  if (optimizer.parameters().empty()) refuse_capture("the optimizer has no parameters");
  const memory::Device device = optimizer.parameters().front().tensor.device();
  if (!device.is_cuda()) {
    throw DeviceError("captured step: parameters are on " + to_string(device) + "; expected a CUDA device");
  }
  return device;
}

void check(const memory::PlacedArena& placed, const optim::Optimizer& optimizer, const StepOptions& options,
           memory::Device device) {
  if (memory::PlacedArena::find(*current_resource(device)) != &placed) {
    refuse_capture("tensors on " + to_string(device) +
                   " are taken from another resource than the placed arena; expected a resource on top of it");
  }
  if (!optimizer.is_capturable()) {
    refuse_capture(std::string(optimizer.name()) +
                   " has other launches from step to step; expected an optimizer with the same ones");
  }
  if (optimizer.has_groups()) refuse_capture("the optimizer has parameter groups; expected one rate and decay for all");
  if (optimizer.offloads_state()) refuse_capture("the optimizer's state is in a tier; expected state that stays");
  if (optimizer.updates_one_by_one()) refuse_capture("parameters are in a store; expected parameters that stay");
  if (options.gradient_tier) refuse_capture("gradients wait in a tier; expected gradients that stay");
  if (options.recording.tier)
    refuse_capture("saved tensors go to a tier; expected a plan that keeps them on the device");
  if (!options.parts.empty())
    refuse_capture("micro-batches that differ have other weights in every step; expected equal ones");
  if (options.recording.graph || options.recording.times) refuse_capture("a step that is watched cannot be replayed");
}

}  // namespace

void load_input(const Tensor& to, const Tensor& from) {
  const auto both = [&] { return "load_input: " + describe(from) + " into " + describe(to); };
  if (to.shape() != from.shape()) throw ShapeError(both() + "; expected the same shape");
  if (to.dtype() != from.dtype()) throw DTypeError(both() + "; expected the same dtype");
  if (!to.device().is_cuda() || !from.device().is_cpu() || !to.is_contiguous() || !from.is_contiguous()) {
    throw DeviceError(both() + "; expected a copy from a dense tensor of the cpu into one of a CUDA device");
  }
  if (to.elements() == 0 || to.device().is_dry) return;
  if (from.device().is_dry) throw DeviceError(both() + "; a dry device has no values");
  launch(to.device(),
         [&](const Addresses& at) { kernels::device_runtime(to.device()).upload(at(to), at(from), from.bytes()); });
  to.storage()->bump_version();
}

/// Cuts the captured step where the host decides. Before the cut it writes the sums that the host reads, and the loss,
/// which a skipped step also returns.
class CapturedStep::Judge final : public StepJudge {
 public:
  explicit Judge(CapturedStep& step) : step_(step) {}

  optim::GradScaler::Verdict judge(const Tensor& loss, const Tensor& square_sums) override {
    copy_into(step_.loss_, view::reshape(loss, {}));
    step_.sum_count_ = square_sums.defined() ? square_sums.elements() : 0;
    if (step_.sum_count_ > 0) copy_into(view::slice(step_.sums_, 0, 0, step_.sum_count_), square_sums);
    cut();
    return {false, 1 / step_.options_.scaler->scale()};  // the update reads its factor from the step's numbers
  }

  LaunchGraph::Cut cut;

 private:
  CapturedStep& step_;
};

CapturedStep::CapturedStep(memory::PlacedArena& placed, optim::Optimizer& optimizer,
                           std::function<Tensor(std::int64_t)> loss_of, StepOptions options)
    : placed_(placed),
      optimizer_(optimizer),
      loss_of_(std::move(loss_of)),
      options_(std::move(options)),
      generator_(current_generator()),
      device_(device_of(optimizer)) {
  check(placed_, optimizer_, options_, device_);
  const std::int64_t bytes = block_bytes + parameter_bytes * static_cast<std::int64_t>(optimizer_.parameters().size());
  memory_ = Tensor::empty({bytes}, DType::u8, device_, memory::Category::workspace);
  const bool is_wide = optimizer_.parameters().front().tensor.dtype() == DType::f64;
  loss_ = Tensor::empty({}, is_wide ? DType::f64 : DType::f32, device_);
  if (!looks()) return;
  const auto parameters = static_cast<std::int64_t>(optimizer_.parameters().size());
  sums_ = Tensor::empty({parameters}, DType::f64, device_, memory::Category::workspace);
}

CapturedStep::~CapturedStep() { drop(); }

// The capture goes before the objects that it uses.
void CapturedStep::drop() noexcept {
  graph_.reset();
  block_.reset();
  hold_.reset();
}

Tensor CapturedStep::run() {
  if (&current_generator() != &generator_) refuse_capture("another generator is in force than when it was made");
  optimizer_.check_members();
  if (is_captured()) {
    replay();
  } else if (steps_ < eager_steps) {
    run_once(options_);
  } else {
    capture();
    if (!device_.is_dry) replay();
  }
  ++steps_;
  return loss_;
}

void CapturedStep::run_once(const StepOptions& options) {
  const memory::PlacedArena::Step step(placed_, steps_);
  const Tensor loss = training_step(optimizer_, loss_of_, options);
  if (options.judge == nullptr) copy_into(loss_, view::reshape(loss, {}));
}

kernels::StepNumbers CapturedStep::numbers() const {
  kernels::StepNumbers now;
  now.rate = optimizer_.rate();
  const double scale = options_.scaler != nullptr ? options_.scaler->scale() : 1;
  now.gradient_factor = optimizer_.gradient_factor() * (1 / scale);  // as in training_step
  now.loss_scale = scale;
  now.update = optimizer_.step_count() + 1;
  now.random_step = generator_.step();
  return now;
}

void CapturedStep::capture() {
  const std::int64_t updates = optimizer_.step_count();
  const std::uint64_t random_step = generator_.step();
  const memory::PlacedArena::Statistics before = placed_.statistics();
  auto hold = std::make_unique<memory::PlacedArena::Hold>(placed_);
  if (device_.is_dry) {
    run_once(options_);
    hold_ = std::move(hold);
    return;
  }
  const memory::WritePin pin(memory_);
  block_.emplace(static_cast<std::byte*>(pin.data()), memory_.bytes(), numbers());
  std::vector<Tensor> uses{memory_, loss_};
  if (sums_.defined()) uses.push_back(sums_);
  for (const optim::Named& p : optimizer_.parameters()) uses.push_back(p.tensor);
  for (const optim::Named& s : optimizer_.state()) uses.push_back(s.tensor);
  std::unique_ptr<LaunchGraph> graph;
  // Nothing has run, so restore the host's counts; also after a failed capture.
  const auto go_back = [&] {
    optimizer_.set_step_count(updates);
    generator_.set_step(random_step);
  };
  Judge judge(*this);
  StepOptions options = options_;
  if (looks()) options.judge = &judge;
  const auto work = [&] {
    const kernels::StepBlockScope scope(*block_);
    run_once(options);
  };
  try {
    graph = std::make_unique<LaunchGraph>(device_, uses, work, &judge.cut);
  } catch (...) {
    go_back();
    block_.reset();
    throw;
  }
  go_back();
  const memory::PlacedArena::Statistics after = placed_.statistics();
  if (after.deviations != before.deviations || after.dynamic_steps != before.dynamic_steps) {
    block_.reset();
    refuse_capture("it left its plan at event " + std::to_string(after.last_deviation) +
                   ", so its addresses are not those of the next; expected a step as it was planned");
  }
  image_.resize(block_->bytes());
  graph_ = std::move(graph);
  hold_ = std::move(hold);
}

/// Launches a part of the capture with these numbers.
void CapturedStep::replay_part(std::size_t part, const kernels::StepNumbers& now) {
  block_->write(now, image_.data());
  launch(device_, [&](const Addresses& at) {
    if (!image_.empty()) kernels::device_runtime(device_).upload(at(memory_), image_.data(), image_.size());
  });
  graph_->replay(part);
}

void CapturedStep::replay() {
  optim::GradScaler::Verdict verdict;
  if (!device_.is_dry) {
    kernels::StepNumbers now = numbers();
    replay_part(0, now);
    if (looks()) {
      const Tensor sums = sum_count_ > 0 ? view::slice(sums_, 0, 0, sum_count_) : Tensor();
      verdict = options_.scaler->judge_sums(sums, options_.clip_norm);
      now.gradient_factor = optimizer_.gradient_factor() * verdict.gradient_factor;  // as in training_step
      if (!verdict.is_skipped) replay_part(1, now);
    }
  }
  if (looks()) options_.scaler->record(verdict);
  generator_.set_step(generator_.step() + 1);
  if (verdict.is_skipped) return;
  optimizer_.begin_step();
  const auto wrote = [](const Tensor& t) {
    if (t.storage()) t.storage()->bump_version();
  };
  for (const optim::Named& p : optimizer_.parameters()) wrote(p.tensor);
  for (const optim::Named& s : optimizer_.state()) wrote(s.tensor);
}

}  // namespace thimble::nn
