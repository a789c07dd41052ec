#pragma once
// Pooling of images (N, H, W, C), in any floating dtype. All throw ShapeError, DTypeError, DeviceError, ValueError.

#include <array>

#include <thimble/core/kernels/shared/resample_axis.h>
#include <thimble/core/ops/op.h>

namespace thimble {

/// Windows over (H, W). Output size = (in + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down, or up
/// with ceil_mode if the last window then begins inside the image or its leading padding (PyTorch's rules).
struct PoolWindow {
  std::array<std::int64_t, 2> kernel{2, 2};
  std::array<std::int64_t, 2> stride{0, 0};   ///< 0 means the kernel's size
  std::array<std::int64_t, 2> padding{0, 0};  ///< on both sides; at most half of the (dilated) kernel
  std::array<std::int64_t, 2> dilation{1, 1};
  bool ceil_mode = false;
};

/// The tensor that max pooling keeps to route the gradient, whose bits do not depend on the choice.
enum class MaxPoolKeeps : std::uint8_t {
  input,  ///< x by reference: free if x is kept anyway; backward needs a workspace of one byte per output
  taps    ///< one byte per output (four for kernels of more than 255 elements)
};

}  // namespace thimble

namespace thimble::ops {

/// y = the largest element of each window; padding is -inf, and NaN is larger than all. The gradient goes to the first
/// of equal elements in row-major order of the window. A window without elements (possible with dilation) gives -inf.
struct MaxPool2d {
  static constexpr const char* name = "max_pool2d";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, taps;
    Shape shape;
  };
  PoolWindow window;
  MaxPoolKeeps keeps = MaxPoolKeeps::input;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = mean of each window, without dilation. With count_include_pad the divisor counts the padding. Keeps nothing.
struct AvgPool2d {
  static constexpr const char* name = "avg_pool2d";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Shape shape;
  };
  PoolWindow window;
  bool count_include_pad = true;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// x (N, H, W, C) -> (N, height, width, C): larger or smaller images, or adaptive average pooling, by the formulas in
/// core/kernels/shared/resample_axis.h. Keeps nothing.
struct Resample2d {
  static constexpr const char* name = "interpolate";
  static constexpr Cost cost = Cost::elementwise;
  struct Saved {
    Shape shape;
  };
  std::int64_t height = 1, width = 1;
  kernels::Resample mode = kernels::Resample::nearest;
  const char* function = name;  // in errors

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// (N, ..., C) -> (N, C): mean over all axes in between. Keeps nothing; the gradient is one value per (n, c), repeated
/// by strides of 0.
struct GlobalAvgPool {
  static constexpr const char* name = "global_avg_pool";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Shape shape;
  };

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
