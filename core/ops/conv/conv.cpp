#include <thimble/core/ops/conv/conv.h>

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {

void check_conv_numbers(const char* operation, std::int64_t stride, std::int64_t padding, std::int64_t dilation,
                        std::int64_t groups) {
  const auto [least, most] = std::minmax({stride, dilation, groups});
  if (least >= 1 && padding >= 0 && std::max(most, padding) <= std::int64_t{1} << 30) return;
  throw ValueError(std::string(operation) + ": stride " + std::to_string(stride) + ", padding " +
                   std::to_string(padding) + ", dilation " + std::to_string(dilation) + ", groups " +
                   std::to_string(groups) + "; expected at least 1 of each (padding 0), and at most 2^30");
}

namespace {

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

// A hint for operands whose channels would match in the other common layout.
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
  check_conv_numbers("conv2d", op.stride_h, op.pad_h, op.dilation_h, op.groups);
  check_conv_numbers("conv2d", op.stride_w, op.pad_w, op.dilation_w, op.groups);
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
  check_one_device("conv2d", x, weight);
  check_one_device("conv2d", x, bias);
  const kernels::ConvShape s = sizes(op, x.shape(), weight.shape());
  if (s.out_height() < 1 || s.out_width() < 1) {
    throw ShapeError("conv2d: the kernel does not fit into the padded image, " + sides());
  }
}

Tensor workspace_of(std::size_t bytes, memory::Device device) {
  if (bytes == 0) return {};
  return Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::u8, device, memory::Category::workspace);
}

// The three computations, on dense tensors.
void forward_into(const Tensor& y, const kernels::ConvShape& shape, const Tensor& x, const Tensor& weight,
                  const Tensor& bias) {
  if (y.elements() == 0) return;
  kernels::ConvForwardArgs args;
  args.shape = shape;
  args.dtype = args.out_dtype = y.dtype();
  const auto& kernels = kernels::matmul_kernels(y.device());
  const int threads = thread_count();
  const Tensor workspace = workspace_of(kernels.conv_forward_bytes(args, threads), y.device());
  launch(y.device(), [&](const Addresses& at) {
    args.x = at(x);
    args.weight = at(weight);
    args.bias = at(bias);
    args.y = at(y);
    kernels.conv_forward(args, at(workspace), threads);
  });
}

void input_grad_into(const Tensor& dx, const kernels::ConvShape& shape, const Tensor& dy, const Tensor& weight,
                     bool accumulate = false) {
  kernels::ConvInputGradArgs args;
  args.shape = shape;
  args.dtype = args.out_dtype = dx.dtype();
  args.accumulate = accumulate;
  const auto& kernels = kernels::matmul_kernels(dx.device());
  const int threads = thread_count();
  const Tensor workspace = workspace_of(kernels.conv_input_grad_bytes(args, threads), dx.device());
  launch(dx.device(), [&](const Addresses& at) {
    args.dy = at(dy);
    args.weight = at(weight);
    args.dx = at(dx);
    kernels.conv_input_grad(args, at(workspace), threads);
  });
}

void weight_grad_into(const Tensor& dweight, const kernels::ConvShape& shape, const Tensor& x, const Tensor& dy) {
  kernels::ConvWeightGradArgs args;
  args.shape = shape;
  args.dtype = args.out_dtype = dweight.dtype();
  const auto& kernels = kernels::matmul_kernels(dweight.device());
  const int threads = thread_count();
  const Tensor workspace = workspace_of(kernels.conv_weight_grad_bytes(args, threads), dweight.device());
  launch(dweight.device(), [&](const Addresses& at) {
    args.x = at(x);
    args.dy = at(dy);
    args.dweight = at(dweight);
    kernels.conv_weight_grad(args, at(workspace), threads);
  });
}

// dy (N, OH, OW, O), dense, summed over all but channels.
Tensor bias_grad(const Tensor& dy) {
  return column_sum(view::reshape(dy, {dy.elements() / std::max<std::int64_t>(1, dy.size(3)), dy.size(3)}));
}

