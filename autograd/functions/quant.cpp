#include <thimble/autograd/functions/quant.h>

#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/lora_linear.h>
#include <thimble/core/ops/quant/fp8_linear.h>

namespace thimble {

Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Fp8Format& format,
                  const Fp8State& state, bool records, kernels::Activation activation, bool weight_is_in_out) {
  const bool is_delayed = format.scaling == Fp8Scaling::delayed;
  if (is_delayed && !state.defined()) throw ValueError("fp8_linear: delayed scaling needs a state, which is undefined");
  Tensor scales;
  if (is_delayed) {
    // Outside a transaction this call overwrites the scales before backward reads them.
    scales = context().transaction == nullptr && context().tape != nullptr ? clone(state.scale) : state.scale;
  }
  Fp8Use use{format, is_delayed ? state : Fp8State{}, 0, records};
  if (records) use.step = static_cast<std::int64_t>(current_generator().step());
  return apply(ops::Fp8Linear{use, activation, weight_is_in_out}, x, weight, bias, scales);
}

Tensor quantize_q8(const Tensor& weight) {
  if (weight.dtype() != DType::f32) throw DTypeError("quantize_q8: weight " + describe(weight) + "; expected f32");
  if (weight.rank() != 2 || weight.size(1) % kernels::q8_block != 0) {
    throw ShapeError("quantize_q8: weight " + to_string(weight.shape()) + "; expected (out, in) with 32 dividing in");
  }
  const memory::Device device = weight.device();
  if (device.is_cuda() && !device.is_dry) {  // the host makes the codes
    return to_device(quantize_q8(to_device(weight.detach(), cpu)), device, memory::Category::parameter);
  }
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  const Tensor blocks = Tensor::empty({rows, columns / kernels::q8_block * kernels::q8_block_bytes}, DType::u8,
                                      weight.device(), memory::Category::parameter);
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
