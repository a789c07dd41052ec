#include <thimble/nn/quant/quantized_model.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/units.h>

namespace thimble::nn::quant {

QuantizedModel::QuantizedModel(const FoldedNet& net, const Scales& scales) : program_(net.program()), scales_(scales) {
  if (scales.values.size() != static_cast<std::size_t>(program_.values())) {
    throw ValueError("quantize: " + std::to_string(scales.values.size()) + " scales for " +
                     std::to_string(program_.values()) + " values");
  }
  const NoGrad off;
  const PathScope scope(path());
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    const PathScope of_step(step.name);
    const CodeScale& in = scales_.values[static_cast<std::size_t>(step.inputs.front())];
    weights_.push_back(step.has_weight()
                           ? pack_weights(net.weight(i), net.bias(i), step, in, result_scale(i), scales.weights)
                           : PackedWeights{});
  }
  check_scales();
}

void QuantizedModel::check_scales() const {
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    const CodeScale* const out = result_scale(i);
    std::vector<int> read;
    if (step.kind == StepKind::add || step.kind == StepKind::average) read = step.inputs;
    if (step.residual >= 0) read.push_back(step.residual);
    for (const int value : read) {
      const float scale = scales_.values[static_cast<std::size_t>(value)].scale;
      if (std::isfinite(255 * (scale / out->scale))) continue;
      throw ValueError("quantized net: step " + step.name + ": its scales are too far apart for f32: value " +
                       std::to_string(value) + " has " + format_short(scale) + ", the result " +
                       format_short(out->scale) + "; 255 x value / result must be finite");
    }
  }
}

const CodeScale* QuantizedModel::result_scale(std::size_t step) const {
  const bool is_last = step + 1 == program_.steps.size();
  const Step& s = program_.steps[step];
  if (is_last && s.has_weight() && !s.has_relu && s.residual < 0) return nullptr;
  return &scales_.values[step + 1];
}

std::size_t QuantizedModel::weight_bytes() const {
  std::size_t bytes = 0;
  for (const PackedWeights& w : weights_) {
    for (const Tensor& t : {w.codes, w.weight_scale, w.bias, w.scale}) bytes += t.bytes();
  }
  return bytes;
}

Codes QuantizedModel::compute(std::size_t index, const std::vector<Codes>& values) const {
  const Step& step = program_.steps[index];
  const auto in = [&](std::size_t i) -> const Codes& { return values[static_cast<std::size_t>(step.inputs[i])]; };
  const CodeScale* const out = result_scale(index);
  switch (step.kind) {
    case StepKind::conv:
    case StepKind::linear:
      return conv_codes(in(0), weights_[index], step,
                        step.residual >= 0 ? &values[static_cast<std::size_t>(step.residual)] : nullptr, out);
    case StepKind::max_pool:
      return max_pool_of(in(0), step.window);
    case StepKind::average:
      return mean_of(in(0), *out);
    case StepKind::concat: {
      std::vector<Codes> parts;
      for (std::size_t i = 0; i < step.inputs.size(); ++i) parts.push_back(in(i));
      return concat_of(parts);
    }
    case StepKind::add:
      return sum_of(in(0), in(1), step.has_relu, *out);
    case StepKind::relu:
      return relu_of(in(0));
    case StepKind::flatten: {
      const Tensor& t = in(0).tensor;
      return {t.window({t.size(0), t.elements() / std::max<std::int64_t>(t.size(0), 1)},
                       {t.elements() / std::max<std::int64_t>(t.size(0), 1), 1}, t.offset()),
              in(0).scale};
    }
  }
  throw ValueError("quantized net: step '" + step.name + "' is of an unknown kind");
}

Tensor QuantizedModel::run(const Tensor& x, const Observer& observer) {
  const NoGrad off;
  const PathScope scope(path());
  const std::vector<int> last = program_.last_uses();
  std::vector<Codes> values(static_cast<std::size_t>(program_.values()));
  const auto numbers = [](const Codes& c) { return c.tensor.dtype() == DType::u8 ? from_codes(c) : c.tensor; };
  values[0] = to_codes(x, scales_.values[0]);
  if (observer) observer(0, numbers(values[0]));
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const PathScope of_step(program_.steps[i].name);
    values[i + 1] = compute(i, values);
    if (observer) observer(static_cast<int>(i) + 1, numbers(values[i + 1]));
    for (std::size_t v = 0; v <= i; ++v) {
      if (last[v] == static_cast<int>(i)) values[v] = Codes();
    }
  }
  return numbers(values.back());
}

