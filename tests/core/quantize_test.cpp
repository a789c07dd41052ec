// Block quantization against plain loops: every dtype, every kind of block, sizes that are no multiple of a block.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"
#include "support/kernel_data.h"

using namespace thimble;

namespace {

struct Stored {
  std::vector<std::uint8_t> codes;
  std::vector<double> scales;
};

// The codes' bytes and the scales' values.
Stored stored(const Tensor& q) {
  Stored s;
  s.codes.resize(static_cast<std::size_t>(q.elements()));
  if (q.elements() > 0) {
    const memory::Pin pin(q);
    std::memcpy(s.codes.data(), pin.data(), s.codes.size());
  }
  if (q.scale()->dtype() == DType::u8) {
    for (const auto e : to_host<std::uint8_t>(*q.scale())) s.scales.push_back(e == 0 ? 0 : std::ldexp(1.0, e - 127));
  } else {
    s.scales = to_host<double>(*q.scale());
  }
  return s;
}

// Magnitudes of the dynamic codes, by the paper's text.
std::vector<double> dynamic_magnitudes(bool is_signed) {
  std::vector<double> list{0};
  for (int e = 6; e >= 0; --e) {
    const int parts = 1 << ((is_signed ? 6 : 7) - e);
    for (int k = 0; k < parts; ++k) list.push_back((0.1 + 0.9 * (k + 0.5) / parts) * std::pow(10.0, -e));
  }
  list.push_back(1);
  return list;
}

double largest_of(DType dtype) {
  return dtype == DType::i8 ? 127 : dtype == DType::f8e4m3 ? 448 : dtype == DType::f8e5m2 ? 57344 : 1;
}

std::uint8_t code_of(float x, const Quantization& how) {
  if (how.dtype == DType::i8) return static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(x)));
  if (how.dtype == DType::f8e4m3) return f8e4m3::saturate(x).bits;
  if (how.dtype == DType::f8e5m2) return f8e5m2::saturate(x).bits;
  static const std::vector<double> both[2] = {dynamic_magnitudes(false), dynamic_magnitudes(true)};
  const std::vector<double>& magnitudes = both[how.is_signed ? 1 : 0];
  if (!how.is_signed && std::signbit(x)) return 0;
  const double a = std::fabs(static_cast<double>(x));
  std::size_t m = 0;
  while (m + 1 < magnitudes.size() && a >= static_cast<float>((magnitudes[m] + magnitudes[m + 1]) / 2)) ++m;
  if (!how.is_signed) return static_cast<std::uint8_t>(m);
  return static_cast<std::uint8_t>(std::signbit(x) ? 127 - std::min<std::size_t>(m, 127) : 127 + m);
}

// Codes and scales of a matrix by their definition.
Stored reference(const std::vector<float>& values, std::int64_t rows, std::int64_t columns, const Quantization& how) {
  const std::int64_t br = how.blocks.rows > 0 ? std::min(how.blocks.rows, rows) : rows;
  const std::int64_t bc = how.blocks.columns > 0 ? std::min(how.blocks.columns, columns) : columns;
  Stored s;
  s.codes.resize(values.size());
  for (std::int64_t r0 = 0; r0 < rows; r0 += br) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += bc) {
      const auto each = [&](auto&& f) {
        for (std::int64_t r = r0; r < std::min(rows, r0 + br); ++r) {
          for (std::int64_t c = c0; c < std::min(columns, c0 + bc); ++c) f(static_cast<std::size_t>(r * columns + c));
        }
      };
      float amax = 0;
      each([&](std::size_t i) { amax = std::max(amax, std::fabs(values[i])); });
      float scale = amax == 0 ? 0 : std::max(amax / static_cast<float>(largest_of(how.dtype)), 0x1p-126f);
      if (how.scale == DType::u8 && scale > 0) scale = static_cast<float>(std::exp2(std::ceil(std::log2(scale))));
      const float inverse = scale == 0 ? 0 : 1 / scale;
      s.scales.push_back(how.scale == DType::f16 ? static_cast<double>(static_cast<float>(f16(scale))) : scale);
      each([&](std::size_t i) { s.codes[i] = code_of(values[i] * inverse, how); });
    }
  }
  return s;
}

