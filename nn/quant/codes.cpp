#include <thimble/nn/quant/codes.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/units.h>

namespace thimble::nn::quant {

// ---- Weights of a layer as codes, with the input's zero point folded into the bias.

namespace {

using kernels::ConvShape;

constexpr std::int64_t most_products = 65793;  // of a u8 and an i8 whose sum always fits 32 bits
constexpr double most_bias = 8388608;          // 2^23, in units of input scale x weight scale

ConvShape kernel_of(const Shape& shape, const StepWindow& window) {
  ConvShape s;
  s.filters = shape[0], s.channels = shape[shape.rank() - 1];
  s.kernel_h = window.kernel[0], s.kernel_w = window.kernel[1];
  s.dilation_h = window.dilation[0], s.dilation_w = window.dilation[1];
  return s;
}

std::int64_t elements_of(const Tensor& weight) { return weight.elements() / std::max<std::int64_t>(weight.size(0), 1); }

void check(const Tensor& weight, const Tensor& bias, const Step& step) {
  const Shape& shape = weight.shape();
  const std::string what = "quantize: step " + step.name + ": weight " + describe(weight) + ", bias " + describe(bias);
  const bool is_conv = step.kind == StepKind::conv;
  const bool has_kernel =
      is_conv ? shape.rank() == 4 && shape[1] == step.window.kernel[0] && shape[2] == step.window.kernel[1]
              : shape.rank() == 2;
  if (!has_kernel || shape[0] < 1 || weight.elements() < 1) {
    throw ShapeError(what + "; (O, KH, KW, I) with the step's kernel, or (O, I), is needed");
  }
  if (!(bias.shape() == Shape{shape[0]})) throw ShapeError(what + "; a bias for each filter is needed");
  check_one_device("quantize", weight, bias);
  if (elements_of(weight) > most_products) {
    throw ShapeError(what + "; expected at most " + std::to_string(most_products) + " products in a sum");
  }
  if (kernels::quant_runs(kernel_of(shape, step.window)) > kernels::quant_max_runs) {
    throw ShapeError(what + "; expected kernels of at most " + std::to_string(kernels::quant_max_runs) + " lines");
  }
}

/// A tensor for packed codes on `device`, in the layout of `layout`'s kernels: the host packs for other devices.
Tensor empty_codes(const ConvShape& kernel, memory::Device device, memory::Device layout) {
  const std::size_t bytes = kernels::quant_conv_kernels(layout).packed_bytes(kernel);
  return Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::i8, device, memory::Category::parameter);
}
Tensor empty_codes(const ConvShape& kernel, memory::Device device) { return empty_codes(kernel, device, device); }

/// The host device that works on tensors of a device.
memory::Device host_of(memory::Device device) { return device.is_dry ? dry(cpu) : cpu; }

/// A copy on host_of() the tensor's device.
Tensor at_host(const Tensor& t) {
  const memory::Device host = host_of(t.device());
  return t.device().is_dry ? Tensor::empty(t.shape(), t.dtype(), host) : to_device(t, host);
}
Tensor at_device(const Tensor& t, memory::Device device) {
  return device.is_dry ? Tensor::empty(t.shape(), t.dtype(), device, memory::Category::parameter)
                       : to_device(t, device, memory::Category::parameter);
}

/// The host's weights in the layout of a CUDA device's kernels.
PackedWeights moved(const PackedWeights& from, memory::Device device) {
  PackedWeights to = from;
  const Tensor codes = unpacked_codes(from);
  const ConvShape kernel = kernel_of(from.shape, from.window);
  const Tensor packed = empty_codes(kernel, codes.device(), device);
  launch(codes.device(), [&](const Addresses& at) {
    kernels::quant_conv_kernels(device).pack(kernel, at.as<std::int8_t>(codes), at(packed));
  });
  to.codes = at_device(packed, device);
  to.weight_scale = at_device(from.weight_scale, device);
  to.bias = at_device(from.bias, device);
  to.scale = at_device(from.scale, device);
  return to;
}

/// Tensors of the right sizes.
PackedWeights allocate(const Shape& shape, const Step& step, memory::Device device) {
  const ConvShape kernel = kernel_of(shape, step.window);
  const std::int64_t padded = kernels::quant_padded_filters(kernel);
  PackedWeights packed;
  packed.shape = shape;
  packed.window = step.window;
  packed.codes = empty_codes(kernel, device);
  packed.weight_scale = Tensor::empty({shape[0]}, DType::f32, device, memory::Category::parameter);
  packed.bias = Tensor::empty({padded}, DType::i32, device, memory::Category::parameter);
  packed.scale = Tensor::empty({padded}, DType::f32, device, memory::Category::parameter);
  return packed;
}

/// Throws unless the joint scales are finite.
void check_scales(const char* operation, const Step& step, const PackedWeights& packed, const CodeScale& in,
                  const CodeScale* out) {
  if (packed.scale.device().is_dry) return;
  const std::vector<float> joint = to_host<float>(packed.scale), own = to_host<float>(packed.weight_scale);
  for (std::size_t o = 0; o < own.size(); ++o) {
    if (std::isfinite(joint[o])) continue;
    throw ValueError(std::string(operation) + ": step " + step.name +
                     ": its scales are too far apart for f32: filter " + std::to_string(o) + " has " +
                     format_short(own[o]) + ", the input " + format_short(in.scale) +
                     (out != nullptr ? ", the result " + format_short(out->scale) : std::string()) +
                     "; input x filter / result must be finite");
  }
}

/// Throws unless every sum fits 32 bits. Codes are 0 to 255 for any zero point, which the bias has subtracted already.
/// So every partial sum of filter o's products lies in [255 N, 255 P], with P and N the sums of its positive and
/// negative weights. For at most 65793 products this is within [-255 x 128 x 65793, 255 x 127 x 65793], which fits 32
/// bits. With the bias b it fits if -2^31 - 255 N <= b <= 2^31 - 1 - 255 P.
void check_bias(const Step& step, const std::vector<std::int8_t>& codes, const std::vector<std::int32_t>& bias) {
  const std::size_t elements = codes.size() / bias.size();
  for (std::size_t o = 0; o < bias.size(); ++o) {
    std::int64_t positive = 0, negative = 0;
    for (std::size_t i = o * elements; i < (o + 1) * elements; ++i) (codes[i] > 0 ? positive : negative) += codes[i];
    const std::int64_t least = INT32_MIN - 255 * negative, most = INT32_MAX - 255 * positive;
    if (bias[o] >= least && bias[o] <= most) continue;
    throw ValueError("quantized net: step " + step.name + ": bias " + std::to_string(o) + " is " +
                     std::to_string(bias[o]) + ", and with it sums of products leave 32 bits; expected " +
                     std::to_string(least) + " to " + std::to_string(most));
  }
}

/// Factors from the units of sums to the units of the result.
void set_scales(const float* weight_scale, std::int64_t filters, std::int64_t padded, const CodeScale& in,
                const CodeScale* out, float* scale) noexcept {
  for (std::int64_t o = 0; o < padded; ++o) {
    scale[o] = o < filters ? in.scale * weight_scale[o] / (out != nullptr ? out->scale : 1.0F) : 0.0F;
  }
}

}  // namespace

