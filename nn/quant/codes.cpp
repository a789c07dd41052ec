#include <thimble/nn/quant/codes.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::nn::quant {
namespace codes_detail {

using kernels::ConvShape;

void check_codes(const char* operation, const Tensor& x) {
  if (x.dtype() != DType::u8) {
    throw DTypeError(std::string(operation) + ": codes are " + describe(x) + "; u8 is needed");
  }
}

void check_numbers(const char* operation, const Tensor& x) {
  if (x.dtype() != DType::f32) {
    throw DTypeError(std::string(operation) + ": the input is " + describe(x) + "; f32 is needed");
  }
}

ConvShape conv_shape(const Shape& x, const Shape& weight, const StepWindow& w) {
  ConvShape s;
  s.images = x[0];
  s.height = x.rank() == 4 ? x[1] : 1;
  s.width = x.rank() == 4 ? x[2] : 1;
  s.channels = x[x.rank() - 1];
  s.filters = weight[0];
  s.kernel_h = w.kernel[0];
  s.kernel_w = w.kernel[1];
  s.stride_h = w.stride[0];
  s.stride_w = w.stride[1];
  s.pad_top = s.pad_bottom = w.padding[0];
  s.pad_left = s.pad_right = w.padding[1];
  s.dilation_h = w.dilation[0];
  s.dilation_w = w.dilation[1];
  return s;
}

void check_device(const char* operation, const Tensor& a, const Tensor& b) {
  if (a.device() != b.device()) {
    throw DeviceError(std::string(operation) + ": " + describe(a) + " and " + describe(b) + "; one device is needed");
  }
}

CodeScale with_relu(CodeScale s, bool has_relu) {
  if (has_relu) s.low = s.zero;
  return s;
}

Shape pooled(const Shape& x, const StepWindow& w, kernels::PoolWindows& windows) {
  windows.images = x[0];
  windows.channels = x[3];
  windows.kernel = w.kernel;
  windows.stride = w.stride;
  windows.padding = w.padding;
  windows.dilation = w.dilation;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t in = x[static_cast<int>(axis) + 1];
    const std::int64_t room = in + 2 * w.padding[axis] - (w.kernel[axis] - 1) * w.dilation[axis] - 1;
    std::int64_t out = room < 0 ? 0 : (room + (w.rounds_up ? w.stride[axis] - 1 : 0)) / w.stride[axis] + 1;
    // The last window must begin inside of the image or its leading padding.
    if (w.rounds_up && (out - 1) * w.stride[axis] >= in + w.padding[axis]) --out;
    if (out < 1) throw ShapeError("max_pool of codes: the window is larger than the padded image " + to_string(x));
    windows.in[axis] = in;
    windows.out[axis] = out;
  }
  return {x[0], windows.out[0], windows.out[1], x[3]};
}

}  // namespace codes_detail

Codes to_codes(const Tensor& x, const CodeScale& scale) {
  codes_detail::check_numbers("quantize", x);
  const Tensor from = contiguous(x);
  const Tensor y = Tensor::empty(x.shape(), DType::u8, x.device());
  // On a CUDA device the answer lies in its memory: to ask for it is what a run waits for.
  const bool is_cuda = x.device().is_cuda();
  const Tensor flag = is_cuda ? Tensor::empty({1}, DType::i32, x.device(), Category::workspace) : Tensor();
  std::int32_t not_finite = 0;
  launch(x.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(x.device())
        .quantize(at.as<float>(from), x.elements(), scale, at.as<std::uint8_t>(y),
                  is_cuda ? at.as<std::int32_t>(flag) : &not_finite);
  });
  if (is_cuda && !x.device().is_dry) not_finite = to_host<std::int32_t>(flag)[0];
  if (not_finite != 0) throw ValueError("quantize: " + describe(x) + " has a value that is not finite");
  return {y, scale};
}

