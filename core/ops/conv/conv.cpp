#include <thimble/core/ops/conv/conv.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace conv_detail {

kernels::ConvShape sizes(const Conv2d& op, const Shape& x, const Shape& weight) {
  kernels::ConvShape s;
  s.images = x[0];
  s.height = x[1];
  s.width = x[2];
  s.channels = x[3];
  s.filters = weight[0];
  s.kernel_h = weight[1];
  s.kernel_w = weight[2];
  s.stride_h = op.stride_h;
  s.stride_w = op.stride_w;
  s.pad_top = s.pad_bottom = op.pad_h;
  s.pad_left = s.pad_right = op.pad_w;
  s.dilation_h = op.dilation_h;
  s.dilation_w = op.dilation_w;
  s.groups = op.groups;
  return s;
}

// Operands whose channels do not match, as they look in the other common layout.
std::string other_layout(const Conv2d& op, const Shape& x, const Shape& weight) {
  const bool has_nchw_image = x[1] == weight[3] * op.groups, has_oihw_weight = x[3] == weight[1] * op.groups;
  if (has_nchw_image) return "; the image looks like (N, C, H, W): permute(x, {0, 2, 3, 1})";
  if (has_oihw_weight) return "; the weight looks like (O, I, KH, KW): permute(weight, {0, 2, 3, 1})";
  if (x[1] == weight[1] * op.groups) return "; both look like (N, C, H, W) and (O, I, KH, KW): permute by {0, 2, 3, 1}";
  return "";
}

void check(const Conv2d& op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto sides = [&] { return "input " + to_string(x.shape()) + ", weight " + to_string(weight.shape()); };
  if (x.rank() != 4 || weight.rank() != 4) {
    throw ShapeError("conv2d: " + sides() + "; expected (N, H, W, C) and (O, KH, KW, C / groups)");
  }
  if (op.stride_h < 1 || op.stride_w < 1 || op.dilation_h < 1 || op.dilation_w < 1 || op.pad_h < 0 || op.pad_w < 0 ||
      op.groups < 1) {
    throw ValueError("conv2d: stride, dilation and groups must be >= 1, padding >= 0");
  }
  if (x.shape()[3] % op.groups != 0 || weight.shape()[0] % op.groups != 0 ||
      weight.shape()[3] * op.groups != x.shape()[3]) {
    throw ShapeError(
        "conv2d takes images (N, H, W, C) and weights (O, KH, KW, C / groups), groups dividing C and O; got " +
        sides() + ", groups " + std::to_string(op.groups) + other_layout(op, x.shape(), weight.shape()));
  }
  if (bias.defined() && bias.shape() != Shape{weight.shape()[0]}) {
    throw ShapeError("conv2d: bias " + to_string(bias.shape()) + " for " + std::to_string(weight.shape()[0]) +
                     " filters");
  }
  if (x.dtype() != weight.dtype() || !is_floating(x.dtype()) || (bias.defined() && bias.dtype() != x.dtype())) {
    throw DTypeError("conv2d: input " + describe(x) + ", weight " + describe(weight) + ", bias " + describe(bias) +
                     "; expected one floating dtype");
  }
  if (x.device() != weight.device()) {
    throw DeviceError("conv2d: operands on different devices, " + describe(x) + " and " + describe(weight));
  }
  const kernels::ConvShape s = sizes(op, x.shape(), weight.shape());
  if (s.out_height() < 1 || s.out_width() < 1) {
    throw ShapeError("conv2d: the kernel does not fit into the padded image, " + sides());
  }
}

Tensor workspace_of(std::size_t bytes, Device device) {
  if (bytes == 0) return {};
  return Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::u8, device, Category::workspace);
}

}  // namespace conv_detail

double Conv2d::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  const Tensor& weight = inputs[1];
  return static_cast<double>(output.elements()) * static_cast<double>(weight.elements() / weight.size(0));
}

Tensor Conv2d::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const {
  conv_detail::check(*this, x, weight, bias);
  const Tensor image = contiguous(x), filters = contiguous(weight), offset = bias.defined() ? contiguous(bias) : bias;
  kernels::ConvForwardArgs args;
  args.shape = conv_detail::sizes(*this, x.shape(), weight.shape());
  args.dtype = args.out_dtype = x.dtype();
  const Tensor y = Tensor::empty({x.shape()[0], args.shape.out_height(), args.shape.out_width(), weight.shape()[0]},
                                 x.dtype(), x.device());
  if (y.elements() > 0) {
    const auto& kernels = kernels::matmul_kernels(x.device());
    const int threads = thread_count();
    const Tensor workspace = conv_detail::workspace_of(kernels.conv_forward_bytes(args, threads), x.device());
    launch(x.device(), [&](const Addresses& at) {
      args.x = at(image);
      args.weight = at(filters);
      args.bias = at(offset);
      args.y = at(y);
      kernels.conv_forward(args, at(workspace), threads);
    });
  }
  if (needs[1]) saved.x = x;
  if (needs[0]) saved.weight = weight;
  saved.x_shape = x.shape();
  saved.weight_shape = weight.shape();
  return y;
}

Gradients Conv2d::backward(Saved saved, Tensor dy, Needs needs) const {
  const kernels::ConvShape shape = conv_detail::sizes(*this, saved.x_shape, saved.weight_shape);
  const Device device = dy.device();
  const auto& kernels = kernels::matmul_kernels(device);
  const int threads = thread_count();
  dy = contiguous(dy);  // (N, OH, OW, O)
  Tensor dx, dweight, dbias;
  if (needs[1]) {
    const Tensor x = contiguous(std::exchange(saved.x, Tensor()));
    dweight = Tensor::empty(saved.weight_shape, dy.dtype(), device);
    kernels::ConvWeightGradArgs args;
    args.shape = shape;
    args.dtype = args.out_dtype = dy.dtype();
    const Tensor workspace = conv_detail::workspace_of(kernels.conv_weight_grad_bytes(args, threads), device);
    launch(device, [&](const Addresses& at) {
      args.x = at(x);
      args.dy = at(dy);
      args.dweight = at(dweight);
      kernels.conv_weight_grad(args, at(workspace), threads);
    });
  }
  if (needs[2]) dbias = column_sum(view::reshape(dy, {dy.elements() / dy.size(3), dy.size(3)}));
  if (needs[0]) {
    const Tensor weight = contiguous(saved.weight);
    dx = Tensor::empty(saved.x_shape, dy.dtype(), device);
    kernels::ConvInputGradArgs args;
    args.shape = shape;
    args.dtype = args.out_dtype = dy.dtype();
    const Tensor workspace = conv_detail::workspace_of(kernels.conv_input_grad_bytes(args, threads), device);
    launch(device, [&](const Addresses& at) {
      args.dy = at(dy);
      args.weight = at(weight);
      args.dx = at(dx);
      kernels.conv_input_grad(args, at(workspace), threads);
    });
  }
  return {dx, dweight, dbias};
}

}  // namespace thimble::ops
