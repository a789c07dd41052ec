#include <thimble/core/ops/conv/pool.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/kernels/pool.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace {

void check_input(const char* operation, const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype())) {
    throw DTypeError(std::string(operation) + ": x is " + describe(x) + ", expected a floating dtype");
  }
}

std::string text_of(const std::array<std::int64_t, 2>& pair) { return to_string(Shape{pair[0], pair[1]}); }

// Operation and window, for messages.
std::string describe_window(const char* operation, const PoolWindow& window, const Shape& shape) {
  return std::string(operation) + ": kernel " + text_of(window.kernel) + ", stride " + text_of(window.stride) +
         ", padding " + text_of(window.padding) + ", dilation " + text_of(window.dilation) + " on " + to_string(shape);
}

void check_window(const std::string& asked, const PoolWindow& window, std::size_t axis) {
  const auto at_least = [&](std::int64_t value, std::int64_t least, const char* what) {
    if (value < least) throw ValueError(asked + ": " + what + " must be at least " + std::to_string(least));
  };
  at_least(window.kernel[axis], 1, "the kernel");
  at_least(window.stride[axis], 0, "the stride");
  at_least(window.padding[axis], 0, "the padding");
  at_least(window.dilation[axis], 1, "the dilation");
  if (window.kernel[axis] > (1 << 15) || window.dilation[axis] > (1 << 30)) {
    throw ValueError(asked + ": the kernel is at most 32768, the dilation at most 2^30");
  }
  if (window.padding[axis] > ((window.kernel[axis] - 1) * window.dilation[axis] + 1) / 2) {
    throw ValueError(asked + ": the padding must be at most half of the kernel");
  }
}

// Number of windows along an axis; less than 1 if none fits.
std::int64_t output_size(const PoolWindow& window, std::size_t axis, std::int64_t in, std::int64_t stride) {
  const std::int64_t span = (window.kernel[axis] - 1) * window.dilation[axis] + 1;
  const std::int64_t room = in + 2 * window.padding[axis] - span + (window.ceil_mode ? stride - 1 : 0);
  if (room < 0) return 0;
  const std::int64_t out = room / stride + 1;
  const bool is_last_outside = window.ceil_mode && (out - 1) * stride >= in + window.padding[axis];
  return is_last_outside ? out - 1 : out;
}

// Throws if `window` does not fit images of `shape`.
kernels::PoolWindows windows_of(const char* operation, const PoolWindow& window, const Shape& shape) {
  const std::string asked = describe_window(operation, window, shape);
  if (shape.rank() != 4) throw ShapeError(asked + ": expected (N, H, W, C)");
  kernels::PoolWindows all;
  all.images = shape[0];
  all.channels = shape[3];
  all.kernel = window.kernel;
  all.padding = window.padding;
  all.dilation = window.dilation;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    check_window(asked, window, axis);
    all.in[axis] = shape[static_cast<int>(axis) + 1];
    all.stride[axis] = window.stride[axis] == 0 ? window.kernel[axis] : window.stride[axis];
    all.out[axis] = output_size(window, axis, all.in[axis], all.stride[axis]);
    if (all.out[axis] < 1) throw ShapeError(asked + ": the window is larger than the padded image");
  }
  return all;
}

Shape output_shape(const kernels::PoolWindows& windows) {
  return {windows.images, windows.out[0], windows.out[1], windows.channels};
}

void run_max(const kernels::PoolWindows& windows, const Tensor& x, const Tensor& y, const Tensor& taps) {
  launch(x.device(), [&](const Addresses& at) {
    kernels::pool_kernels(x.device()).max({windows, x.dtype(), at(x), at(y), at(taps)});
  });
}

// Number of elements per image and channel.
std::int64_t middle_elements(const Shape& shape) {
  std::int64_t rows = 1;
  for (int axis = 1; axis + 1 < shape.rank(); ++axis) rows *= shape[axis];
  return rows;
}

}  // namespace

Tensor MaxPool2d::forward(const Tensor& operand, Needs needs, Saved& saved) const {
  check_input(name, operand);
  const kernels::PoolWindows windows = windows_of(name, window, operand.shape());
  const Tensor x = contiguous(operand);                           // (N, H, W, C)
  const Tensor y = Tensor::empty_like(x, output_shape(windows));  // (N, OH, OW, C)
  if (needs.any()) {
    saved.shape = x.shape();
    if (keeps == MaxPoolKeeps::input) saved.x = operand;
    if (keeps == MaxPoolKeeps::taps) {
      saved.taps = Tensor::empty(y.shape(), kernels::pool_tap_dtype(windows.taps()), x.device());
    }
  }
  run_max(windows, x, y, saved.taps);
  return y;
}

