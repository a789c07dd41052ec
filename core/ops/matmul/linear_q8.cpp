#include <thimble/core/ops/matmul/linear_q8.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/q8_block.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace linear_q8_detail {

/// The outputs of a tile are a multiple of this: a library takes a bias that begins at 16 bytes.
constexpr std::int64_t aligned = 4;

/// Of f32 rows: fits a processor's cache; on a GPU outweighs its launches.
std::int64_t tile_bytes(memory::Device device) { return std::int64_t{1} << (device.is_cuda() ? 25 : 20); }

void check(const Tensor& x, const Tensor& blocks, const Tensor& bias) {
  if (x.dtype() != DType::f32 || blocks.dtype() != DType::u8 || (bias.defined() && bias.dtype() != DType::f32)) {
    throw DTypeError("linear_q8: input " + describe(x) + ", blocks " + describe(blocks) + ", bias " + describe(bias) +
                     "; expected f32, u8 and f32");
  }
  if (x.rank() < 1 || blocks.rank() != 2 || blocks.size(1) % kernels::q8_block_bytes != 0 ||
      x.size(-1) != blocks.size(1) / kernels::q8_block_bytes * kernels::q8_block) {
    throw ShapeError("linear_q8: input " + to_string(x.shape()) + " does not fit blocks " + to_string(blocks.shape()) +
                     ", expected (out, 34 in / 32)");
  }
  if (bias.defined() && bias.shape() != Shape{blocks.size(0)}) {
    throw ShapeError("linear_q8: bias " + to_string(bias.shape()) + " for " + std::to_string(blocks.size(0)) +
                     " outputs");
  }
  if (x.device() != blocks.device() || (bias.defined() && bias.device() != x.device())) {
    throw DeviceError("linear_q8: input " + describe(x) + ", blocks " + describe(blocks) + ", bias " + describe(bias) +
                      "; expected one device");
  }
}

}  // namespace linear_q8_detail

Tensor LinearQ8::forward(const Tensor& x, const Tensor& blocks, const Tensor& bias, Needs needs, Saved&) const {
  linear_q8_detail::check(x, blocks, bias);
  if (needs.any()) throw AutogradError("linear_q8: quantized weights have no gradients; record nothing around them");
  const std::int64_t in = x.size(-1), out = blocks.size(0);
  const Tensor rows = view::reshape(contiguous(x), {in > 0 ? x.elements() / in : 0, in});  // (R, I)
  const Tensor weight = contiguous(blocks);
  const Tensor y = Tensor::empty({rows.size(0), out}, DType::f32, x.device());
  std::int64_t in_tile = std::clamp<std::int64_t>(
      linear_q8_detail::tile_bytes(x.device()) / std::max<std::int64_t>(4 * in, 1), 1, std::max<std::int64_t>(out, 1));
  if (in_tile < out && in_tile > linear_q8_detail::aligned) in_tile -= in_tile % linear_q8_detail::aligned;
  const Tensor tile = Tensor::empty({in_tile, in}, DType::f32, x.device(), Category::workspace);
  for (std::int64_t o = 0; o < out; o += in_tile) {
    const std::int64_t count = std::min(in_tile, out - o);
    const Tensor part = view::slice(tile, 0, 0, count);  // (count, I)
    launch(x.device(), [&](const Addresses& at) {
      kernels::q8_kernels(x.device())
          .dequantize(at.as<std::uint8_t>(weight) + o * weight.size(1), count * in / kernels::q8_block,
                      at.as<float>(part));
    });
    MatmulCall call{name, rows, view::transpose(part), view::slice(y, 1, o, o + count), {}, {}};
    if (bias.defined()) call.bias = contiguous(view::slice(bias, 0, o, o + count));
    call.activation = activation;
    matmul_into(call);
  }
  Shape shape = x.shape();
  shape[shape.rank() - 1] = out;
  return view::reshape(y, shape);
}

Gradients LinearQ8::backward(Saved, Tensor, Needs) const {
  throw AutogradError("linear_q8: quantized weights have no gradients");
}

double LinearQ8::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  return static_cast<double>(output.elements()) * static_cast<double>(inputs[0].size(-1));
}

}  // namespace thimble::ops
