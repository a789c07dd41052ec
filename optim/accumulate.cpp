#include <thimble/optim/accumulate.h>

#include <string>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/graph.h>
#include <thimble/autograd/spare_tape.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>

namespace thimble::optim {

namespace accumulate_detail {

// Undefined, which stands for 1, without a scale.
Tensor seed_of(const Tensor& loss, double scale) {
  if (scale == 1) return Tensor();
  if (size_of(loss.dtype()) < size_of(DType::f32)) {
    throw DTypeError("accumulate_gradients: the loss is " + describe(loss) + "; to be scaled it must be f32 or f64");
  }
  return full(loss.shape(), scale, loss.dtype(), loss.device());
}

}  // namespace accumulate_detail

Tensor accumulate_gradients(std::int64_t count, std::int64_t samples, FunctionRef<Tensor(std::int64_t)> loss_of,
                            const RecordingOptions& recording, const LeafHook* on_gradient, double loss_scale) {
  if (count < 1) throw ValueError("accumulate_gradients: " + std::to_string(count) + " micro-batches; at least 1");
  if (count > 1 && samples < 1) {
    throw ValueError("accumulate_gradients: " + std::to_string(count) + " micro-batches of " + std::to_string(samples) +
                     " samples; at least 1, as random operators draw by the sample's number in the whole batch");
  }
  const SpareTape spare;
  Tape& tape = *spare;
  if (recording.graph) tape.observe();
  tape.follow(recording.plan, recording.tier);
  tape.time(recording.times);
  Tensor total;
  for (std::int64_t i = 0; i < count; ++i) {
    current_generator().start_pass(i * samples);
    Tensor loss;
    {
      const Recording on(tape);
      loss = loss_of(i);
      if (count > 1) loss = loss * (1.0 / static_cast<double>(count));
    }
    if (recording.graph) *recording.graph = TapeGraph::of(tape);
    tape.backward(loss, accumulate_detail::seed_of(loss, loss_scale), on_gradient);
    total = total.defined() ? add(total, loss.detach()) : loss.detach();
  }
  return total;
}

}  // namespace thimble::optim
