// Convolutions on bf16 dot products: within rounding of the plain loops, and bit for bit the unit's product of patches.
// Every machine runs the model of vdpbf16ps, and each of its units.

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include <thimble/core/kernels/cpu/matmul/gemm.h>

#include "conv_calls.h"
#include "support/catch.h"

using namespace conv_test;

namespace {

constexpr double factor = 8;  // chains of 1024 instead of 256, and products in pairs

void check_all(const ConvShape& s, DType out, bool accumulate) {
  const Tensors t(s, DType::bf16);
  const std::vector<Isa> set = {best_isa()};
  check_forward(s, DType::bf16, out, t, set, factor);
  check_input_grad(s, DType::bf16, out, accumulate, t, set, factor);
  check_weight_grad(s, DType::bf16, out, accumulate, t, set, factor);
}

/// The windows of a convolution, (pixels, KH KW C), of one group.
std::vector<std::uint16_t> patches(const ConvShape& s, const Data& x) {
  std::vector<std::uint16_t> rows;
  const auto* const from = reinterpret_cast<const std::uint16_t*>(x.bytes.data());
  for (std::int64_t n = 0; n < s.images; ++n) {
    for (std::int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (std::int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (std::int64_t kh = 0; kh < s.kernel_h; ++kh) {
          for (std::int64_t kw = 0; kw < s.kernel_w; ++kw) {
            const std::int64_t h = oh * s.stride_h + kh * s.dilation_h - s.pad_top;
            const std::int64_t w = ow * s.stride_w + kw * s.dilation_w - s.pad_left;
            const bool is_inside = h >= 0 && h < s.height && w >= 0 && w < s.width;
            for (std::int64_t c = 0; c < s.channels; ++c) {
              rows.push_back(is_inside ? from[((n * s.height + h) * s.width + w) * s.channels + c] : 0);
            }
          }
        }
      }
    }
  }
  return rows;
}

/// C of a gemm() on the current unit.
Data product(GemmArgs g) {
  Data c(DType::f32, g.m * g.n, 99);
  g.c = c.bytes.data();
  g.c_row_stride = g.n;
  g.dtype = DType::bf16, g.c_dtype = DType::f32;
  Workspace workspace(gemm_workspace_bytes(g, 2));
  gemm(g, workspace.get(), 2);
  return c;
}

/// The input's gradient with stride 1 as a product: windows of dy around each pixel, and reversed filters.
Data product_of_turned(const ConvShape& s, const Tensors& t) {
  ConvShape back = s;
  back.height = s.out_height(), back.width = s.out_width(), back.channels = s.filters;
  back.pad_top = (s.kernel_h - 1) * s.dilation_h - s.pad_top,
  back.pad_left = (s.kernel_w - 1) * s.dilation_w - s.pad_left;
  back.pad_bottom = (s.kernel_h - 1) * s.dilation_h - s.pad_bottom;
  back.pad_right = (s.kernel_w - 1) * s.dilation_w - s.pad_right;
  const std::vector<std::uint16_t> rows = patches(back, t.dy);
  const std::int64_t taps = s.kernel_h * s.kernel_w;
  const auto* const weight = reinterpret_cast<const std::uint16_t*>(t.weight.bytes.data());
  std::vector<std::uint16_t> turned;  // (taps in reverse, filters, channels)
  for (std::int64_t tap = taps; tap-- > 0;) {
    for (std::int64_t o = 0; o < s.filters; ++o) {
      for (std::int64_t c = 0; c < s.channels; ++c) turned.push_back(weight[(o * taps + tap) * s.channels + c]);
    }
  }
  GemmArgs g;
  g.m = s.images * s.height * s.width, g.n = s.channels, g.k = taps * s.filters;
  g.a = rows.data(), g.a_row_stride = g.k, g.a_column_stride = 1;
  g.b = turned.data(), g.b_row_stride = g.n, g.b_column_stride = 1;
  return product(g);
}

/// The input's gradient with a stride, as one product per pixel: the windows of dy that reach it, last tap first, and
/// their weights. Tries all taps: out * stride = in + pad - tap.
Data product_pixel_by_pixel(const ConvShape& s, const Tensors& t) {
  const auto* const weight = reinterpret_cast<const std::uint16_t*>(t.weight.bytes.data());
  const auto* const dy = reinterpret_cast<const std::uint16_t*>(t.dy.bytes.data());
  Data dx(DType::f32, s.images * s.height * s.width * s.channels, 0);
  std::fill(dx.bytes.begin(), dx.bytes.end(), std::byte{0});  // for pixels that no tap reaches
  for (std::int64_t pixel = 0; pixel < s.images * s.height * s.width; ++pixel) {
    const std::int64_t n = pixel / (s.height * s.width), h = pixel / s.width % s.height, w = pixel % s.width;
    std::vector<std::uint16_t> row, right;  // (1, taps and filters), (taps and filters, channels)
    for (std::int64_t kh = s.kernel_h; kh-- > 0;) {
      for (std::int64_t kw = s.kernel_w; kw-- > 0;) {
        const std::int64_t y = h + s.pad_top - kh, x = w + s.pad_left - kw;
        if (y % s.stride_h != 0 || x % s.stride_w != 0) continue;  // another phase
        const std::int64_t oh = y / s.stride_h, ow = x / s.stride_w;
        const bool is_inside = y >= 0 && oh < s.out_height() && x >= 0 && ow < s.out_width();
        for (std::int64_t o = 0; o < s.filters; ++o) {
          row.push_back(is_inside ? dy[((n * s.out_height() + oh) * s.out_width() + ow) * s.filters + o] : 0);
          for (std::int64_t c = 0; c < s.channels; ++c) {
            right.push_back(weight[((o * s.kernel_h + kh) * s.kernel_w + kw) * s.channels + c]);
          }
        }
      }
    }
    GemmArgs g;
    g.m = 1, g.n = s.channels, g.k = static_cast<std::int64_t>(row.size());
    if (g.k == 0) continue;
    g.a = row.data(), g.a_row_stride = g.k, g.a_column_stride = 1;
    g.b = right.data(), g.b_row_stride = g.n, g.b_column_stride = 1;
    const Data one = product(g);
    std::memcpy(dx.bytes.data() + static_cast<std::size_t>(pixel * s.channels) * 4, one.bytes.data(), one.bytes.size());
  }
  return dx;
}

}  // namespace