// ---- Files of QuantizedModel.

namespace {

constexpr const char* format = "thimble-int8-1";
constexpr const char* own_keys[] = {"format", "program", "activations", "weights"};

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw ValueError("quantized net: " + path + ": " + why);
}

const std::string& text_of(const SafetensorsReader& file, const char* key) {
  const auto& metadata = file.header().metadata;
  const auto found = metadata.find(key);
  if (found == metadata.end())
    refuse_file(file.path(), std::string("its metadata lack '") + key + "'; it is no quantized net");
  return found->second;
}

template <class E, std::size_t n>
E parse_name(const SafetensorsReader& file, const char* key, const E (&all)[n]) {
  const std::string& text = text_of(file, key);
  std::string known;
  for (const E e : all) {
    if (to_string(e) == text) return e;
    known += (known.empty() ? "" : ", ") + std::string(to_string(e));
  }
  refuse_file(file.path(), std::string(key) + " " + quote(text) + " is not one of " + known);
}

/// Reads a tensor whose shape and dtype are known. Throws ValueError when the file lacks it.
Tensor read(const SafetensorsReader& file, const std::string& name, const Shape& shape, DType dtype, FileLayout layout,
            memory::Device device) {
  const SafetensorsEntry* const entry = file.header().find(name);
  if (!entry) refuse_file(file.path(), "the tensor " + quote(name) + " is missing");
  const NamedTensor target{name, Tensor::empty(shape, dtype, device), layout};
  check_file_tensor("quantized net: " + file.path(), *entry, target, Conversion::none);
  FileStaging staging;
  read_file_tensor(file, *entry, target, staging);
  return target.tensor;
}

/// (O, KH, KW, I) or (O, I) of a weight in the file.
Shape shape_in_file(const SafetensorsReader& file, const std::string& name, const Step& step) {
  const SafetensorsEntry* const entry = file.header().find(name);
  if (!entry) refuse_file(file.path(), "the tensor " + quote(name) + " is missing");
  const auto& s = entry->shape;
  const bool is_conv = step.kind == StepKind::conv;
  if (s.size() != (is_conv ? 4U : 2U)) {
    throw ShapeError("quantized net: " + file.path() + ": " + quote(name) + " has " + std::to_string(s.size()) +
                     " sizes, " + (is_conv ? "(O, I, KH, KW)" : "(O, I)") + " is needed");
  }
  return is_conv ? Shape{s[0], s[2], s[3], s[1]} : Shape{s[0], s[1]};
}

Scales read_scales(const SafetensorsReader& file, const Program& program) {
  Scales scales;
  scales.activations = parse_name(file, "activations", {Activations::asymmetric, Activations::symmetric});
  scales.weights = parse_name(file, "weights", {WeightScales::per_channel, WeightScales::per_tensor});
  const Shape shape{program.values()};
  const auto numbers = to_host<float>(read(file, "activation_scales", shape, DType::f32, FileLayout::same, cpu));
  const auto zeros = to_host<std::uint8_t>(read(file, "zero_points", shape, DType::u8, FileLayout::same, cpu));
  const bool is_symmetric = scales.activations == Activations::symmetric;
  for (std::size_t v = 0; v < numbers.size(); ++v) {
    if (!(std::isfinite(numbers[v]) && numbers[v] >= std::numeric_limits<float>::min())) {
      refuse_file(file.path(), "activation scale " + std::to_string(v) + " is " + format_short(numbers[v]) +
                                   "; expected finite numbers from 2^-126 on");
    }
    if (is_symmetric && zeros[v] != 128) {
      refuse_file(file.path(), "zero point " + std::to_string(v) + " of a symmetric net is " +
                                   std::to_string(zeros[v]) + "; expected 128");
    }
    scales.values.push_back({numbers[v], zeros[v], is_symmetric ? 1 : 0, 255});
  }
  const std::vector<int> groups = program.scale_groups();
  for (std::size_t v = 0; v < groups.size(); ++v) {
    const CodeScale& first = scales.values[static_cast<std::size_t>(groups[v])];
    if (first.scale != scales.values[v].scale || first.zero != scales.values[v].zero) {
      refuse_file(file.path(), "values " + std::to_string(groups[v]) + " and " + std::to_string(v) +
                                   " share their codes and have different scales");
    }
  }
  return scales;
}

}  // namespace

