#include <thimble/nn/quant/folded_net.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/autograd/functions/norm.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/conv/conv.h>
#include <thimble/core/ops/conv/pool.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/layout/view.h>
#include <thimble/core/ops/matmul/matmul.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/tensor/view.h>

namespace thimble::nn::quant {

// ---- Tracing: reads a recording of the model operator by operator.

namespace {

using Node = TapeGraph::Node;

/// Values in another tensor's dtype and on its device.
Tensor make_tensor(const std::vector<double>& values, const Shape& shape, const Tensor& like) {
  return to_dtype(from_host(values, shape, like.device()), like.dtype());
}

/// Zeros for a tensor on a dry device.
std::vector<double> values_of(const Tensor& t) {
  const Tensor wide = to_dtype(contiguous(t), DType::f64);  // takes its bytes on a dry device, too
  if (t.device().is_dry) return std::vector<double>(static_cast<std::size_t>(t.elements()));
  return to_host<double>(wide);
}

/// w' and b' of folded_net.h. An undefined g is 1, an undefined h 0.
void fold(TracedWeights& of, const Tensor& g, const Tensor& h, const Tensor& mean, const Tensor& var, double epsilon) {
  std::vector<double> w = values_of(of.weight), b = values_of(of.bias);
  const std::vector<double> m = values_of(mean), v = values_of(var);
  const std::vector<double> scale = g.defined() ? values_of(g) : std::vector<double>(b.size(), 1);
  const std::vector<double> shift = h.defined() ? values_of(h) : std::vector<double>(b.size(), 0);
  const std::size_t elements = w.size() / b.size();
  for (std::size_t o = 0; o < b.size(); ++o) {
    const double r = scale[o] / std::sqrt(v[o] + epsilon);
    for (std::size_t i = 0; i < elements; ++i) w[o * elements + i] *= r;
    b[o] = (b[o] - m[o]) * r + shift[o];
  }
  of.weight = make_tensor(w, of.weight.shape(), of.weight);
  of.bias = make_tensor(b, of.bias.shape(), of.bias);
}

class Tracer {
 public:
  Tracer(const Tape& tape, const Tensor& input, const Tensor& output, std::string prefix)
      : tape_(tape), graph_(TapeGraph::of(tape)), prefix_(std::move(prefix)) {
    value_of_.assign(graph_.values.size(), -1);
    uses_.assign(graph_.values.size(), 0);
    for (std::uint32_t v = 0; v < graph_.values.size(); ++v) {
      const bool is_outside = graph_.values[v].producer < 0 && !graph_.values[v].is_leaf;
      if (is_outside && tensor(v).storage() == input.storage()) value_of_[v] = 0;
    }
    for (const Node& node : graph_.nodes) {
      for (const std::uint32_t v : node.inputs) {
        if (v != TapeGraph::none) ++uses_[v];
      }
    }
    output_ = output.tape_ref().value;
    ++uses_[output_];
  }

  TracedNet trace() {
    for (at_ = 0; at_ < graph_.nodes.size(); ++at_) read(graph_.nodes[at_]);
    const int result = value_of_[output_];
    if (result < 1) throw ValueError("quantize: the net's result is not made by any of its operators");
    return ordered(result);
  }

 private:
  struct Traced {
    Step step;
    TracedWeights weights;
    std::size_t position;  ///< of the last operator fused into the step
  };

