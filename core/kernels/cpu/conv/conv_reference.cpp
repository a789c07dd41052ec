// The oracles of conv_cpu.cpp: the formulas of conv.h as seven loops each.

#include <thimble/core/kernels/conv.h>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/shared/reference_value.h>

namespace thimble::kernels {
namespace conv_reference_detail {

void write(void* base, DType dtype, std::int64_t at, double value, bool accumulate = false) noexcept {
  if (accumulate) {
    double there = 0;
    load_elements(base, dtype, at, 1, &there, 1);
    value += there;
  }
  store_elements(&value, base, dtype, at, 1);
}

/// Offsets of elements.
struct Index {
  const ConvShape& s;
  std::int64_t channels = s.channels / s.groups;  // of a group
  std::int64_t filters = s.filters / s.groups;    // of a group

  std::int64_t x(std::int64_t n, std::int64_t ih, std::int64_t iw, std::int64_t channel) const noexcept {
    return ((n * s.height + ih) * s.width + iw) * s.channels + channel;
  }
  std::int64_t weight(std::int64_t o, std::int64_t kh, std::int64_t kw, std::int64_t c) const noexcept {
    return ((o * s.kernel_h + kh) * s.kernel_w + kw) * channels + c;
  }
  std::int64_t y(std::int64_t n, std::int64_t oh, std::int64_t ow, std::int64_t o) const noexcept {
    return ((n * s.out_height() + oh) * s.out_width() + ow) * s.filters + o;
  }
  std::int64_t ih(std::int64_t oh, std::int64_t kh) const noexcept {
    return oh * s.stride_h + kh * s.dilation_h - s.pad_top;
  }
  std::int64_t iw(std::int64_t ow, std::int64_t kw) const noexcept {
    return ow * s.stride_w + kw * s.dilation_w - s.pad_left;
  }
  bool is_inside(std::int64_t ih, std::int64_t iw) const noexcept {
    return ih >= 0 && ih < s.height && iw >= 0 && iw < s.width;
  }
};

template <class S>
double output_value(const ConvForwardArgs& args, std::int64_t n, std::int64_t oh, std::int64_t ow,
                    std::int64_t o) noexcept {
  const Index at{args.shape};
  const std::int64_t first_channel = o / at.filters * at.channels;
  double sum = 0;
  for (std::int64_t kh = 0; kh < args.shape.kernel_h; ++kh) {
    for (std::int64_t kw = 0; kw < args.shape.kernel_w; ++kw) {
      const std::int64_t ih = at.ih(oh, kh), iw = at.iw(ow, kw);
      if (!at.is_inside(ih, iw)) continue;
      for (std::int64_t c = 0; c < at.channels; ++c) {
        sum += reference_value<double, S>(args.x, at.x(n, ih, iw, first_channel + c)) *
               reference_value<double, S>(args.weight, at.weight(o, kh, kw, c));
      }
    }
  }
  return sum;
}

template <class S>
double input_grad_value(const ConvInputGradArgs& args, std::int64_t n, std::int64_t ih, std::int64_t iw,
                        std::int64_t channel) noexcept {
  const Index at{args.shape};
  const std::int64_t group = channel / at.channels;
  double sum = 0;
  for (std::int64_t oh = 0; oh < args.shape.out_height(); ++oh) {
    for (std::int64_t ow = 0; ow < args.shape.out_width(); ++ow) {
      for (std::int64_t kh = 0; kh < args.shape.kernel_h; ++kh) {
        for (std::int64_t kw = 0; kw < args.shape.kernel_w; ++kw) {
          if (at.ih(oh, kh) != ih || at.iw(ow, kw) != iw) continue;
          for (std::int64_t o = group * at.filters; o < (group + 1) * at.filters; ++o) {
            sum += reference_value<double, S>(args.dy, at.y(n, oh, ow, o)) *
                   reference_value<double, S>(args.weight, at.weight(o, kh, kw, channel % at.channels));
          }
        }
      }
    }
  }
  return sum;
}

template <class S>
double weight_grad_value(const ConvWeightGradArgs& args, std::int64_t o, std::int64_t kh, std::int64_t kw,
                         std::int64_t c) noexcept {
  const Index at{args.shape};
  const std::int64_t channel = o / at.filters * at.channels + c;
  double sum = 0;
  for (std::int64_t n = 0; n < args.shape.images; ++n) {
    for (std::int64_t oh = 0; oh < args.shape.out_height(); ++oh) {
      for (std::int64_t ow = 0; ow < args.shape.out_width(); ++ow) {
        const std::int64_t ih = at.ih(oh, kh), iw = at.iw(ow, kw);
        if (!at.is_inside(ih, iw)) continue;
        sum += reference_value<double, S>(args.dy, at.y(n, oh, ow, o)) *
               reference_value<double, S>(args.x, at.x(n, ih, iw, channel));
      }
    }
  }
  return sum;
}

/// Calls f(i, j, k, l) for all indices below the four sizes, the last fastest.
template <class F>
void for_each(std::int64_t size0, std::int64_t size1, std::int64_t size2, std::int64_t size3, F&& f) noexcept {
  for (std::int64_t i = 0; i < size0; ++i) {
    for (std::int64_t j = 0; j < size1; ++j) {
      for (std::int64_t k = 0; k < size2; ++k) {
        for (std::int64_t l = 0; l < size3; ++l) f(i, j, k, l);
      }
    }
  }
}

}  // namespace conv_reference_detail

void conv_forward_reference(const ConvForwardArgs& args) noexcept {
  using namespace conv_reference_detail;
  const ConvShape& s = args.shape;
  visit(args.dtype, [&]<class S> {
    for_each(s.images, s.out_height(), s.out_width(), s.filters, [&](auto n, auto oh, auto ow, auto o) {
      double value = output_value<S>(args, n, oh, ow, o);
      double bias = 0;
      if (args.bias != nullptr) load_elements(args.bias, args.out_dtype, o, 1, &bias, 1);
      value += bias;
      const std::int64_t at = Index{s}.y(n, oh, ow, o);
      if (args.pre_activation != nullptr) write(args.pre_activation, args.out_dtype, at, value);
      write(args.y, args.out_dtype, at, reference_activation(args.activation, value));
    });
  });
}

void conv_input_grad_reference(const ConvInputGradArgs& args) noexcept {
  using namespace conv_reference_detail;
  const ConvShape& s = args.shape;
  visit(args.dtype, [&]<class S> {
    for_each(s.images, s.height, s.width, s.channels, [&](auto n, auto ih, auto iw, auto channel) {
      write(args.dx, args.out_dtype, Index{s}.x(n, ih, iw, channel), input_grad_value<S>(args, n, ih, iw, channel),
            args.accumulate);
    });
  });
}

void conv_weight_grad_reference(const ConvWeightGradArgs& args) noexcept {
  using namespace conv_reference_detail;
  const ConvShape& s = args.shape;
  visit(args.dtype, [&]<class S> {
    for_each(s.filters, s.kernel_h, s.kernel_w, s.channels / s.groups, [&](auto o, auto kh, auto kw, auto c) {
      write(args.dweight, args.out_dtype, Index{s}.weight(o, kh, kw, c), weight_grad_value<S>(args, o, kh, kw, c),
            args.accumulate);
    });
  });
}

void column_sum_reference(const ColumnSumArgs& args) noexcept {
  visit(args.dtype, [&]<class S> {
    for (std::int64_t j = 0; j < args.columns; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < args.rows; ++i) sum += reference_value<double, S>(args.in, i * args.columns + j);
      conv_reference_detail::write(args.out, args.out_dtype, j, sum, args.accumulate);
    }
  });
}

}  // namespace thimble::kernels
