// Convolutions on CUDA devices: by cuDNN if it supports the convolution, else as tiled products whose operands are read
// through the convolution's indices (an implicit matrix, never in memory). A group is a matrix of a batch.

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/cuda/matmul/product.h>
#include <thimble/cuda/runtime/library.h>

namespace thimble::cuda_kernels {
namespace conv_cuda_detail {

using kernels::Activation;
using kernels::ConvShape;

struct Sizes {
  std::int64_t images, height, width, channels, filters, kernel_h, kernel_w;
  std::int64_t stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
  std::int64_t out_height, out_width;
  std::int64_t group_channels, group_filters;

  explicit Sizes(const ConvShape& s)
      : images(s.images),
        height(s.height),
        width(s.width),
        channels(s.channels),
        filters(s.filters),
        kernel_h(s.kernel_h),
        kernel_w(s.kernel_w),
        stride_h(s.stride_h),
        stride_w(s.stride_w),
        pad_top(s.pad_top),
        pad_left(s.pad_left),
        dilation_h(s.dilation_h),
        dilation_w(s.dilation_w),
        out_height(s.out_height()),
        out_width(s.out_width()),
        group_channels(s.channels / s.groups),
        group_filters(s.filters / s.groups) {}

  std::int64_t outputs() const { return images * out_height * out_width; }
  std::int64_t inputs() const { return images * height * width; }
  std::int64_t taps() const { return kernel_h * kernel_w; }

  /// The element of x that output pixel `pixel` reads at tap `tap`, channel `channel` of all; -1 outside the image.
  THIMBLE_DEVICE std::int64_t input_of(std::int64_t pixel, std::int64_t tap, std::int64_t channel) const {
    const std::int64_t ow = pixel % out_width, oh = pixel / out_width % out_height,
                       image = pixel / out_width / out_height;
    const std::int64_t ih = oh * stride_h + tap / kernel_w * dilation_h - pad_top;
    const std::int64_t iw = ow * stride_w + tap % kernel_w * dilation_w - pad_left;
    if (ih < 0 || ih >= height || iw < 0 || iw >= width) return -1;
    return ((image * height + ih) * width + iw) * channels + channel;
  }
  /// The output pixel that reads input pixel `pixel` at tap `tap`, or -1.
  THIMBLE_DEVICE std::int64_t output_of(std::int64_t pixel, std::int64_t tap) const {
    const std::int64_t iw = pixel % width, ih = pixel / width % height, image = pixel / width / height;
    const std::int64_t h = ih + pad_top - tap / kernel_w * dilation_h, w = iw + pad_left - tap % kernel_w * dilation_w;
    if (h < 0 || w < 0 || h % stride_h != 0 || w % stride_w != 0) return -1;
    if (h / stride_h >= out_height || w / stride_w >= out_width) return -1;
    return (image * out_height + h / stride_h) * out_width + w / stride_w;
  }
  THIMBLE_DEVICE std::int64_t weight_of(std::int64_t filter, std::int64_t tap, std::int64_t channel) const {
    return (filter * kernel_h * kernel_w + tap) * group_channels + channel;
  }
};

struct Array {
  const void* data;
  DType dtype;
  template <class T>
  THIMBLE_DEVICE T get(std::int64_t at) const {
    return load<T>(data, dtype, at);
  }
};

// (output pixel, tap and channel): the left operand of forward, the right one of the weight's gradient.
struct Patches {
  Sizes s;
  Array x;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t group, std::int64_t pixel, std::int64_t p) const {
    const std::int64_t channel = group * s.group_channels + p % s.group_channels;
    const std::int64_t from = s.input_of(pixel, p / s.group_channels, channel);
    return from < 0 ? T(0) : x.get<T>(from);
  }
};
// (tap and channel, filter).
struct Filters {
  Sizes s;
  Array weight;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t group, std::int64_t p, std::int64_t filter) const {
    return weight.get<T>(s.weight_of(group * s.group_filters + filter, p / s.group_channels, p % s.group_channels));
  }
};
// (input pixel, tap and filter): taps from the last to the first.
struct Gradients {
  Sizes s;
  Array dy;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t group, std::int64_t pixel, std::int64_t p) const {
    const std::int64_t tap = s.kernel_h * s.kernel_w - 1 - p / s.group_filters;
    const std::int64_t from = s.output_of(pixel, tap);
    return from < 0 ? T(0) : dy.get<T>(from * s.filters + group * s.group_filters + p % s.group_filters);
  }
};
// (tap and filter, channel).
struct TurnedFilters {
  Sizes s;
  Array weight;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t group, std::int64_t p, std::int64_t channel) const {
    const std::int64_t tap = s.kernel_h * s.kernel_w - 1 - p / s.group_filters;
    return weight.get<T>(s.weight_of(group * s.group_filters + p % s.group_filters, tap, channel));
  }
};
// (filter, output pixel).
struct GradientsOfFilter {
  Sizes s;
  Array dy;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t group, std::int64_t filter, std::int64_t pixel) const {
    return dy.get<T>(pixel * s.filters + group * s.group_filters + filter);
  }
};