  Tensor tensor(std::uint32_t value) const {
    return value == TapeGraph::none ? Tensor() : TapeGraph::tensor(tape_, value);
  }
  [[noreturn]] void refuse(const std::string& why) const {
    const Node& node = graph_.nodes[at_];
    const std::string path(path_name(node.path));
    throw ValueError("quantize: " + std::string(node.type->name) + (path.empty() ? "" : " at " + path) + ": " + why);
  }
  /// The step that made a value, or null if another operator reads the value, too.
  Traced* only_for_us(std::uint32_t value) {
    const int v = value_of_[value];
    return v > 0 && uses_[value] == 1 ? &steps_[static_cast<std::size_t>(v - 1)] : nullptr;
  }
  int known(std::uint32_t value) const {
    if (value == TapeGraph::none || value_of_[value] < 0) {
      refuse("an operand is not made from the input; such nets cannot be quantized");
    }
    return value_of_[value];
  }
  Traced& add(StepKind kind, std::vector<int> inputs) {
    const Node& node = graph_.nodes[at_];
    Traced traced{{}, {}, at_};
    traced.step.kind = kind;
    traced.step.name = name_of(node, kind);
    traced.step.inputs = std::move(inputs);
    steps_.push_back(std::move(traced));
    value_of_[node.output] = static_cast<int>(steps_.size());
    return steps_.back();
  }
  /// The path below the model, numbered if a module runs several operators of a kind.
  std::string name_of(const Node& node, StepKind kind) const {
    std::string name(path_name(node.path));
    if (name.starts_with(prefix_ + ".")) name = name.substr(prefix_.size() + 1);
    if (name.empty() || name == prefix_) name = node.type->name;
    const bool has_weight = kind == StepKind::conv || kind == StepKind::linear;
    if (!has_weight && !name.ends_with(node.type->name)) name += "." + std::string(node.type->name);
    for (char& c : name) {
      if (c == ' ' || c == '\n') refuse("its path has a blank");
    }
    const auto is_taken = [&](const std::string& text) {
      return std::any_of(steps_.begin(), steps_.end(), [&](const Traced& t) { return t.step.name == text; });
    };
    std::string free = name;
    for (int i = 2; is_taken(free); ++i) free = name + "_" + std::to_string(i);
    return free;
  }
  void fuse_into(Traced& traced) {
    traced.position = at_;
    value_of_[graph_.nodes[at_].output] = static_cast<int>(&traced - steps_.data()) + 1;
  }

  void read(const Node& node) {
    if (const auto* op = node.as<ops::Conv2d>()) return read_conv(node, *op);
    if (const auto* op = node.as<ops::BatchNormEval<ops::NormTail::none>>()) return read_norm(node, *op);
    if (const auto* op = node.as<ops::BatchNormEval<ops::NormTail::relu>>()) return read_norm(node, *op);
    if (const auto* op = node.as<ops::BatchNormEval<ops::NormTail::add_relu>>()) return read_norm(node, *op);
    if (const auto* op = node.as<ops::Linear>()) return read_linear(node, *op);
    if (node.as<Elementwise<ops::Relu>>()) return read_relu(node);
    if (node.as<Elementwise<ops::Add>>()) return read_add(node);
    if (const auto* op = node.as<ops::MaxPool2d>()) return read_pool(node, *op);
    if (node.as<ops::GlobalAvgPool>()) {
      add(StepKind::average, {known(node.inputs[0])});
      return;
    }
    if (const auto* op = node.as<ops::Concat>()) return read_concat(node, *op);
    if (node.as<ops::Reshape>()) return read_reshape(node);
    refuse(
        "this operator cannot be quantized; conv2d, batch norm behind it, relu, add, max_pool2d, global_avg_pool, "
        "concat of channels, linear and flattening can");
  }

  void read_conv(const Node& node, const ops::Conv2d& op) {
    if (op.groups != 1) refuse("expected 1 group, got " + std::to_string(op.groups));
    Traced& traced = add(StepKind::conv, {known(node.inputs[0])});
    traced.weights.weight = clone(tensor(node.inputs[1]));
    traced.weights.bias = bias_of(tensor(node.inputs[2]), traced.weights.weight);
    const Shape& shape = traced.weights.weight.shape();
    traced.step.window = {
        {shape[1], shape[2]}, {op.stride_h, op.stride_w}, {op.pad_h, op.pad_w}, {op.dilation_h, op.dilation_w}, false};
  }

  static Tensor bias_of(const Tensor& bias, const Tensor& weight) {
    if (bias.defined()) return clone(bias);
    return make_tensor(std::vector<double>(static_cast<std::size_t>(weight.size(0))), {weight.size(0)}, weight);
  }