PackedWeights pack_weights(const Tensor& weight, const Tensor& bias, const Step& step, const CodeScale& in,
                           const CodeScale* out, WeightScales scales) {
  check(weight, bias, step);
  if ((weight.dtype() != DType::f32 && weight.dtype() != DType::f64) || bias.dtype() != weight.dtype()) {
    throw DTypeError("quantize: step " + step.name + ": weight " + describe(weight) + ", bias " + describe(bias) +
                     "; both f32 or both f64 are needed");
  }
  const memory::Device device = weight.device();
  if (device.is_cuda()) return moved(pack_weights(at_host(weight), at_host(bias), step, in, out, scales), device);
  PackedWeights packed = allocate(weight.shape(), step, device);
  const std::int64_t filters = weight.size(0), elements = elements_of(weight), padded = packed.bias.elements();
  const Tensor wide = to_dtype(contiguous(bias), DType::f64);
  const std::vector<double> numbers =
      device.is_dry ? std::vector<double>(static_cast<std::size_t>(filters)) : to_host<double>(wide);
  std::vector<float> least(numbers.size());
  for (std::size_t o = 0; o < numbers.size(); ++o) {
    if (!std::isfinite(numbers[o])) {
      throw ValueError("quantize: step " + step.name + ": bias " + std::to_string(o) + " is " +
                       format_short(numbers[o]) + "; expected finite numbers");
    }
    least[o] = static_cast<float>(std::fabs(numbers[o]) / (static_cast<double>(in.scale) * most_bias));
  }
  const Tensor dense = contiguous(weight);
  const Tensor codes = Tensor::empty({weight.elements()}, DType::i8, device, memory::Category::workspace);
  bool is_finite = true;
  launch(device, [&](const Addresses& at) {
    auto* const q = at.as<std::int8_t>(codes);
    auto* const s = at.as<float>(packed.weight_scale);
    is_finite = kernels::quantize_weight_codes(at(dense), weight.dtype(), filters, elements,
                                               scales == WeightScales::per_tensor, least.data(), q, s);
    if (!is_finite) return;
    auto* const folded = at.as<std::int32_t>(packed.bias);
    for (std::int64_t o = 0; o < padded; ++o) {
      if (o >= filters) {
        folded[o] = 0;
        continue;
      }
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < elements; ++i) sum += q[o * elements + i];
      const double unit = static_cast<double>(in.scale) * static_cast<double>(s[o]);
      folded[o] = static_cast<std::int32_t>(
          static_cast<std::int64_t>(std::nearbyint(numbers[static_cast<std::size_t>(o)] / unit)) - in.zero * sum);
    }
    set_scales(s, filters, padded, in, out, at.as<float>(packed.scale));
    kernels::pack_quant_weight(kernel_of(packed.shape, step.window), q, at(packed.codes));
  });
  if (!is_finite) throw ValueError("quantize: step " + step.name + ": a weight is not finite");
  check_scales("quantize", step, packed, in, out);
  return packed;
}