// The convolution whose transpose takes x to y. Throws if operands do not fit.
kernels::ConvShape transposed_sizes(const ConvTranspose2d& op, const Tensor& x, const Tensor& weight,
                                    const Tensor& bias) {
  const Conv2d& conv = op.conv;
  const auto is = [&] {
    return "conv_transpose2d: input " + describe(x) + ", weight " + describe(weight) + ", bias " + describe(bias);
  };
  if (x.rank() != 4 || weight.rank() != 4) {
    throw ShapeError(is() + "; expected (N, H, W, I) and (I, KH, KW, O / groups)");
  }
  check_conv_numbers(op.name, conv.stride_h, conv.pad_h, conv.dilation_h, conv.groups);
  check_conv_numbers(op.name, conv.stride_w, conv.pad_w, conv.dilation_w, conv.groups);
  if (op.extra_h < 0 || op.extra_h >= conv.stride_h || op.extra_w < 0 || op.extra_w >= conv.stride_w) {
    throw ValueError("conv_transpose2d: output padding " + std::to_string(op.extra_h) + ", " +
                     std::to_string(op.extra_w) + ", expected at least 0 and below the stride");
  }
  if (x.size(3) != weight.size(0) || x.size(3) % conv.groups != 0 ||
      (bias.defined() && bias.shape() != Shape{weight.size(3) * conv.groups})) {
    throw ShapeError(is() + ", groups " + std::to_string(conv.groups) +
                     "; expected (N, H, W, I), (I, KH, KW, O / groups) and (O), groups dividing I");
  }
  if (x.dtype() != weight.dtype() || !is_floating(x.dtype()) || (bias.defined() && bias.dtype() != x.dtype())) {
    throw DTypeError(is() + "; expected one floating dtype");
  }
  check_one_device(op.name, x, weight);
  check_one_device(op.name, x, bias);
  const auto outputs = [](std::int64_t in, std::int64_t stride, std::int64_t pad, std::int64_t reach,
                          std::int64_t extra) { return (in - 1) * stride - 2 * pad + reach + 1 + extra; };
  const std::int64_t height =
      outputs(x.size(1), conv.stride_h, conv.pad_h, conv.dilation_h * (weight.size(1) - 1), op.extra_h);
  const std::int64_t width =
      outputs(x.size(2), conv.stride_w, conv.pad_w, conv.dilation_w * (weight.size(2) - 1), op.extra_w);
  if (x.size(1) < 1 || x.size(2) < 1 || weight.size(1) < 1 || weight.size(2) < 1 || height < 1 || width < 1) {
    throw ShapeError(is() + ": the result has no pixels");
  }
  return sizes(conv, {x.size(0), height, width, weight.size(3) * conv.groups}, weight.shape());
}

}  // namespace

double Conv2d::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  const Tensor& weight = inputs[1];
  return static_cast<double>(output.elements()) * static_cast<double>(weight.elements() / weight.size(0));
}

Tensor Conv2d::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const {
  check(*this, x, weight, bias);
  const Tensor image = contiguous(x), filters = contiguous(weight), offset = bias.defined() ? contiguous(bias) : bias;
  const kernels::ConvShape shape = sizes(*this, x.shape(), weight.shape());
  const Tensor y =
      Tensor::empty({x.shape()[0], shape.out_height(), shape.out_width(), weight.shape()[0]}, x.dtype(), x.device());
  forward_into(y, shape, image, filters, offset);
  if (needs[1]) saved.x = x;
  if (needs[0]) saved.weight = weight;
  saved.x_shape = x.shape();
  saved.weight_shape = weight.shape();
  return y;
}

Gradients Conv2d::backward(Saved saved, Tensor dy, Needs needs) const {
  const kernels::ConvShape shape = sizes(*this, saved.x_shape, saved.weight_shape);
  dy = contiguous(dy);  // (N, OH, OW, O)
  Tensor dx, dweight, dbias;
  if (needs[1]) {
    const Tensor x = contiguous(std::exchange(saved.x, Tensor()));
    dweight = Tensor::empty(saved.weight_shape, dy.dtype(), dy.device());
    weight_grad_into(dweight, shape, x, dy);
  }
  if (needs[2]) dbias = bias_grad(dy);
  if (needs[0]) {
    const Tensor weight = contiguous(saved.weight);
    dx = Tensor::empty(saved.x_shape, dy.dtype(), dy.device());
    input_grad_into(dx, shape, dy, weight);
  }
  return {dx, dweight, dbias};
}

double ConvTranspose2d::multiply_adds(std::span<const Tensor> inputs, const Tensor&) const {
  const Tensor& weight = inputs[1];
  return static_cast<double>(inputs[0].elements()) * static_cast<double>(weight.elements() / weight.size(0));
}

Tensor ConvTranspose2d::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs,
                                Saved& saved) const {
  const kernels::ConvShape shape = transposed_sizes(*this, x, weight, bias);
  const Tensor image = contiguous(x), filters = contiguous(weight);
  const Tensor y = Tensor::empty({shape.images, shape.height, shape.width, shape.channels}, x.dtype(), x.device());
  if (y.elements() > 0) {
    if (bias.defined()) copy_into(y, bias);  // the sums are added to it
    input_grad_into(y, shape, image, filters, bias.defined());
  }
  if (needs[1]) saved.x = x;
  if (needs[0]) saved.weight = weight;
  saved.x_shape = x.shape();
  saved.weight_shape = weight.shape();
  return y;
}

Gradients ConvTranspose2d::backward(Saved saved, Tensor dy, Needs needs) const {
  const kernels::ConvShape shape = sizes(conv, dy.shape(), saved.weight_shape);
  dy = contiguous(dy);  // (N, OH, OW, O)
  Tensor dx, dweight, dbias;
  if (needs[1]) {
    const Tensor x = contiguous(std::exchange(saved.x, Tensor()));
    dweight = Tensor::empty(saved.weight_shape, dy.dtype(), dy.device());
    weight_grad_into(dweight, shape, dy, x);
  }
  if (needs[2]) dbias = bias_grad(dy);
  if (needs[0]) {
    dx = Tensor::empty(saved.x_shape, dy.dtype(), dy.device());
    forward_into(dx, shape, dy, contiguous(saved.weight), Tensor());
  }
  return {dx, dweight, dbias};
}