Tensor from_codes(const Codes& x) {
  codes_detail::check_codes("dequantize", x.tensor);
  const Tensor y = Tensor::empty(x.tensor.shape(), DType::f32, x.tensor.device());
  launch(y.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(y.device())
        .dequantize(at.as<std::uint8_t>(x.tensor), y.elements(), x.scale, at.as<float>(y));
  });
  return y;
}

Codes conv_codes(const Codes& x, const PackedWeights& weights, const Step& step, const Codes* residual,
                 const CodeScale* out) {
  const Tensor& image = x.tensor;
  codes_detail::check_codes("conv of codes", image);
  codes_detail::check_device("conv of codes", image, weights.codes);
  if (residual) codes_detail::check_device("conv of codes", image, residual->tensor);
  const Shape& w = weights.shape;
  const bool is_linear = step.kind == StepKind::linear;
  if (image.rank() != (is_linear ? 2 : 4) || image.size(-1) != w[w.rank() - 1]) {
    throw ShapeError("quantized net: step " + step.name + ": input " + to_string(image.shape()) +
                     " does not fit weight " + to_string(w));
  }
  kernels::QuantConvArgs args;
  args.shape = codes_detail::conv_shape(image.shape(), w, step.window);
  const std::int64_t oh = args.shape.out_height(), ow = args.shape.out_width();
  if (oh < 1 || ow < 1) {
    throw ShapeError("quantized net: step " + step.name + ": the kernel does not fit into the padded image " +
                     to_string(image.shape()));
  }
  const Shape shape = is_linear ? Shape{image.size(0), w[0]} : Shape{image.size(0), oh, ow, w[0]};
  if (residual && !(residual->tensor.shape() == shape)) {
    throw ShapeError("quantized net: step " + step.name + ": " + to_string(residual->tensor.shape()) +
                     " cannot be added to " + to_string(shape));
  }
  const Tensor y = Tensor::empty(shape, out ? DType::u8 : DType::f32, image.device());
  if (y.elements() == 0) return {y, out ? *out : CodeScale{}};
  const int threads = thread_count();
  const kernels::QuantConvKernels& kernels = kernels::quant_conv_kernels(image.device());
  const std::size_t bytes = kernels.workspace_bytes(args.shape, threads);
  Tensor workspace;
  if (bytes > 0) {
    workspace = Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::u8, image.device(), Category::workspace);
  }
  const CodeScale to = out ? codes_detail::with_relu(*out, step.has_relu) : CodeScale{};
  args.x_zero = x.scale.zero;
  args.y_dtype = y.dtype();
  args.zero = to.zero;
  args.low = to.low;
  args.high = to.high;
  if (residual) {
    args.residual_scale = residual->scale.scale / to.scale;
    args.residual_zero = residual->scale.zero;
  }
  launch(image.device(), [&](const Addresses& at) {
    args.x = at.as<std::uint8_t>(image);
    args.packed = at(weights.codes);
    args.bias = at.as<std::int32_t>(weights.bias);
    args.scale = at.as<float>(weights.scale);
    args.residual = residual ? at.as<std::uint8_t>(residual->tensor) : nullptr;
    args.y = at(y);
    kernels.conv(args, at(workspace), threads);
  });
  return {y, out ? *out : CodeScale{}};
}

Codes max_pool_of(const Codes& x, const StepWindow& window) {
  codes_detail::check_codes("max_pool of codes", x.tensor);
  if (x.tensor.rank() != 4)
    throw ShapeError("max_pool of codes: input " + to_string(x.tensor.shape()) + "; (N, H, W, C) is needed");
  kernels::PoolWindows windows;
  const Tensor y = Tensor::empty(codes_detail::pooled(x.tensor.shape(), window, windows), DType::u8, x.tensor.device());
  launch(y.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(y.device()).max_pool(at.as<std::uint8_t>(x.tensor), windows, at.as<std::uint8_t>(y));
  });
  return {y, x.scale};
}