PackedWeights pack_codes(const Tensor& codes, const Tensor& weight_scale, const Tensor& bias, const Step& step,
                         const CodeScale& in, const CodeScale* out) {
  check(codes, bias, step);
  if (codes.dtype() != DType::i8 || weight_scale.dtype() != DType::f32 || bias.dtype() != DType::i32) {
    throw DTypeError("quantized net: step " + step.name + ": codes " + describe(codes) + ", scales " +
                     describe(weight_scale) + ", bias " + describe(bias) + "; i8, f32 and i32 are needed");
  }
  if (!(weight_scale.shape() == Shape{codes.size(0)})) {
    throw ShapeError("quantized net: step " + step.name + ": scales " + describe(weight_scale) +
                     "; one for each filter is needed");
  }
  const memory::Device device = codes.device();
  if (device.is_cuda()) {
    return moved(pack_codes(at_host(codes), at_host(weight_scale), at_host(bias), step, in, out), device);
  }
  PackedWeights packed = allocate(codes.shape(), step, device);
  const std::vector<float> scales = device.is_dry ? std::vector<float>() : to_host<float>(weight_scale);
  for (std::size_t o = 0; o < scales.size(); ++o) {
    if (std::isfinite(scales[o]) && scales[o] > 0) continue;
    throw ValueError("quantized net: step " + step.name + ": weight scale " + std::to_string(o) + " is " +
                     format_short(scales[o]) + "; expected finite numbers above 0");
  }
  const std::int64_t filters = codes.size(0), padded = packed.bias.elements();
  const Tensor dense = contiguous(codes), dense_scale = contiguous(weight_scale), dense_bias = contiguous(bias);
  if (!device.is_dry) check_bias(step, to_host<std::int8_t>(dense), to_host<std::int32_t>(dense_bias));
  launch(device, [&](const Addresses& at) {
    std::memcpy(at(packed.weight_scale), at(dense_scale), static_cast<std::size_t>(filters) * 4);
    auto* const to = at.as<std::int32_t>(packed.bias);
    std::fill_n(to, padded, 0);
    std::memcpy(to, at(dense_bias), static_cast<std::size_t>(filters) * 4);
    set_scales(at.as<float>(packed.weight_scale), filters, padded, in, out, at.as<float>(packed.scale));
    kernels::pack_quant_weight(kernel_of(packed.shape, step.window), at.as<std::int8_t>(dense), at(packed.codes));
  });
  check_scales("quantized net", step, packed, in, out);
  return packed;
}

Tensor unpacked_codes(const PackedWeights& weights) {
  const memory::Device device = weights.codes.device();
  const Tensor packed = device.is_cuda() ? at_host(weights.codes) : weights.codes;
  const Tensor codes = Tensor::empty(weights.shape, DType::i8, packed.device());
  launch(codes.device(), [&](const Addresses& at) {
    kernels::quant_conv_kernels(device).unpack(kernel_of(weights.shape, weights.window), at(packed),
                                               at.as<std::int8_t>(codes));
  });
  return codes;
}

namespace {

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
  ConvShape s = kernel_of(weight, w);
  s.images = x[0], s.channels = x[x.rank() - 1];
  s.height = x.rank() == 4 ? x[1] : 1, s.width = x.rank() == 4 ? x[2] : 1;
  s.stride_h = w.stride[0], s.stride_w = w.stride[1];
  s.pad_top = s.pad_bottom = w.padding[0], s.pad_left = s.pad_right = w.padding[1];
  return s;
}

