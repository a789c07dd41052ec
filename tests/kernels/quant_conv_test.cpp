// Convolution of 8-bit codes: every unit against the plain loops, equal bits for any number of threads, packing.

#include <cstring>
#include <random>
#include <vector>

#include <thimble/core/kernels/quant_conv.h>

#include "references.h"
#include "support/catch.h"
#include "support/kernel_data.h"

namespace quant_conv_test {

using namespace thimble;
using namespace thimble::kernels;

/// A convolution with its data, in buffers of the smallest allowed size.
struct Convolution {
  QuantConvArgs args;
  std::vector<std::uint8_t> x, residual;
  std::vector<std::int8_t> weight;
  std::vector<std::int32_t> bias;
  std::vector<float> scale;
  std::size_t outputs = 0;

  Convolution(const ConvShape& shape, unsigned seed, bool has_residual, DType y_dtype) {
    std::mt19937 random(seed);
    const auto elements = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    args.shape = shape, args.y_dtype = y_dtype, args.x_zero = static_cast<int>(random() % 256);
    x.resize(elements(shape.images * shape.height * shape.width * shape.channels));
    weight.resize(elements(shape.filters * shape.kernel_h * shape.kernel_w * shape.channels));
    outputs = elements(shape.images * shape.out_height() * shape.out_width() * shape.filters);
    // Every third value is at an end of the range, where instructions that saturate would show.
    for (auto& v : x) v = random() % 3 != 0 ? static_cast<std::uint8_t>(random()) : random() % 2 != 0 ? 255 : 0;
    for (auto& v : weight) v = random() % 3 != 0 ? static_cast<std::int8_t>(random() % 255 - 127) : 127;
    for (std::int64_t o = 0; o < quant_padded_filters(shape); ++o) {
      bias.push_back(o < shape.filters ? static_cast<std::int32_t>(random() % 20001) - 10000 : 0);
      scale.push_back(o < shape.filters ? static_cast<float>(random() % 1000 + 1) * 2e-6F : 0);
    }
    args.zero = static_cast<int>(random() % 200);
    args.low = random() % 2 != 0 ? args.zero : 0;
    if (has_residual) {
      residual.resize(outputs);
      for (auto& v : residual) v = static_cast<std::uint8_t>(random());
      args.residual_scale = 0.37F;
      args.residual_zero = 100;
    }
  }

  QuantConvArgs bound(std::vector<std::byte>& y) {
    QuantConvArgs all = args;
    y.assign(outputs * size_of(args.y_dtype), std::byte{0xAB});
    all.x = x.data(), all.bias = bias.data(), all.scale = scale.data();
    all.residual = residual.empty() ? nullptr : residual.data(), all.y = y.data();
    return all;
  }
  std::vector<std::byte> reference() {
    std::vector<std::byte> y;
    quant_conv_reference(bound(y), weight.data());
    return y;
  }
  std::vector<std::byte> computed(DotUnit unit, int threads) {
    kernel_test::Workspace packed(quant_packed_bytes(args.shape));
    pack_quant_weight(args.shape, weight.data(), packed.get());
    std::vector<std::int8_t> back(weight.size());
    unpack_quant_weight(args.shape, packed.get(), back.data());
    CHECK((back == weight));
    kernel_test::Workspace workspace(quant_conv_workspace_bytes(args.shape, threads));
    std::vector<std::byte> y;
    QuantConvArgs all = bound(y);
    all.packed = packed.get();
    quant_conv(all, workspace.get(), threads, unit);
    CHECK(workspace.is_intact());
    CHECK(packed.is_intact());
    return y;
  }
};

ConvShape shape_of(std::int64_t images, std::int64_t size, std::int64_t channels, std::int64_t filters,
                   std::int64_t kernel, std::int64_t stride, std::int64_t pad, std::int64_t dilation = 1) {
  ConvShape s;
  s.images = images, s.height = size, s.width = size + 1, s.channels = channels, s.filters = filters;
  s.kernel_h = kernel, s.kernel_w = kernel, s.stride_h = stride, s.stride_w = stride;
  s.pad_top = s.pad_bottom = s.pad_left = s.pad_right = pad, s.dilation_h = s.dilation_w = dilation;
  return s;
}

}  // namespace quant_conv_test