void QuantizedModel::save(const std::string& path, const Metadata& metadata) const {
  Metadata all = metadata_;
  for (const auto& [key, text] : metadata) all[key] = text;
  for (const char* key : own_keys) {
    if (all.count(key) != 0) throw ValueError(std::string("quantized net: metadata '") + key + "' is the net's own");
  }
  all["format"] = format;
  all["program"] = to_text(program_);
  all["activations"] = to_string(scales_.activations);
  all["weights"] = to_string(scales_.weights);
  std::vector<NamedTensor> tensors;
  std::vector<float> weight_scales, activation_scales;
  std::vector<std::int32_t> biases;
  std::vector<std::uint8_t> zeros;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const PackedWeights& w = weights_[i];
    if (!w.codes.defined()) continue;
    const bool is_conv = program_.steps[i].kind == StepKind::conv;
    tensors.push_back(
        {program_.steps[i].name + ".weight", unpacked_codes(w), is_conv ? FileLayout::oihw : FileLayout::same});
    const auto scales = to_host<float>(w.weight_scale);
    const auto bias = to_host<std::int32_t>(w.bias);
    weight_scales.insert(weight_scales.end(), scales.begin(), scales.end());
    biases.insert(biases.end(), bias.begin(), bias.begin() + w.shape[0]);
  }
  for (const CodeScale& s : scales_.values) {
    activation_scales.push_back(s.scale);
    zeros.push_back(static_cast<std::uint8_t>(s.zero));
  }
  const auto filters = static_cast<std::int64_t>(biases.size());
  const std::int64_t values = program_.values();
  tensors.push_back({"weight_scales", from_host(weight_scales, {filters})});
  tensors.push_back({"biases", from_host(biases, {filters})});
  tensors.push_back({"activation_scales", from_host(activation_scales, {values})});
  tensors.push_back({"zero_points", from_host(zeros, {values})});
  write_tensor_file(path, tensors, all);
}

std::unique_ptr<QuantizedModel> QuantizedModel::load(const std::string& path, memory::Device device) {
  const SafetensorsReader file(path);
  if (text_of(file, "format") != format) {
    refuse_file(path, "its format is " + quote(text_of(file, "format")) + ", " + quote(format) + " is needed");
  }
  std::unique_ptr<QuantizedModel> model(new QuantizedModel());
  model->program_ = parse_program(text_of(file, "program"));
  model->scales_ = read_scales(file, model->program_);
  model->metadata_ = file.header().metadata;
  for (const char* key : own_keys) model->metadata_.erase(key);

  std::set<std::string> known{"weight_scales", "biases", "activation_scales", "zero_points"};
  std::vector<Shape> shapes;
  std::int64_t filters = 0;
  for (const Step& step : model->program_.steps) {
    shapes.push_back(step.has_weight() ? shape_in_file(file, step.name + ".weight", step) : Shape{});
    if (!step.has_weight()) continue;
    if (!known.insert(step.name + ".weight").second) refuse_file(path, "two steps are named " + quote(step.name));
    filters += shapes.back()[0];
  }
  for (const SafetensorsEntry& entry : file.header().tensors) {
    if (known.count(entry.name) == 0) refuse_file(path, "the tensor " + quote(entry.name) + " is unknown");
  }
  const Tensor scales = read(file, "weight_scales", {filters}, DType::f32, FileLayout::same, device);
  const Tensor biases = read(file, "biases", {filters}, DType::i32, FileLayout::same, device);
  const NoGrad off;
  const PathScope scope(model->path());
  std::int64_t at = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Step& step = model->program_.steps[i];
    if (!step.has_weight()) {
      model->weights_.emplace_back();
      continue;
    }
    const PathScope of_step(step.name);
    const FileLayout layout = step.kind == StepKind::conv ? FileLayout::oihw : FileLayout::same;
    const Tensor codes = read(file, step.name + ".weight", shapes[i], DType::i8, layout, device);
    const std::int64_t end = at + shapes[i][0];
    const CodeScale& in = model->scales_.values[static_cast<std::size_t>(step.inputs.front())];
    model->weights_.push_back(pack_codes(codes, view::slice(scales, 0, at, end), view::slice(biases, 0, at, end), step,
                                         in, model->result_scale(i)));
    at = end;
  }
  model->check_scales();
  return model;
}

}  // namespace thimble::nn::quant
