#include <thimble/nn/quant/weight_only.h>

#include <string>
#include <vector>

#include <thimble/core/context.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/q8_block.h>
#include <thimble/nn/layers.h>

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

}  // namespace thimble::nn::quant