namespace {

// (r, O, KH, KW) -> (r, O KH KW).
Tensor basis_rows(const Tensor& basis) {
  const Tensor dense = contiguous(basis);
  return view::reshape(dense, {dense.size(0), dense.size(1) * dense.size(2) * dense.size(3)});
}

// (O, KH, KW, C / groups).
Shape kernel_shape(const Tensor& basis, const Tensor& coefficients) {
  return {basis.size(1), basis.size(2), basis.size(3), coefficients.size(0)};
}

Tensor expanded_kernel(const Tensor& basis, const Tensor& coefficients) {
  const Tensor rows = basis_rows(basis);
  const Tensor kernel = Tensor::empty({rows.size(1), coefficients.size(0)}, basis.dtype(), basis.device());
  matmul_into({SharedConv2d::name, view::transpose(rows), view::transpose(coefficients), kernel, {}, {}});
  return view::reshape(kernel, kernel_shape(basis, coefficients));
}

void check(const SharedConv2d& op, const Tensor& x, const Tensor& basis, const Tensor& coefficients) {
  const std::string operation = op.name;
  const std::string sides =
      "input " + describe(x) + ", basis " + describe(basis) + ", coefficients " + describe(coefficients);
  if (x.rank() != 4 || basis.rank() != 4 || coefficients.rank() != 2 || basis.size(0) != coefficients.size(1)) {
    throw ShapeError(operation + ": " + sides + "; expected (N, H, W, C), (r, O, KH, KW) and (C / groups, r)");
  }
  if (basis.size(0) == 0) throw ShapeError(operation + ": " + sides + "; expected a basis of at least one kernel");
  if (!is_floating(x.dtype()) || basis.dtype() != x.dtype() || coefficients.dtype() != x.dtype()) {
    throw DTypeError(operation + ": " + sides + "; expected one floating dtype");
  }
  check_one_device(operation, x, basis);
  check_one_device(operation, x, coefficients);
}

}  // namespace

Tensor SharedConv2d::forward(const Tensor& x, const Tensor& basis, const Tensor& coefficients, const Tensor& bias,
                             Needs needs, Saved& saved) const {
  check(*this, x, basis, coefficients);
  Conv2d::Saved nothing;
  const Tensor y = conv.forward(x, expanded_kernel(basis, coefficients), bias, Needs(), nothing);
  const bool needs_kernel = needs[1] || needs[2];
  if (needs_kernel) saved.x = x;
  if (needs[0] || needs_kernel) saved.basis = basis, saved.coefficients = coefficients;
  saved.x_shape = x.shape();
  return y;
}

Gradients SharedConv2d::backward(Saved saved, Tensor dy, Needs needs) const {
  constexpr Needs of_x(1), of_weight(2), of_bias(4);
  dy = contiguous(dy);  // (N, OH, OW, O)
  Tensor dx, dbasis, dcoefficients, dbias;
  if (needs[3]) dbias = conv.backward({{}, {}, saved.x_shape, {}}, dy, of_bias)[2];
  const Tensor &basis = saved.basis, &coefficients = saved.coefficients;
  if (needs[1] || needs[2]) {
    const Shape shape = kernel_shape(basis, coefficients);
    Tensor dkernel = conv.backward({std::exchange(saved.x, Tensor()), {}, saved.x_shape, shape}, dy, of_weight)[1];
    dkernel = view::reshape(dkernel, {shape[0] * shape[1] * shape[2], shape[3]});  // (O KH KW, C / groups)
    const Tensor transposed = view::transpose(dkernel);
    if (needs[1]) {
      dbasis = Tensor::empty(basis.shape(), dy.dtype(), dy.device());
      const Tensor rows = basis_rows(dbasis);
      matmul_into({name, view::transpose(coefficients), transposed, rows, {}, {}});
    }
    if (needs[2]) {
      dcoefficients = Tensor::empty(coefficients.shape(), dy.dtype(), dy.device());
      matmul_into({name, transposed, view::transpose(basis_rows(basis)), dcoefficients, {}, {}});
    }
  }
  if (needs[0]) {
    const Tensor kernel = expanded_kernel(basis, coefficients);
    dx = conv.backward({{}, kernel, saved.x_shape, kernel.shape()}, dy, of_x)[0];
  }
  return {dx, dbasis, dcoefficients, dbias};
}

double SharedConv2d::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  const Tensor &basis = inputs[1], &coefficients = inputs[2];
  const auto taps = static_cast<double>(basis.size(2) * basis.size(3) * coefficients.size(0));
  return static_cast<double>(output.elements()) * taps +
         static_cast<double>(basis.elements()) * static_cast<double>(coefficients.size(0));
}

}  // namespace thimble::ops