float decoded(std::uint8_t code, const Quantization& how) {
  if (how.dtype == DType::i8) return static_cast<std::int8_t>(code);
  if (how.dtype == DType::f8e4m3) return f8e4m3::from_bits(code);
  if (how.dtype == DType::f8e5m2) return f8e5m2::from_bits(code);
  return quant::dynamic_table(how.is_signed).values[code];
}

std::vector<Quantization> all_codes(DType scale) {
  return {{DType::i8, {}, scale},
          {DType::f8e4m3, {}, scale},
          {DType::f8e5m2, {}, scale},
          {DType::u8, {}, scale, true},
          {DType::u8, {}, scale, false}};
}

// Values over many magnitudes, with a block of zeros.
Tensor sample(const Shape& shape) {
  RandomGenerator generator(11);
  const GeneratorScope random(generator);
  std::vector<float> values = to_host<float>(randn(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i % 23) - 14);
    if (i >= 64 && i < 128) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return from_host(values, shape);
}

}  // namespace

TEST_CASE("quantize: codes and scales are those of the definition in every variant", "[quantize]") {
  struct Row {
    Shape shape;
    ScaleBlocks blocks;
  };
  const std::vector<Row> rows = {
      {{5, 131}, ScaleBlocks::per_tensor()},
      {{5, 131}, ScaleBlocks::per_channel({5, 131}, 0)},
      {{5, 131}, ScaleBlocks::per_channel({5, 131}, -1)},
      {{4, 3, 2, 9}, ScaleBlocks::per_channel({4, 3, 2, 9}, 0)},
      {{3, 1100}, ScaleBlocks::per_row_block(32)},
      {{3, 1100}, ScaleBlocks::per_row_block(1024)},
      {{3, 5500}, {2, 0, false}},
      {{3, 1100}, ScaleBlocks::per_channel({3, 1100}, -1)},
      {{37, 70}, ScaleBlocks::square(16)},
      {{7, 333}, ScaleBlocks::flat(32)},
      {{7, 333}, ScaleBlocks::flat(256)},
      {{}, ScaleBlocks::per_tensor()},
      {{300}, ScaleBlocks::flat(64)},
  };
  const kernel_test::Settings settings;
  for (const Row& row : rows) {
    const Tensor t = sample(row.shape);
    const std::vector<float> values = to_host<float>(t);
    const std::int64_t columns = row.blocks.is_flat || row.shape.rank() == 0 ? t.elements() : row.shape.back();
    for (const DType scale : {DType::f32, DType::f16, DType::u8}) {
      for (Quantization how : all_codes(scale)) {
        how.blocks = row.blocks;
        INFO(to_string(row.shape) << " " << to_string(how.dtype) << " " << to_string(scale) << " blocks "
                                  << how.blocks.rows << "x" << how.blocks.columns);
        const Stored expected = reference(values, t.elements() / columns, columns, how);
        for (const kernels::Isa variant : kernel_test::supported()) {
          kernels::set_isa(variant);
          const Tensor q = quantize(t, how);
          REQUIRE(q.shape() == row.shape);
          REQUIRE(q.scale()->shape() == scale_shape(row.shape, how.blocks));
          CHECK(q.bytes() + q.scale()->bytes() == quantized_bytes(row.shape, how));
          const Stored actual = stored(q);
          CHECK(actual.codes == expected.codes);
          CHECK(actual.scales == expected.scales);
          const std::vector<float> back = to_host<float>(dequantize(q, how));
          std::size_t wrong = 0;
          const std::int64_t across = q.scale()->size(1);
          for (std::size_t i = 0; i < back.size(); ++i) {
            const auto r = static_cast<std::int64_t>(i) / columns, c = static_cast<std::int64_t>(i) % columns;
            const std::int64_t br = how.blocks.rows > 0 ? how.blocks.rows : t.elements() / columns;
            const std::int64_t bc = how.blocks.columns > 0 ? how.blocks.columns : columns;
            const auto s = static_cast<float>(actual.scales[static_cast<std::size_t>(r / br * across + c / bc)]);
            wrong += back[i] != decoded(actual.codes[i], how) * s;
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("quantize: threads do not change bits, nor does the dtype's layout", "[quantize]") {
  const Tensor t = sample({70, 1300});
  struct Threads {
    int before = thread_count();
    ~Threads() { set_thread_count(before); }
  } threads;
  for (const ScaleBlocks blocks :
       {ScaleBlocks::per_tensor(), ScaleBlocks::flat(64), ScaleBlocks::per_channel({1, 1}, -1)}) {
    const Quantization how{DType::i8, blocks};
    set_thread_count(1);
    const Stored one = stored(quantize(t, how));
    const std::vector<float> back = to_host<float>(dequantize(quantize(t, how), how));
    for (const int n : {2, 5}) {
      set_thread_count(n);
      CHECK(stored(quantize(t, how)).codes == one.codes);
      CHECK(to_host<float>(dequantize(quantize(t, how), how)) == back);
    }
    // 16-bit operands and results go through f32 and are rounded once.
    const Tensor half = to_dtype(t, DType::bf16);
    CHECK(stored(quantize(half, how)).codes == stored(quantize(to_dtype(half, DType::f32), how)).codes);
    CHECK(to_host<float>(dequantize(quantize(t, how), how, DType::bf16)) ==
          to_host<float>(to_dtype(from_host(back, t.shape()), DType::bf16)));
    CHECK(to_host<float>(dequantize(quantize(to_dtype(t, DType::f64), how), how, DType::f64)) == back);
  }
}

TEST_CASE("quantize: errors stay within the format's", "[quantize]") {
  const Tensor t = sample({9, 200});
  const std::vector<float> values = to_host<float>(t);
  for (const DType scale : {DType::f32, DType::f16}) {
    for (const DType dtype : {DType::i8, DType::f8e4m3, DType::f8e5m2}) {
      const Quantization how{dtype, ScaleBlocks::flat(32), scale};
      const std::vector<float> back = to_host<float>(dequantize(quantize(t, how), how));
      std::size_t wrong = 0;
      for (std::size_t b = 0; b < values.size(); b += 32) {
        const std::size_t end = std::min(values.size(), b + 32);
        double amax = 0;
        for (std::size_t i = b; i < end; ++i) amax = std::max(amax, std::fabs(static_cast<double>(values[i])));
        for (std::size_t i = b; i < end; ++i) {
          const double v = std::fabs(static_cast<double>(values[i]));
          const double step = dtype == DType::i8       ? amax / 254
                              : dtype == DType::f8e4m3 ? std::max(v * 0x1p-4, amax / 448 * 0x1p-10)
                                                       : std::max(v * 0x1p-3, amax / 57344 * 0x1p-17);
          const double rounding = scale == DType::f16 ? v * 0x1p-11 + 0x1p-25 * 128 : 0;
          wrong += std::fabs(static_cast<double>(back[i]) - values[i]) > 1.0001 * (step + rounding);
        }
      }
      CHECK(wrong == 0);
    }
  }
  // 34 bytes for 32 values, 1.0625 per value.
  CHECK(quantized_bytes({4, 32}, {DType::i8, ScaleBlocks::flat(32), DType::f16}) == 4 * 34);
  CHECK(quantized_bytes({4, 33}, {DType::i8, ScaleBlocks::flat(32), DType::f16}) == 132 + 5 * 2);
  CHECK(quantized_bytes({4, 64}, {DType::i8, ScaleBlocks::flat(64)}) == 272);
}

TEST_CASE("quantize: what is not finite makes its block NaN, zeros stay zeros", "[quantize]") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float special : {infinity, -infinity, std::nanf("")}) {
    for (const DType scale : {DType::f32, DType::f16, DType::u8}) {
      for (Quantization how : all_codes(scale)) {
        std::vector<float> values(1300, 2.0f);
        values[40] = special;
        std::fill(values.begin() + 64, values.begin() + 96, 0.0f);
        for (const std::int64_t block : {std::int64_t{32}, std::int64_t{1024}}) {
          how.blocks = ScaleBlocks::flat(block);
          const Tensor q = quantize(from_host(values, {1300}), how);
          const std::vector<float> back = to_host<float>(dequantize(q, how));
          std::size_t wrong = 0;
          for (std::int64_t i = 0; i < 1300; ++i) {
            const auto v = static_cast<std::size_t>(i);
            wrong += std::isnan(back[v]) != (i / block == 40 / block);
            if (block == 32 && i >= 64 && i < 96) wrong += back[v] != 0 || std::signbit(back[v]);
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
  // Magnitudes at the ends of f32.
  const Quantization how{DType::i8, ScaleBlocks::flat(4)};
  const float most = std::numeric_limits<float>::max() * 0.999f, least = std::numeric_limits<float>::denorm_min();
  const std::vector<float> ends = {most, -most, most / 2, 0, least, 0, 0, 0, 0x1p-120f, -0x1p-120f, 0, 0};
  const std::vector<float> back = to_host<float>(dequantize(quantize(from_host(ends, {12}), how), how));
  CHECK(back[0] == Approx(most).epsilon(1e-6));
  CHECK(back[1] == -back[0]);
  CHECK(back[4] == 0);
  CHECK(back[8] == Approx(0x1p-120).epsilon(0.01));
  // f16 scales end at 65504: larger values saturate.
  const Quantization half{DType::i8, ScaleBlocks::flat(4), DType::f16};
  CHECK(to_host<float>(dequantize(quantize(full({4}, 1e9), half), half))[0] == 127.0f * 65504.0f);
}

TEST_CASE("quantize: powers of two as scales keep finite numbers finite", "[quantize]") {
  constexpr float most = std::numeric_limits<float>::max();
  for (Quantization how : all_codes(DType::u8)) {
    how.blocks = ScaleBlocks::flat(8);
    // Follows the definition up to largest x the largest scale, and saturates beyond it.
    const double largest = largest_of(how.dtype);
    const auto end =
        static_cast<float>(largest * std::exp2(std::floor(std::log2(static_cast<double>(most) / largest))));
    for (const float amax :
         {most, std::nextafter(most, 0.0f), std::nextafter(end, most), end, 0x1p127f, 3e38f, 1e30f}) {
      const std::vector<float> values = {amax, -amax, amax / 2, 0, 1, -amax / 16, amax * 0.75f, -0.0f};
      const Tensor q = quantize(from_host(values, {8}), how);
      const std::vector<float> back = to_host<float>(dequantize(q, how));
      const double scale = stored(q).scales[0];
      INFO(to_string(how.dtype) << " signed " << how.is_signed << " amax " << amax << " scale " << scale);
      CHECK(scale <= static_cast<double>(end) / largest);
      if (amax > end / 2) CHECK(scale == static_cast<double>(end) / largest);
      for (const float v : back) CHECK(std::isfinite(v));
      CHECK(back[0] == Approx(std::min(amax, end)).epsilon(0.07));
      CHECK(back[2] == Approx(amax / 2).epsilon(0.13));
      if (how.dtype != DType::u8) CHECK(back[1] == -back[0]);
      CHECK(back[3] == 0);
    }
  }
}

TEST_CASE("quantize: the error of i8 at magnitudes whose scale is the least one", "[quantize]") {
  // Half a scale, plus 2^-14 of it for f32's rounding.
  const Quantization how{DType::i8, ScaleBlocks::flat(16)};
  for (const float amax : {1e-45f, 1e-40f, 0x1p-127f, 0x1p-126f, 1e-37f, 127 * 0x1p-126f, 1e-35f, 1e-30f}) {
    std::vector<float> values;
    for (int i = 0; i < 16; ++i) values.push_back(amax * static_cast<float>(15 - 2 * i) / 15);
    const std::vector<float> back = to_host<float>(dequantize(quantize(from_host(values, {16}), how), how));
    const double scale = std::max(static_cast<double>(amax) / 127, 0x1p-126);
    for (std::size_t i = 0; i < 16; ++i) {
      INFO(values[i] << " of " << amax);
      CHECK(std::fabs(static_cast<double>(back[i]) - values[i]) <= scale / 2 * (1 + 0x1p-14));
    }
    if (amax < 0x1p-127f) CHECK(back == std::vector<float>(16, 0));
  }
}

TEST_CASE("quantize: dynamic codes", "[quantize]") {
  for (const bool is_signed : {true, false}) {
    const quant::DynamicTable& table = quant::dynamic_table(is_signed);
    const std::vector<double> magnitudes = dynamic_magnitudes(is_signed);
    REQUIRE(table.magnitudes == static_cast<int>(magnitudes.size()));
    CHECK(table.magnitudes == (is_signed ? 129 : 256));
    for (std::size_t c = 1; c < 256; ++c) CHECK(table.values[c - 1] < table.values[c]);  // so all 256 differ
    for (std::size_t m = 0; m < magnitudes.size(); ++m) {
      CHECK(table.values[is_signed ? 127 + m : m] == static_cast<float>(magnitudes[m]));
      if (is_signed && m > 0 && m < 128) CHECK(table.values[127 - m] == -static_cast<float>(magnitudes[m]));
    }
    const auto place = [&](std::uint32_t b) {
      return (table.places[b] + b * table.width + table.first_bits) / table.width;
    };
    for (std::uint32_t b = 1; b < table.places.size(); ++b) CHECK(place(b) - place(b - 1) <= 1);  // one border each
    // Every code comes back, and neighbours of every border give their nearest code.
    const quant::DynamicCode<true> with_sign{&table};
    const quant::DynamicCode<false> without{&table};
    const auto encode = [&](float x) { return is_signed ? with_sign.encode(x) : without.encode(x); };
    for (std::size_t c = 0; c < 256; ++c) CHECK(encode(table.values[c]) == c);
    for (std::size_t m = 0; m + 1 < magnitudes.size(); ++m) {
      const auto border = static_cast<float>((magnitudes[m] + magnitudes[m + 1]) / 2);
      const auto at = static_cast<unsigned>(is_signed ? 127 + m : m);
      CHECK(encode(border) == at + 1);
      CHECK(encode(std::nextafter(border, 0.0f)) == at);
    }
    CHECK(encode(2.0f) == 255);
    CHECK(encode(-1.0f) == 0);
    // Relative error in a decade e: half a part, 0.45 / parts over at least 0.1.
    for (int e = 0; e < 4; ++e) {
      const double parts = std::ldexp(1.0, (is_signed ? 6 : 7) - e);
      for (const double x : {0.11, 0.3, 0.77, 0.99}) {
        const auto v = static_cast<float>(x * std::pow(10.0, -e));
        CHECK(std::fabs(table.values[encode(v)] - v) <= 0.4501 / parts * std::pow(10.0, -e));
      }
    }
  }
}

TEST_CASE("quantize: dry devices, bad descriptions", "[quantize]") {
  for (const Quantization& how : all_codes(DType::f32)) {
    CHECK(quantize(Tensor::empty({3, 0}), how).elements() == 0);
    const Tensor absent = quantize(Tensor::empty({3, 40}, DType::f32, dry(cpu)), how);
    CHECK(absent.scale()->elements() == 1);
    CHECK(dequantize(absent, how).device().is_dry);
  }
  const Tensor t = full({4, 6}, 1);
  const Quantization how{DType::i8, ScaleBlocks::flat(8)};
  CHECK_THROWS_AS(quantize(t, {DType::bf16, {}}), DTypeError);
  CHECK_THROWS_AS(quantize(t, {DType::i8, {}, DType::bf16}), DTypeError);
  CHECK_THROWS_AS(quantize(t, {DType::i8, {-1, 0, false}}), ValueError);
  CHECK_THROWS_AS(quantize(t, {DType::i8, {0, -1, false}}), ValueError);
  CHECK_THROWS_AS(quantize(to_dtype(t, DType::i32), how), DTypeError);
  CHECK_THROWS_AS(quantize(Tensor(), how), ShapeError);
  const Tensor q = quantize(t, how);
  CHECK_THROWS_AS(quantize(q, how), DTypeError);
  CHECK_THROWS_AS(dequantize(t, how), DTypeError);
  CHECK_THROWS_AS(dequantize(q, {DType::i8, ScaleBlocks::flat(16)}), ShapeError);
  CHECK_THROWS_AS(dequantize(q, how, DType::i32), DTypeError);
  CHECK_THROWS_AS(quantize_into(q, full({24}, 1), how), ShapeError);
  const auto before = q.scale()->storage()->version();
  quantize_into(q, t, how);
  CHECK(q.scale()->storage()->version() > before);
  CHECK_THROWS_AS(dequantize_into(full({24}, 1), q, how), ShapeError);
  CHECK_THROWS_AS(ScaleBlocks::per_channel({2, 3, 4}, 1), ShapeError);
  CHECK(scale_shape({4, 3, 2, 9}, ScaleBlocks::per_channel({4, 3, 2, 9}, 0)).elements() == 4);
  CHECK(scale_shape({4, 3, 2, 9}, ScaleBlocks::per_channel({4, 3, 2, 9}, -1)).elements() == 9);
}