Codes mean_of(const Codes& x, const CodeScale& out) {
  codes_detail::check_codes("mean of codes", x.tensor);
  const Shape& shape = x.tensor.shape();
  if (shape.rank() < 2) throw ShapeError("mean of codes: input " + to_string(shape) + "; (N, ..., C) is needed");
  const std::int64_t images = shape[0], channels = shape[shape.rank() - 1];
  std::int64_t pixels = 1;
  for (int axis = 1; axis + 1 < shape.rank(); ++axis) pixels *= shape[axis];
  if (pixels < 1 || pixels > (1 << 23)) {
    throw ShapeError("mean of codes: " + std::to_string(pixels) + " pixels in " + to_string(shape) +
                     "; expected 1 to 2^23");
  }
  const Tensor y = Tensor::empty({images, channels}, DType::u8, x.tensor.device());
  launch(y.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(y.device())
        .mean(at.as<std::uint8_t>(x.tensor), images, pixels, channels, x.scale, out, at.as<std::uint8_t>(y));
  });
  return {y, out};
}

Codes sum_of(const Codes& a, const Codes& b, bool has_relu, const CodeScale& out) {
  codes_detail::check_codes("sum of codes", a.tensor);
  codes_detail::check_codes("sum of codes", b.tensor);
  codes_detail::check_device("sum of codes", a.tensor, b.tensor);
  if (!(a.tensor.shape() == b.tensor.shape())) {
    throw ShapeError("sum of codes: shapes differ, " + to_string(a.tensor.shape()) + " and " +
                     to_string(b.tensor.shape()));
  }
  const Tensor y = Tensor::empty(a.tensor.shape(), DType::u8, a.tensor.device());
  const CodeScale to = codes_detail::with_relu(out, has_relu);
  launch(y.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(y.device())
        .add(at.as<std::uint8_t>(a.tensor), a.scale, at.as<std::uint8_t>(b.tensor), b.scale, y.elements(), to,
             at.as<std::uint8_t>(y));
  });
  return {y, out};
}

Codes relu_of(const Codes& x) {
  codes_detail::check_codes("relu of codes", x.tensor);
  const Tensor y = Tensor::empty(x.tensor.shape(), DType::u8, x.tensor.device());
  launch(y.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(y.device())
        .relu(at.as<std::uint8_t>(x.tensor), y.elements(), x.scale.zero, at.as<std::uint8_t>(y));
  });
  return {y, x.scale};
}

Codes concat_of(const std::vector<Codes>& parts) {
  std::int64_t columns = 0;
  const Tensor& first = parts.at(0).tensor;
  const std::int64_t rows = first.elements() / std::max<std::int64_t>(first.size(-1), 1);
  for (const Codes& part : parts) {
    codes_detail::check_codes("concat of codes", part.tensor);
    codes_detail::check_device("concat of codes", first, part.tensor);
    bool fits = part.tensor.rank() == first.rank();
    for (int axis = 0; fits && axis + 1 < first.rank(); ++axis) fits = part.tensor.shape()[axis] == first.shape()[axis];
    if (!fits) {
      throw ShapeError("concat of codes: " + to_string(part.tensor.shape()) + " does not fit " +
                       to_string(first.shape()));
    }
    columns += part.tensor.size(-1);
  }
  Shape shape = first.shape();
  shape[shape.rank() - 1] = columns;
  const Tensor y = Tensor::empty(shape, DType::u8, first.device());
  launch(y.device(), [&](const Addresses& at) {
    std::int64_t column = 0;
    for (const Codes& part : parts) {
      const std::int64_t own = part.tensor.size(-1);
      kernels::quant_code_kernels(y.device())
          .copy_rows(at.as<std::uint8_t>(part.tensor), rows, own, at.as<std::uint8_t>(y) + column, columns);
      column += own;
    }
  });
  return {y, parts.front().scale};
}

}  // namespace thimble::nn::quant