Gradients MaxPool2d::backward(Saved saved, Tensor dy, Needs) const {
  const kernels::PoolWindows windows = windows_of(name, window, saved.shape);
  dy = contiguous(dy);
  if (keeps == MaxPoolKeeps::input) {
    const Tensor x = contiguous(std::exchange(saved.x, Tensor()));
    saved.taps =
        Tensor::empty(dy.shape(), kernels::pool_tap_dtype(windows.taps()), dy.device(), memory::Category::workspace);
    run_max(windows, x, Tensor(), saved.taps);
  }  // frees x
  const Tensor dx = Tensor::empty_like(dy, saved.shape);
  launch(dy.device(), [&](const Addresses& at) {
    kernels::pool_kernels(dy.device()).max_backward({windows, dy.dtype(), at(saved.taps), at(dy), at(dx)});
  });
  return {dx};
}

Tensor AvgPool2d::forward(const Tensor& operand, Needs, Saved& saved) const {
  check_input(name, operand);
  const kernels::PoolWindows windows = windows_of(name, window, operand.shape());
  if (windows.dilation != std::array<std::int64_t, 2>{1, 1}) {
    throw ValueError(describe_window(name, window, operand.shape()) + ": the dilation must be 1");
  }
  saved.shape = operand.shape();
  const Tensor x = contiguous(operand);                           // (N, H, W, C)
  const Tensor y = Tensor::empty_like(x, output_shape(windows));  // (N, OH, OW, C)
  launch(x.device(), [&](const Addresses& at) {
    kernels::pool_kernels(x.device()).average({windows, x.dtype(), count_include_pad, at(x), at(y)});
  });
  return y;
}

Gradients AvgPool2d::backward(Saved saved, Tensor dy, Needs) const {
  const kernels::PoolWindows windows = windows_of(name, window, saved.shape);
  dy = contiguous(dy);
  const Tensor dx = Tensor::empty_like(dy, saved.shape);
  launch(dy.device(), [&](const Addresses& at) {
    kernels::pool_kernels(dy.device()).average_backward({windows, dy.dtype(), count_include_pad, at(dy), at(dx)});
  });
  return {dx};
}

namespace {

kernels::ResampleArgs resample_args(const Resample2d& op, const Shape& shape, DType dtype) {
  kernels::ResampleArgs args;
  args.images = shape[0];
  args.channels = shape[3];
  args.axes = {kernels::ResampleAxis{shape[1], op.height, op.mode}, {shape[2], op.width, op.mode}};
  args.dtype = dtype;
  return args;
}

}  // namespace

Tensor Resample2d::forward(const Tensor& operand, Needs, Saved& saved) const {
  check_input(function, operand);
  const auto is_size = [](std::int64_t size) { return size >= 1 && size < (std::int64_t{1} << 30); };
  const bool has_pixels = operand.rank() == 4 && is_size(operand.size(1)) && is_size(operand.size(2));
  if (!has_pixels || !is_size(height) || !is_size(width)) {
    throw ShapeError(std::string(function) + ": x is " + describe(operand) + ", of the new size " +
                     to_string(Shape{height, width}) + "; expected (N, H, W, C) and sizes from 1 to 2^30");
  }
  saved.shape = operand.shape();
  const Tensor x = contiguous(operand);  // (N, H, W, C)
  const Tensor y = Tensor::empty_like(x, {x.size(0), height, width, x.size(3)});
  kernels::ResampleArgs args = resample_args(*this, saved.shape, x.dtype());
  launch(x.device(), [&](const Addresses& at) {
    args.x = at(x);
    args.y = at(y);
    kernels::pool_kernels(x.device()).resample(args);
  });
  return y;
}

Gradients Resample2d::backward(Saved saved, Tensor dy, Needs) const {
  dy = contiguous(dy);
  const Tensor dx = Tensor::empty_like(dy, saved.shape);
  kernels::ResampleArgs args = resample_args(*this, saved.shape, dy.dtype());
  launch(dy.device(), [&](const Addresses& at) {
    args.x = at(dy);
    args.y = at(dx);
    kernels::pool_kernels(dy.device()).resample_backward(args);
  });
  return {dx};
}

Tensor GlobalAvgPool::forward(const Tensor& operand, Needs, Saved& saved) const {
  check_input(name, operand);
  const Shape& shape = operand.shape();
  const std::int64_t rows = middle_elements(shape);
  if (shape.rank() < 3 || rows == 0) {
    throw ShapeError(std::string(name) + ": x is " + describe(operand) +
                     ", expected (N, ..., C) with elements between");
  }
  saved.shape = shape;
  const Tensor x = contiguous(operand);                              // (N, ..., C)
  const Tensor y = Tensor::empty_like(x, {shape[0], shape.back()});  // (N, C)
  launch(x.device(), [&](const Addresses& at) {
    kernels::pool_kernels(x.device()).global_average({shape[0], rows, shape.back(), x.dtype(), at(x), at(y)});
  });
  return y;
}

Gradients GlobalAvgPool::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor share = reused_or_new(dy);  // (N, C)
  const MulScalar scale{1 / static_cast<double>(middle_elements(saved.shape))};
  elementwise_detail::run(name, scale, {&dy}, share);
  Shape unit = saved.shape;
  for (int axis = 1; axis + 1 < unit.rank(); ++axis) unit[axis] = 1;
  return {view::expand(view::reshape(share, unit), saved.shape)};
}

}  // namespace thimble::ops