TEST_CASE("conv_bf16: every unit against the plain loops", "[conv][precision]") {
  const Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On forced(unit);
    for (const ConvShape& s : shapes()) {
      check_all(s, DType::bf16, false);
      check_all(s, DType::f32, true);
    }
    // More than one block of 1024 in each sum, and more than one tile of 1024 rows.
    check_all(shape(1, 6, 130, 40, 3, 1, 1), DType::f32, false);
    check_all(shape(3, 20, 8, 33, 3, 1, 1), DType::f16, false);
    check_all(shape(1, 5, 40, 300, 3, 1, 1), DType::f32, true);
  }
}

TEST_CASE("conv_bf16: random shapes against the plain loops", "[conv][precision]") {
  const Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On forced(unit);
    std::mt19937 random(11);
    const auto between = [&](std::int64_t low, std::int64_t high) {
      return low + static_cast<std::int64_t>(random() % static_cast<unsigned>(high - low + 1));
    };
    for (int i = 0; i < 100; ++i) {
      const std::int64_t groups = between(1, 4) == 1 ? between(2, 3) : 1;
      ConvShape s = shape(between(1, 3), between(1, 8), groups * between(1, 40), groups * between(1, 40), between(1, 4),
                          between(1, 2), 0, 1, groups);
      s.width = between(1, 9);
      s.kernel_w = between(1, 4);
      s.stride_w = between(1, 2);
      s.pad_top = between(0, 5), s.pad_bottom = between(0, 3), s.pad_left = between(0, 5), s.pad_right = between(0, 3);
      s.dilation_h = between(1, 2), s.dilation_w = between(1, 2);
      check_all(s, DType::f32, i % 2 == 0);
    }
  }
}

