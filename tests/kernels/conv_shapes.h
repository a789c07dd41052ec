#pragma once
// Shapes of convolutions that reach every path of the kernels, and their numbers of elements.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/kernels/conv.h>

#include "support/kernel_data.h"

namespace conv_test {

using namespace kernel_test;

inline ConvShape shape(std::int64_t images, std::int64_t size, std::int64_t channels, std::int64_t filters,
                       std::int64_t kernel, std::int64_t stride, std::int64_t pad, std::int64_t dilation = 1,
                       std::int64_t groups = 1) {
  ConvShape s;
  s.images = images, s.height = size, s.width = size, s.channels = channels, s.filters = filters;
  s.kernel_h = s.kernel_w = kernel, s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_bottom = s.pad_left = s.pad_right = pad, s.dilation_h = s.dilation_w = dilation;
  s.groups = groups;
  return s;
}

/// Makes lines long enough for the weight's gradient to read them in place.
inline ConvShape wide(ConvShape s, std::int64_t width) {
  s.width = width;
  return s;
}

/// All sizes differ in height and width.
inline ConvShape uneven(std::int64_t groups) {
  ConvShape s = shape(2, 11, 3 * groups, 5 * groups, 3, 2, 0, 1, groups);
  s.width = 8, s.kernel_w = 2, s.stride_w = 3, s.pad_top = 2, s.pad_bottom = 1, s.pad_right = 3;
  s.dilation_h = 2, s.dilation_w = 4;
  return s;
}

/// Different padding on every side.
inline ConvShape off_center() {
  ConvShape s = shape(2, 9, 32, 32, 3, 1, 0);
  s.pad_top = 4, s.pad_left = 1, s.pad_right = 2;
  return s;
}

inline std::vector<ConvShape> shapes() {
  std::vector<ConvShape> list = {
      shape(1, 1, 1, 1, 1, 1, 0),
      shape(2, 9, 17, 50, 1, 1, 0),  // pointwise
      shape(2, 9, 5, 7, 1, 2, 0),
      shape(1, 7, 3, 4, 1, 3, 1),  // pointwise with holes
      shape(2, 8, 6, 10, 3, 1, 1),
      shape(2, 7, 40, 9, 3, 1, 1),  // k above one block
      shape(3, 9, 4, 13, 3, 2, 1),
      shape(1, 21, 3, 8, 7, 2, 3),  // strided
      shape(1, 12, 2, 3, 2, 3, 0),
      shape(1, 11, 2, 5, 3, 4, 2),  // stride above kernel
      shape(1, 13, 3, 4, 3, 1, 2, 2),
      shape(1, 14, 3, 4, 3, 2, 2, 2),  // dilated
      shape(1, 15, 3, 4, 3, 2, 3, 3),
      shape(1, 17, 2, 3, 4, 4, 3, 6),  // dilated, common divisors
      shape(2, 9, 17, 5, 3, 2, 1),
      shape(1, 10, 20, 6, 1, 2, 0),  // strided, phases one by one
      shape(1, 11, 9, 5, 2, 3, 0),
      shape(1, 9, 18, 7, 2, 4, 1),  // pixels that no tap reaches
      shape(1, 12, 4, 70, 5, 2, 2),
      shape(2, 7, 4, 3, 3, 2, 0),
      shape(1, 9, 8, 6, 5, 2, 2, 1, 2),  // phases folded into one matmul
      shape(2, 6, 8, 12, 3, 1, 1, 1, 2),
      shape(1, 6, 5, 5, 3, 2, 1, 1, 5),
      shape(1, 5, 6, 12, 3, 1, 1, 1, 6),
      shape(2, 6, 9, 6, 1, 1, 0, 1, 3),
      shape(3, 12, 3, 5, 5, 1, 2),
      shape(1, 2, 3, 4, 5, 1, 2),  // kernel wider than the image
      shape(1, 3, 3, 4, 3, 1, 4),
      shape(0, 4, 3, 4, 3, 1, 1),  // windows all in padding; no images
      shape(2, 2, 3, 4, 5, 1, 1),
      shape(1, 4, 0, 4, 3, 1, 1),  // no output; no channels
      shape(8, 2, 64, 20, 3, 1, 1),
      shape(3, 5, 70, 6, 3, 1, 1),  // many channels: the padding is left out
      shape(3, 4, 9, 70, 3, 1, 1),
      shape(9, 2, 65, 66, 3, 1, 1),
      shape(2, 6, 64, 5, 3, 2, 1),
      shape(2, 6, 5, 64, 3, 2, 1),
      shape(1, 7, 64, 64, 3, 1, 2, 2),
      shape(4, 2, 128, 128, 3, 1, 1, 1, 2),
      shape(9, 1, 300, 3, 3, 1, 2),  // whole blocks of padding
      shape(2, 1, 3, 300, 3, 1, 4),
      wide(shape(2, 4, 3, 9, 7, 2, 3), 181),  // long lines
      wide(shape(1, 3, 6, 4, 3, 1, 1, 1, 2), 90),
      wide(shape(1, 5, 2, 3, 3, 3, 2, 2), 300),
      wide(shape(1, 2, 4, 3, 2, 1, 0), 70),
      uneven(1),
      uneven(2),
      shape(3, 8, 32, 48, 3, 1, 1),  // by Winograd's algorithm
      wide(shape(2, 9, 48, 32, 3, 1, 1), 13),
      wide(shape(1, 11, 64, 112, 3, 1, 0), 10),
      shape(1, 8, 32, 272, 3, 1, 2),  // above one block of filters, of channels
      shape(1, 8, 272, 32, 3, 1, 1),
      shape(5, 16, 32, 32, 3, 1, 1),  // tiles in several segments
      shape(0, 8, 32, 32, 3, 1, 1),
      off_center(),
      shape(2, 13, 37, 37, 3, 1, 1, 1, 37),  // a filter per channel
      shape(2, 14, 48, 48, 3, 2, 1, 1, 48),
      shape(1, 12, 33, 33, 5, 1, 2, 1, 33),
      shape(2, 9, 20, 20, 3, 3, 1, 2, 20),
      shape(1, 11, 17, 17, 7, 2, 3, 1, 17),
      shape(1, 2, 9, 9, 5, 1, 2, 1, 9),
      shape(1, 12, 16, 16, 9, 1, 4, 1, 16),
      shape(0, 4, 16, 16, 3, 1, 1, 1, 16),
      wide(shape(3, 5, 18, 18, 3, 1, 1, 1, 18), 130),
  };
  return list;
}

inline std::string describe(const ConvShape& s, DType dtype) {
  const auto text = [](std::int64_t value) { return std::to_string(value) + " "; };
  return std::string(to_string(isa())) + " " + std::string(to_string(dtype)) + " N H W C " + text(s.images) +
         text(s.height) + text(s.width) + text(s.channels) + "O " + text(s.filters) + "kernel " + text(s.kernel_h) +
         text(s.kernel_w) + "stride " + text(s.stride_h) + text(s.stride_w) + "dilation " + text(s.dilation_h) +
         text(s.dilation_w) + "groups " + text(s.groups);
}

inline std::int64_t x_elements(const ConvShape& s) { return s.images * s.height * s.width * s.channels; }
inline std::int64_t weight_elements(const ConvShape& s) {
  return s.filters * s.kernel_h * s.kernel_w * (s.channels / s.groups);
}
inline std::int64_t y_elements(const ConvShape& s) { return s.images * s.out_height() * s.out_width() * s.filters; }

}  // namespace conv_test