template <class T>
struct Outputs {
  Sizes s;
  void* y;
  DType dtype;
  const void* bias;
  Activation activation;
  void* pre_activation;
  THIMBLE_DEVICE void store(std::int64_t group, std::int64_t pixel, std::int64_t filter, T value) const {
    const std::int64_t o = group * s.group_filters + filter, at = pixel * s.filters + o;
    if (bias) value += load_any<T>(bias, dtype, o);
    if (pre_activation) store_any<T>(pre_activation, dtype, at, value);
    store_any<T>(y, dtype, at, activate(activation, value, dtype));
  }
};

// Stores sums, or adds them to the previous values; `row` and `column` locate element (i, j) of a group.
template <class T>
struct Sums {
  std::int64_t group_stride, row_stride;
  void* to;
  DType dtype;
  bool accumulate;
  THIMBLE_DEVICE void store(std::int64_t group, std::int64_t i, std::int64_t j, T value) const {
    const std::int64_t at = group * group_stride + i * row_stride + j;
    if (accumulate) value += load_any<T>(to, dtype, at);
    store_any<T>(to, dtype, at, value);
  }
};

/// Adds the bias to the library's result.
struct AddBias {
  std::int64_t filters;
  void* y;
  const void* bias;
  DType dtype;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    store<float>(y, dtype, i, load<float>(y, dtype, i) + load<float>(bias, dtype, i % filters));
  }
};

}  // namespace conv_cuda_detail

void conv_forward(const kernels::ConvForwardArgs& args, void* workspace, int threads) {
  using namespace conv_cuda_detail;
  if (is_library_conv(args.shape, args.dtype, args.out_dtype) &&
      gpu::booked(&kernels::LibraryUse::cudnn, args,
                  gpu::library_conv_forward(args, workspace, cuda_conv_forward_bytes(args, threads)))) {
    const std::int64_t outputs = args.shape.images * args.shape.out_height() * args.shape.out_width();
    const AddBias add{args.shape.filters, args.y, args.bias, args.out_dtype};
    if (args.bias) for_each_item(outputs * args.shape.filters, add);
    return;
  }
  const Sizes s(args.shape);
  with_compute_type(args.dtype, [&]<class T>() {
    multiply<T>(args.shape.groups, s.outputs(), s.group_filters, s.taps() * s.group_channels,
                Patches{s, {args.x, args.dtype}}, Filters{s, {args.weight, args.dtype}},
                Outputs<T>{s, args.y, args.out_dtype, args.bias, args.activation, args.pre_activation});
  });
}

void conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, int threads) {
  using namespace conv_cuda_detail;
  if (is_library_conv(args.shape, args.dtype, args.out_dtype) &&
      gpu::booked(&kernels::LibraryUse::cudnn, args,
                  gpu::library_conv_input_grad(args, workspace, cuda_conv_input_grad_bytes(args, threads)))) {
    return;
  }
  const Sizes s(args.shape);
  with_compute_type(args.dtype, [&]<class T>() {
    multiply<T>(args.shape.groups, s.inputs(), s.group_channels, s.taps() * s.group_filters,
                Gradients{s, {args.dy, args.dtype}}, TurnedFilters{s, {args.weight, args.dtype}},
                Sums<T>{s.group_channels, s.channels, args.dx, args.out_dtype, args.accumulate});
  });
}

void conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, int threads) {
  using namespace conv_cuda_detail;
  if (is_library_conv(args.shape, args.dtype, args.out_dtype) &&
      gpu::booked(&kernels::LibraryUse::cudnn, args,
                  gpu::library_conv_weight_grad(args, workspace, cuda_conv_weight_grad_bytes(args, threads)))) {
    return;
  }
  const Sizes s(args.shape);
  const std::int64_t columns = s.taps() * s.group_channels;
  with_compute_type(args.dtype, [&]<class T>() {
    multiply<T>(args.shape.groups, s.group_filters, columns, s.outputs(), GradientsOfFilter{s, {args.dy, args.dtype}},
                Patches{s, {args.x, args.dtype}},
                Sums<T>{s.group_filters * columns, columns, args.dweight, args.out_dtype, args.accumulate});
  });
}

}  // namespace thimble::cuda_kernels