TEST_CASE("conv_bf16: the bits of the unit's product of patches, on any number of threads", "[conv][precision]") {
  const Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On forced(unit);
    for (const ConvShape& s : {shape(2, 9, 150, 40, 3, 1, 1), shape(1, 40, 3, 9, 7, 2, 3),
                               shape(2, 21, 70, 50, 1, 1, 0), shape(3, 20, 24, 70, 3, 1, 2, 2)}) {
      INFO(describe(s, DType::bf16) << " unit " << to_string(unit));
      const Tensors t(s, DType::bf16);
      const std::vector<std::uint16_t> rows = patches(s, t.x);
      const std::int64_t pixels = s.images * s.out_height() * s.out_width(),
                         taps = s.kernel_h * s.kernel_w * s.channels;
      GemmArgs forward;
      forward.m = pixels, forward.n = s.filters, forward.k = taps;
      forward.a = rows.data(), forward.a_row_stride = taps, forward.a_column_stride = 1;
      forward.b = t.weight.bytes.data(), forward.b_row_stride = 1, forward.b_column_stride = taps;
      ConvForwardArgs f = forward_args(s, DType::bf16, t);
      f.out_dtype = DType::f32, f.bias = nullptr;
      const Data y = computed(f, 1);
      CHECK(y.bytes == product(forward).bytes);
      CHECK(y.bytes == computed(f, 2).bytes);

      GemmArgs weight_grad;
      weight_grad.m = s.filters, weight_grad.n = taps, weight_grad.k = pixels;
      weight_grad.a = t.dy.bytes.data(), weight_grad.a_row_stride = 1, weight_grad.a_column_stride = s.filters;
      weight_grad.b = rows.data(), weight_grad.b_row_stride = taps, weight_grad.b_column_stride = 1;
      ConvWeightGradArgs w = weight_grad_args(s, DType::bf16, t);
      w.out_dtype = DType::f32;
      const Data dweight = computed(w, 1);
      CHECK(dweight.bytes == product(weight_grad).bytes);
      CHECK(dweight.bytes == computed(w, 2).bytes);

      ConvInputGradArgs d = input_grad_args(s, DType::bf16, t);
      d.out_dtype = DType::f32;
      const Data dx = computed(d, 1);
      CHECK(dx.bytes == computed(d, 2).bytes);
      if (s.stride_h == 1) CHECK(dx.bytes == product_of_turned(s, t).bytes);

      // A single image has the bits that it has in a batch.
      ConvForwardArgs alone = f;
      alone.shape.images = 1;
      const Data first = computed(alone, 2);
      CHECK(std::memcmp(first.bytes.data(), y.bytes.data(), first.bytes.size()) == 0);
    }
  }
}

TEST_CASE("conv_bf16: the input's gradient of a stride has the bits of each phase's product", "[conv][precision]") {
  const Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On forced(unit);
    for (const ConvShape& s : {shape(2, 9, 40, 70, 3, 2, 1), shape(1, 8, 33, 130, 1, 2, 0),  // no tap on odd pixels
                               shape(2, 7, 24, 300, 5, 2, 2), shape(1, 7, 20, 9, 2, 3, 0)}) {
      INFO(describe(s, DType::bf16) << " unit " << to_string(unit));
      const Tensors t(s, DType::bf16);
      ConvInputGradArgs d = input_grad_args(s, DType::bf16, t);
      d.out_dtype = DType::f32;
      const Data dx = computed(d, 1);
      CHECK(dx.bytes == computed(d, 2).bytes);
      CHECK(dx.values() == product_pixel_by_pixel(s, t).values());
    }
  }
}

TEST_CASE("conv_bf16: workspaces, and what is converted instead", "[conv][precision]") {
  const Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    for (const ConvShape& s :
         {shape(64, 56, 64, 64, 3, 1, 1), shape(8, 7, 2048, 512, 1, 1, 0), shape(8, 7, 512, 512, 3, 1, 1),
          shape(4, 56, 128, 128, 3, 2, 1), shape(4, 224, 3, 64, 7, 2, 3)}) {
      ConvForwardArgs f;
      f.shape = s, f.dtype = DType::bf16, f.out_dtype = DType::bf16;
      ConvInputGradArgs d;
      d.shape = s, d.dtype = DType::bf16, d.out_dtype = DType::bf16;
      ConvWeightGradArgs w;
      w.shape = s, w.dtype = DType::bf16, w.out_dtype = DType::bf16;
      std::size_t converted = 0;
      {
        const Bf16On none(std::nullopt);
        converted = conv_workspace_bytes(d, 4);
      }
      const Bf16On forced(unit);
      constexpr std::size_t most = (std::size_t{2} << 20) + 4 * (std::size_t{64} << 10);
      CHECK(conv_workspace_bytes(f, 4) <= most);
      CHECK(conv_workspace_bytes(d, 4) <= most);
      CHECK(conv_workspace_bytes(w, 4) <= most);
      CHECK((conv_workspace_bytes(d, 4) == converted) == (s.channels == 3));  // few channels take no unit
    }
  }
}