  template <kernels::NormTail tail>
  void read_norm(const Node& node, const ops::BatchNormEval<tail>& op) {
    Traced* const traced = only_for_us(node.inputs[0]);
    if (!traced || traced->step.kind != StepKind::conv || traced->step.has_relu || traced->step.residual >= 0) {
      refuse("a batch norm must stand directly behind a convolution");
    }
    fold(traced->weights, tensor(node.inputs[2]), tensor(node.inputs[3]), tensor(node.inputs[4]),
         tensor(node.inputs[5]), op.epsilon);
    if (tail == kernels::NormTail::add_relu) traced->step.residual = known(node.inputs[1]);
    traced->step.has_relu = tail != kernels::NormTail::none;
    fuse_into(*traced);
  }

  void read_linear(const Node& node, const ops::Linear& op) {
    using kernels::Activation;
    if (op.activation != Activation::none && op.activation != Activation::relu) {
      refuse("expected relu or no activation, got another");
    }
    if (graph_.values[node.inputs[0]].shape.rank() != 2) refuse("its operand is not (N, I)");
    Traced& traced = add(StepKind::linear, {known(node.inputs[0])});
    const Tensor weight = tensor(node.inputs[1]);
    traced.weights.weight = clone(op.weight_is_in_out ? view::transpose(weight) : weight);
    traced.weights.bias = bias_of(tensor(node.inputs[2]), traced.weights.weight);
    traced.step.has_relu = op.activation == Activation::relu;
  }

  void read_relu(const Node& node) {
    Traced* const traced = only_for_us(node.inputs[0]);
    const bool takes = traced && (traced->step.has_weight() || traced->step.kind == StepKind::add);
    if (!takes || traced->step.has_relu) {
      add(StepKind::relu, {known(node.inputs[0])});
      return;
    }
    traced->step.has_relu = true;
    fuse_into(*traced);
  }

  /// Fuses the sum into the convolution that makes an operand, the later one if both do.
  void read_add(const Node& node) {
    const auto& in = node.inputs;
    const int left = known(in[0]), right = known(in[1]);
    if (!(graph_.values[in[0]].shape == graph_.values[in[1]].shape)) refuse("its operands have different shapes");
    Traced* best = nullptr;
    int residual = -1;
    for (int side = 0; side < 2 && left != right; ++side) {
      Traced* const traced = only_for_us(in[static_cast<std::size_t>(side)]);
      if (!traced || traced->step.kind != StepKind::conv || traced->step.has_relu || traced->step.residual >= 0)
        continue;
      if (best && best->position > traced->position) continue;
      best = traced;
      residual = side == 0 ? right : left;
    }
    if (!best) {
      add(StepKind::add, {left, right});
      return;
    }
    best->step.residual = residual;
    fuse_into(*best);
  }

  void read_pool(const Node& node, const ops::MaxPool2d& op) {
    const PoolWindow& w = op.window;
    Traced& traced = add(StepKind::max_pool, {known(node.inputs[0])});
    traced.step.window = {w.kernel,
                          {w.stride[0] ? w.stride[0] : w.kernel[0], w.stride[1] ? w.stride[1] : w.kernel[1]},
                          w.padding,
                          w.dilation,
                          w.ceil_mode};
  }

  void read_concat(const Node& node, const ops::Concat& op) {
    const int rank = graph_.values[node.output].shape.rank();
    if (op.axis != rank - 1 && op.axis != -1) refuse("only the channels can be put together");
    std::vector<int> inputs;
    for (const std::uint32_t v : node.inputs) inputs.push_back(known(v));
    add(StepKind::concat, std::move(inputs));
  }

  void read_reshape(const Node& node) {
    const Shape &from = graph_.values[node.inputs[0]].shape, &to = graph_.values[node.output].shape;
    if (to.rank() != 2 || to[0] != from[0]) refuse("expected (N, ...) to (N, all)");
    add(StepKind::flatten, {known(node.inputs[0])});
  }