CodeScale with_relu(CodeScale s, bool has_relu) {
  if (has_relu) s.low = s.zero;
  return s;
}

Shape pooled(const Shape& x, const StepWindow& w, kernels::PoolWindows& windows) {
  windows.images = x[0], windows.channels = x[3];
  windows.kernel = w.kernel, windows.stride = w.stride;
  windows.padding = w.padding, windows.dilation = w.dilation;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t in = x[static_cast<int>(axis) + 1];
    const std::int64_t room = in + 2 * w.padding[axis] - (w.kernel[axis] - 1) * w.dilation[axis] - 1;
    std::int64_t out = room < 0 ? 0 : (room + (w.rounds_up ? w.stride[axis] - 1 : 0)) / w.stride[axis] + 1;
    // The last window must begin in the image or its leading padding.
    if (w.rounds_up && (out - 1) * w.stride[axis] >= in + w.padding[axis]) --out;
    if (out < 1) throw ShapeError("max_pool of codes: the window is larger than the padded image " + to_string(x));
    windows.in[axis] = in;
    windows.out[axis] = out;
  }
  return {x[0], windows.out[0], windows.out[1], x[3]};
}

}  // namespace

Codes to_codes(const Tensor& x, const CodeScale& scale) {
  check_numbers("quantize", x);
  const Tensor from = contiguous(x);
  const Tensor y = Tensor::empty(x.shape(), DType::u8, x.device());
  // A CUDA device has the flag in its memory: reading it makes the host wait.
  const bool is_cuda = x.device().is_cuda();
  const Tensor flag = is_cuda ? Tensor::empty({1}, DType::i32, x.device(), memory::Category::workspace) : Tensor();
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
  check_codes("dequantize", x.tensor);
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
  check_codes("conv of codes", image);
  check_one_device("conv of codes", image, weights.codes);
  if (residual) check_one_device("conv of codes", image, residual->tensor);
  const Shape& w = weights.shape;
  const bool is_linear = step.kind == StepKind::linear;
  if (image.rank() != (is_linear ? 2 : 4) || image.size(-1) != w[w.rank() - 1]) {
    throw ShapeError("quantized net: step " + step.name + ": input " + to_string(image.shape()) +
                     " does not fit weight " + to_string(w));
  }
  kernels::QuantConvArgs args;
  args.shape = conv_shape(image.shape(), w, step.window);
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
    workspace =
        Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::u8, image.device(), memory::Category::workspace);
  }
  const CodeScale to = out ? with_relu(*out, step.has_relu) : CodeScale{};
  args.x_zero = x.scale.zero, args.y_dtype = y.dtype();
  args.zero = to.zero, args.low = to.low, args.high = to.high;
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
  check_codes("max_pool of codes", x.tensor);
  if (x.tensor.rank() != 4)
    throw ShapeError("max_pool of codes: input " + to_string(x.tensor.shape()) + "; (N, H, W, C) is needed");
  kernels::PoolWindows windows;
  const Tensor y = Tensor::empty(pooled(x.tensor.shape(), window, windows), DType::u8, x.tensor.device());
  launch(y.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(y.device()).max_pool(at.as<std::uint8_t>(x.tensor), windows, at.as<std::uint8_t>(y));
  });
  return {y, x.scale};
}

Codes mean_of(const Codes& x, const CodeScale& out) {
  check_codes("mean of codes", x.tensor);
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
  check_codes("sum of codes", a.tensor);
  check_codes("sum of codes", b.tensor);
  check_one_device("sum of codes", a.tensor, b.tensor);
  if (!(a.tensor.shape() == b.tensor.shape())) {
    throw ShapeError("sum of codes: shapes differ, " + to_string(a.tensor.shape()) + " and " +
                     to_string(b.tensor.shape()));
  }
  const Tensor y = Tensor::empty(a.tensor.shape(), DType::u8, a.tensor.device());
  const CodeScale to = with_relu(out, has_relu);
  launch(y.device(), [&](const Addresses& at) {
    kernels::quant_code_kernels(y.device())
        .add(at.as<std::uint8_t>(a.tensor), a.scale, at.as<std::uint8_t>(b.tensor), b.scale, y.elements(), to,
             at.as<std::uint8_t>(y));
  });
  return {y, out};
}

Codes relu_of(const Codes& x) {
  check_codes("relu of codes", x.tensor);
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
    check_codes("concat of codes", part.tensor);
    check_one_device("concat of codes", first, part.tensor);
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