using namespace quant_conv_test;

TEST_CASE("quant_conv: every unit has the bits of the reference", "[quant]") {
  const ConvShape shapes[] = {
      shape_of(1, 1, 1, 1, 1, 1, 0),     shape_of(2, 5, 1, 8, 3, 1, 1),   shape_of(3, 6, 8, 8, 3, 1, 1),
      shape_of(2, 6, 8, 16, 3, 2, 1),    shape_of(2, 4, 16, 17, 1, 1, 0), shape_of(1, 7, 3, 64, 7, 2, 3),
      shape_of(2, 5, 12, 40, 1, 2, 0),   shape_of(1, 6, 4, 70, 3, 1, 0),  shape_of(2, 9, 5, 33, 3, 1, 2, 2),
      shape_of(1, 3, 130, 130, 3, 1, 1), shape_of(1, 60, 24, 9, 3, 1, 1), shape_of(7, 2, 6, 5, 2, 2, 1),
  };
  unsigned seed = 1;
  for (const ConvShape& shape : shapes) {
    for (int options = 0; options < 4; ++options) {
      Convolution c(shape, seed++, (options & 1) != 0, (options & 2) != 0 ? DType::f32 : DType::u8);
      const auto expected = c.reference();
      for (const DotUnit unit : kernel_test::supported_units(DType::i8)) {
        INFO("unit " << to_string(unit) << " options " << options << " filters " << shape.filters << " channels "
                     << shape.channels << " kernel " << shape.kernel_h);
        for (const int threads : {1, 3}) CHECK((c.computed(unit, threads) == expected));
      }
    }
  }
}

TEST_CASE("quant_conv: random shapes, every unit", "[quant]") {
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    ConvShape s;
    const auto draw = [&](std::int64_t low, std::int64_t high) {
      return low + static_cast<std::int64_t>(random() % static_cast<unsigned>(high - low + 1));
    };
    s.images = draw(1, 4);
    s.channels = draw(1, 40);
    s.filters = draw(1, 90);
    s.kernel_h = draw(1, 4);
    s.kernel_w = draw(1, 4);
    s.stride_h = draw(1, 3);
    s.stride_w = draw(1, 3);
    s.dilation_h = draw(1, 2);
    s.dilation_w = draw(1, 2);
    s.pad_top = draw(0, 2);
    s.pad_bottom = draw(0, 2);
    s.pad_left = draw(0, 2);
    s.pad_right = draw(0, 2);
    s.height = draw(8, 14);
    s.width = draw(8, 14);
    Convolution c(s, static_cast<unsigned>(i + 100), random() % 2 != 0, random() % 2 != 0 ? DType::f32 : DType::u8);
    const auto expected = c.reference();
    for (const DotUnit unit : kernel_test::supported_units(DType::i8)) {
      INFO("case " << i << " unit " << to_string(unit));
      CHECK((c.computed(unit, 1 + i % 3) == expected));
    }
  }
}

TEST_CASE("quant_conv: halves are rounded to even, and codes stay within their ends", "[quant]") {
  ConvShape s;
  s.images = 8;
  s.height = s.width = s.channels = s.filters = 1;
  const std::uint8_t x[] = {0, 1, 2, 3, 4, 5, 200, 255};
  const std::int8_t weight[] = {1};
  std::vector<std::int32_t> bias(16);
  std::vector<float> scale(16);
  scale[0] = 0.5F;
  QuantConvArgs args;
  args.shape = s, args.x = x, args.bias = bias.data(), args.scale = scale.data(), args.high = 90;
  kernel_test::Workspace packed(quant_packed_bytes(s));
  pack_quant_weight(s, weight, packed.get());
  args.packed = packed.get();
  for (const DotUnit unit : kernel_test::supported_units(DType::i8)) {
    std::uint8_t y[8] = {};
    args.y = y;
    kernel_test::Workspace workspace(quant_conv_workspace_bytes(s, 1));
    quant_conv(args, workspace.get(), 1, unit);
    const std::uint8_t expected[] = {0, 0, 1, 2, 2, 2, 90, 90};
    CHECK(std::memcmp(y, expected, 8) == 0);
  }
}