  /// The steps that lead to the result, in the order of their last operators, with values renumbered.
  TracedNet ordered(int result) const {
    std::vector<bool> is_used(steps_.size() + 1, false);
    is_used[static_cast<std::size_t>(result)] = true;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < steps_.size(); ++i) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return steps_[a].position < steps_[b].position; });
    for (auto i = order.rbegin(); i != order.rend(); ++i) {
      if (!is_used[*i + 1]) continue;
      for (const int v : steps_[*i].step.inputs) is_used[static_cast<std::size_t>(v)] = true;
      if (steps_[*i].step.residual >= 0) is_used[static_cast<std::size_t>(steps_[*i].step.residual)] = true;
    }
    std::vector<int> place(steps_.size() + 1, 0);
    TracedNet net;
    for (const std::size_t i : order) {
      if (!is_used[i + 1]) continue;
      Step step = steps_[i].step;
      for (int& v : step.inputs) v = place[static_cast<std::size_t>(v)];
      if (step.residual >= 0) step.residual = place[static_cast<std::size_t>(step.residual)];
      net.program.steps.push_back(std::move(step));
      net.weights.push_back(steps_[i].weights);
      place[i + 1] = static_cast<int>(net.program.steps.size());
    }
    return net;
  }

  const Tape& tape_;
  TapeGraph graph_;
  std::string prefix_;
  std::vector<int> value_of_, uses_;  // by the tape's values
  std::vector<Traced> steps_;         // step i makes value i + 1; in the order of their first operators
  std::size_t at_ = 0;
  std::uint32_t output_ = 0;
};

ops::Conv2d convolution(const StepWindow& w) {
  return {w.stride[0], w.stride[1], w.padding[0], w.padding[1], w.dilation[0], w.dilation[1], 1};
}

Tensor scalar(float value, memory::Device device) { return full({1}, static_cast<double>(value), DType::f32, device); }

/// (O, 1, ...) f32, or nullopt if a weight is not finite. Computed on the host, for a CUDA device from a copy.
std::optional<Tensor> weight_scales(const Tensor& weight, bool is_per_tensor) {
  const memory::Device device = weight.device();
  Shape shape = weight.shape();
  for (int axis = 1; axis < shape.rank(); ++axis) shape[axis] = 1;
  if (device.is_cuda()) {
    if (device.is_dry) return Tensor::empty(shape, DType::f32, device);
    const std::optional<Tensor> scale = weight_scales(to_device(weight, cpu), is_per_tensor);
    return scale ? to_device(*scale, device) : scale;
  }
  const std::int64_t filters = weight.size(0), elements = weight.elements() / std::max<std::int64_t>(filters, 1);
  const Tensor scale = Tensor::empty(shape, DType::f32, device);
  const Tensor codes = Tensor::empty({weight.elements()}, DType::i8, device, memory::Category::workspace);
  bool is_finite = true;
  launch(device, [&](const Addresses& at) {
    is_finite = kernels::quantize_weight_codes(at(weight), weight.dtype(), filters, elements, is_per_tensor, nullptr,
                                               at.as<std::int8_t>(codes), at.as<float>(scale));
  });
  return is_finite ? std::optional<Tensor>(scale) : std::nullopt;
}

}  // namespace

TracedNet trace_net(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input) {
  if (context().tape) throw AutogradError("quantize: a net cannot be read while something else is recorded");
  if (!input.defined() || input.elements() == 0) throw ShapeError("quantize: the input has no elements");
  const bool was_training = model.is_training();
  model.eval();
  Tape tape;
  tape.observe();
  Tensor output;
  try {
    const Recording on(tape);
    output = forward(input);
  } catch (...) {
    model.train(was_training);
    throw;
  }
  model.train(was_training);
  if (tape.node_count() == 0) throw ValueError("quantize: the net has no operators");
  return Tracer(tape, input, output, std::string(path_name(model.path()))).trace();
}

FoldedNet::FoldedNet(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input) {
  TracedNet net = trace_net(model, forward, input);
  program_ = std::move(net.program);
  const PathScope scope(path());
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    Weights own;
    if (step.has_weight()) {
      const FileLayout layout = step.kind == StepKind::conv ? FileLayout::oihw : FileLayout::same;
      own.weight = add_parameter(step.name + ".weight", net.weights[i].weight, layout);
      own.bias = add_parameter(step.name + ".bias", net.weights[i].bias);
    }
    weights_.push_back(std::move(own));
  }
}

