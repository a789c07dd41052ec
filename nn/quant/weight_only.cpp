#include <thimble/nn/quant/weight_only.h>

#include <map>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/q8_block.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::nn::quant {

std::size_t quantize_linear_weights(Module& module) {
  std::vector<Linear*> layers;
  module.for_each_module([&](Module& m) {
    auto* const linear = dynamic_cast<Linear*>(&m);
    if (!linear || linear->has_quantized_weight()) return;
    if (linear->inputs() % kernels::q8_block != 0) {
      throw ShapeError("quantize: weight " + to_string(linear->weight.shape()) + " of " +
                       std::string(path_name(linear->path())) + " has " + std::to_string(linear->inputs()) +
                       " inputs; multiples of " + std::to_string(kernels::q8_block) + " are allowed");
    }
    layers.push_back(linear);
  });
  for (Linear* const linear : layers) linear->quantize_weight();
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
    const auto* const there = dynamic_cast<const Linear*>(&m);
    if (there == nullptr || !there->has_quantized_weight()) return;
    const std::string path(path_name(m.path()));
    const auto found = by_path.find(path);
    if (found == by_path.end() || found->second->has_quantized_weight()) {
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
