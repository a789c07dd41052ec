#include <thimble/autograd/functions/q8.h>

#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/q8_block.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/matmul/linear_q8.h>
#include <thimble/core/tensor/copy.h>

namespace thimble {

Tensor quantize_q8(const Tensor& weight) {
  if (weight.dtype() != DType::f32) throw DTypeError("quantize_q8: weight " + describe(weight) + "; expected f32");
  if (weight.rank() != 2 || weight.size(1) % kernels::q8_block != 0) {
    throw ShapeError("quantize_q8: weight " + to_string(weight.shape()) + "; expected (out, in) with 32 dividing in");
  }
  const memory::Device device = weight.device();
  if (device.is_cuda() && !device.is_dry) {  // a copy on the host
    return to_device(quantize_q8(to_device(weight.detach(), cpu)), device, Category::parameter);
  }
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  const Tensor blocks = Tensor::empty({rows, columns / kernels::q8_block * kernels::q8_block_bytes}, DType::u8,
                                      weight.device(), Category::parameter);
  bool is_good = true;
  launch(weight.device(), [&](const Addresses& at) {
    is_good = kernels::quantize_q8_rows(at.as<float>(weight), rows, columns, weight.strides()[0], weight.strides()[1],
                                        at.as<std::uint8_t>(blocks));
  });
  if (!is_good) {
    throw ValueError("quantize_q8: weight " + describe(weight) +
                     " has a value that is not finite, or above 127 x 65504");
  }
  return blocks;
}

Tensor dequantize_q8(const Tensor& blocks) {
  if (blocks.dtype() != DType::u8) throw DTypeError("dequantize_q8: blocks " + describe(blocks) + "; expected u8");
  if (blocks.rank() != 2 || blocks.size(1) % kernels::q8_block_bytes != 0) {
    throw ShapeError("dequantize_q8: blocks " + to_string(blocks.shape()) + "; expected (out, 34 in / 32)");
  }
  const Tensor from = contiguous(blocks);
  const std::int64_t in_row = blocks.size(1) / kernels::q8_block_bytes;
  const Tensor weight = Tensor::empty({blocks.size(0), in_row * kernels::q8_block}, DType::f32, blocks.device());
  launch(blocks.device(), [&](const Addresses& at) {
    kernels::q8_kernels(blocks.device())
        .dequantize(at.as<std::uint8_t>(from), blocks.size(0) * in_row, at.as<float>(weight));
  });
  return weight;
}

Tensor linear_q8(const Tensor& x, const Tensor& blocks, const Tensor& bias, kernels::Activation activation) {
  return apply(ops::LinearQ8{activation}, x, blocks, bias);
}

}  // namespace thimble
