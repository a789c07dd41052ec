// Files of QuantizedModel.

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/quant/quantized_model.h>

namespace thimble::nn::quant {
namespace quantized_file_detail {

constexpr const char* format = "thimble-int8-1";
constexpr const char* own_keys[] = {"format", "program", "activations", "weights"};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw ValueError("quantized net: " + path + ": " + why);
}

const std::string& text_of(const SafetensorsReader& file, const char* key) {
  const auto& metadata = file.header().metadata;
  const auto found = metadata.find(key);
  if (found == metadata.end())
    refuse(file.path(), std::string("its metadata lack '") + key + "'; it is no quantized net");
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
  refuse(file.path(), std::string(key) + " " + quote(text) + " is not one of " + known);
}

/// Reads a tensor whose shape and dtype are known. Throws ValueError when the file lacks it.
Tensor read(const SafetensorsReader& file, const std::string& name, const Shape& shape, DType dtype, FileLayout layout,
            memory::Device device) {
  const SafetensorsEntry* const entry = file.header().find(name);
  if (!entry) refuse(file.path(), "the tensor " + quote(name) + " is missing");
  const NamedTensor target{name, Tensor::empty(shape, dtype, device), layout};
  check_file_tensor("quantized net: " + file.path(), *entry, target, Conversion::none);
  FileStaging staging;
  read_file_tensor(file, *entry, target, staging);
  return target.tensor;
}

/// (O, KH, KW, I) or (O, I) of a weight in the file.
Shape shape_in_file(const SafetensorsReader& file, const std::string& name, const Step& step) {
  const SafetensorsEntry* const entry = file.header().find(name);
  if (!entry) refuse(file.path(), "the tensor " + quote(name) + " is missing");
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
      refuse(file.path(), "activation scale " + std::to_string(v) + " is " + number_text(numbers[v]) +
                              "; expected finite numbers from 2^-126 on");
    }
    if (is_symmetric && zeros[v] != 128) {
      refuse(file.path(), "zero point " + std::to_string(v) + " of a symmetric net is " + std::to_string(zeros[v]) +
                              "; expected 128");
    }
    scales.values.push_back({numbers[v], zeros[v], is_symmetric ? 1 : 0, 255});
  }
  const std::vector<int> groups = program.scale_groups();
  for (std::size_t v = 0; v < groups.size(); ++v) {
    const CodeScale& first = scales.values[static_cast<std::size_t>(groups[v])];
    if (first.scale != scales.values[v].scale || first.zero != scales.values[v].zero) {
      refuse(file.path(), "values " + std::to_string(groups[v]) + " and " + std::to_string(v) +
                              " share their codes and have different scales");
    }
  }
  return scales;
}

}  // namespace quantized_file_detail

void QuantizedModel::save(const std::string& path, const Metadata& metadata) const {
  using namespace quantized_file_detail;
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
  using namespace quantized_file_detail;
  const SafetensorsReader file(path);
  if (text_of(file, "format") != format) {
    refuse(path, "its format is " + quote(text_of(file, "format")) + ", " + quote(format) + " is needed");
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
    if (!known.insert(step.name + ".weight").second) refuse(path, "two steps are named " + quote(step.name));
    filters += shapes.back()[0];
  }
  for (const SafetensorsEntry& entry : file.header().tensors) {
    if (known.count(entry.name) == 0) refuse(path, "the tensor " + quote(entry.name) + " is unknown");
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