void FoldedNet::fake_quantize(std::optional<Scales> scales) {
  if (scales && scales->values.size() != static_cast<std::size_t>(program_.values())) {
    throw ValueError("fake_quantize: " + std::to_string(scales->values.size()) + " scales for " +
                     std::to_string(program_.values()) + " values");
  }
  for (const Weights& w : weights_) {
    if (scales && w.weight.defined() && w.weight.dtype() != DType::f32) {
      throw DTypeError("fake_quantize: the net's weights are " + describe(w.weight) + "; f32 is needed");
    }
  }
  scales_ = std::move(scales);
}

Tensor FoldedNet::rounded(int value, Tensor x) const {
  const bool is_result = value + 1 == program_.values();
  if (!scales_ || is_result) return x;
  const CodeScale& s = scales_->values[static_cast<std::size_t>(value)];
  return thimble::fake_quantize(x, scalar(s.scale, x.device()), s.zero, s.low, s.high);
}

Tensor FoldedNet::rounded_weight(std::size_t step) const {
  const Tensor& weight = weights_[step].weight;
  if (!scales_) return weight;
  const std::optional<Tensor> scale = weight_scales(weight.detach(), scales_->weights == WeightScales::per_tensor);
  if (!scale)
    throw ValueError("fake_quantize: weight " + program_.steps[step].name + " has a value that is not finite");
  return thimble::fake_quantize(weight, *scale, 0, -127, 127);
}

Tensor FoldedNet::compute(std::size_t step, const std::vector<Tensor>& values) const {
  return rounded(static_cast<int>(step) + 1, exact(step, values));
}

Tensor FoldedNet::exact(std::size_t index, const std::vector<Tensor>& values) const {
  const Step& step = program_.steps[index];
  const auto in = [&](std::size_t i) -> const Tensor& { return values[static_cast<std::size_t>(step.inputs[i])]; };
  const Weights& own = weights_[index];
  switch (step.kind) {
    case StepKind::conv: {
      Tensor y = apply(convolution(step.window), in(0), rounded_weight(index), own.bias);
      if (step.residual >= 0) y = add(y, values[static_cast<std::size_t>(step.residual)]);
      return step.has_relu ? relu(y) : y;
    }
    case StepKind::linear:
      return linear(in(0), rounded_weight(index), own.bias,
                    step.has_relu ? kernels::Activation::relu : kernels::Activation::none);
    case StepKind::max_pool: {
      const StepWindow& w = step.window;
      return max_pool2d(in(0), {w.kernel, w.stride, w.padding, w.dilation, w.rounds_up});
    }
    case StepKind::average:
      return global_avg_pool(in(0));
    case StepKind::concat: {
      std::vector<Tensor> parts;
      for (std::size_t i = 0; i < step.inputs.size(); ++i) parts.push_back(in(i));
      return concat(parts, parts.front().rank() - 1);
    }
    case StepKind::add: {
      const Tensor y = add(in(0), in(1));
      return step.has_relu ? relu(y) : y;
    }
    case StepKind::relu:
      return relu(in(0));
    case StepKind::flatten:
      return flatten(in(0), 1);
  }
  throw ValueError("folded net: step '" + step.name + "' is of an unknown kind");
}

Tensor FoldedNet::run(const Tensor& x, const Observer& observer) {
  const PathScope scope(path());
  const std::vector<int> last = program_.last_uses();
  std::vector<Tensor> values(static_cast<std::size_t>(program_.values()));
  values[0] = rounded(0, x);
  if (observer) observer(0, values[0]);
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const PathScope of_step(program_.steps[i].name);
    values[i + 1] = compute(i, values);
    if (observer) observer(static_cast<int>(i) + 1, values[i + 1]);
    for (std::size_t v = 0; v <= i; ++v) {
      if (last[v] == static_cast<int>(i)) values[v] = Tensor();
    }
  }
  return values.back();
}

}  // namespace thimble::nn::quant
