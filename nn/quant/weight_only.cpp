#include <thimble/nn/quant/weight_only.h>

#include <map>
#include <string>
#include <vector>

#include <thimble/autograd/functions/quant.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/quant_codes.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>

namespace thimble::nn::quant {

std::size_t CodedStore::code_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Part& part : parts_) bytes += part.codes.defined() ? part.codes.bytes() : 0;
  return bytes;
}

void CodedStore::add(std::uint32_t parameter, const Tensor& tensor) {
  const PathScope path(tensor.storage()->path());
  parts_.resize(parameter + 1);
  parts_[parameter] = {Tensor::empty({static_cast<std::int64_t>(coded_bytes(code_, tensor.elements()))}, DType::u8,
                                     tensor.device(), memory::Category::parameter),
                       tensor.elements(), tensor.dtype()};
}

void CodedStore::begin_write(std::uint32_t parameter, const memory::Storage&, const std::byte* at) {
  const Part& part = parts_[parameter];
  encode_weight(code_, at, part.dtype, part.elements, part.codes);
}

void CodedStore::begin_read(std::uint32_t parameter, const memory::Storage&, std::byte* at) {
  const Part& part = parts_[parameter];
  decode_weight(code_, part.codes, at, part.dtype, part.elements);
}

void CodedStore::drop(std::uint32_t parameter) noexcept {
  if (parameter < parts_.size()) parts_[parameter] = {};
}

namespace {

const Q8Linear* quantized_layer(const Linear& layer) { return dynamic_cast<const Q8Linear*>(layer.replacement()); }

}  // namespace

Q8Linear::Q8Linear(Linear& base) : base_(base) {
  const Layer* const other = base.replacement();
  if (other != nullptr && !other->difference().empty()) {
    throw ValueError("quantize: " + std::string(path_name(path())) + ": expected a plain layer, got one that " +
                     std::string(other->difference()));
  }
  const NoGrad off;
  weight_q8 =
      add_buffer("weight_q8", quantize_q8(base.weight_is_in_out() ? view::transpose(base.weight) : base.weight));
  base.weight = Tensor();
}

Tensor Q8Linear::forward(const Tensor& x) {
  return linear_q8(as_operand(x, base_.compute()), weight_q8, as_operand(base_.bias, base_.compute()),
                   base_.activation());
}

std::size_t quantize_linear_weights(Module& module) {
  std::vector<Linear*> layers;
  module.for_each_module([&](Module& m) {
    auto* const linear = dynamic_cast<Linear*>(&m);
    if (!linear || !linear->options().prefix.empty() || quantized_layer(*linear)) return;
    if (linear->inputs() % kernels::q8_block != 0) {
      throw ShapeError("quantize: weight " + to_string(linear->weight.shape()) + " of " +
                       std::string(path_name(linear->path())) + " has " + std::to_string(linear->inputs()) +
                       " inputs; expected multiples of " + std::to_string(kernels::q8_block));
    }
    layers.push_back(linear);
  });
  for (Linear* const linear : layers) replace<Q8Linear>(*linear);
  return layers.size();
}

std::vector<StepError> compare_weights(const Module& exact, const Module& quantized) {
  std::map<std::string, const Linear*> by_path;
  exact.for_each_module([&](const Module& m) {
    if (const auto* const linear = dynamic_cast<const Linear*>(&m)) by_path[std::string(path_name(m.path()))] = linear;
  });
  const NoGrad off;
  std::vector<StepError> errors;
  quantized.for_each_module([&](const Module& m) {
    const auto* const there = dynamic_cast<const Q8Linear*>(&m);
    if (there == nullptr) return;
    const std::string path(path_name(m.path()));
    const auto found = by_path.find(path);
    if (found == by_path.end() || quantized_layer(*found->second)) {
      throw ValueError("compare_weights: " + path + ": the exact model has no such weight");
    }
    const Linear& here = *found->second;
    const Tensor& weight = here.weight;
    const Tensor rows = here.weight_is_in_out() ? view::transpose(weight) : weight;  // (O, I)
    const std::vector<std::uint8_t> blocks = to_host<std::uint8_t>(there->weight_q8);
    std::vector<float> decoded(blocks.size() / kernels::q8_block_bytes * kernels::q8_block);
    kernels::dequantize_q8_blocks(blocks.data(), static_cast<std::int64_t>(blocks.size()) / kernels::q8_block_bytes,
                                  decoded.data());
    errors.push_back(step_error(path, to_host<float>(rows), decoded));
  });
  return errors;
}

}  // namespace thimble::nn::quant
