// Pooling: rows of the operator table, output sizes, ties, NaN, and kept bytes.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/ops/copy.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using PoolValues = std::vector<double>;
using PoolArrays = std::vector<HostArray>;

struct NaivePool {
  Shape in;
  PoolWindow window;
  bool is_max = true, counts_padding = true;

  std::int64_t stride(std::size_t axis) const {
    return window.stride[axis] ? window.stride[axis] : window.kernel[axis];
  }

  // Counts windows while they begin inside the image or its leading padding, and end inside the padded image; ceil_mode
  // drops the second condition.
  std::int64_t out(std::size_t axis) const {
    const std::int64_t size = in[static_cast<int>(axis) + 1];
    std::int64_t count = 0;
    for (std::int64_t first = -window.padding[axis];; first += stride(axis), ++count) {
      const std::int64_t last = first + (window.kernel[axis] - 1) * window.dilation[axis];
      const std::int64_t overhang = last - (size + window.padding[axis] - 1);
      if (window.ceil_mode ? overhang >= stride(axis) || first >= size : overhang > 0) return count;
    }
  }

  PoolValues operator()(const PoolArrays& arrays) const {
    PoolValues y;
    for (std::int64_t n = 0; n < in[0]; ++n) {
      for (std::int64_t oh = 0; oh < out(0); ++oh) {
        for (std::int64_t ow = 0; ow < out(1); ++ow) {
          for (std::int64_t c = 0; c < in[3]; ++c) y.push_back(one(arrays[0], n, oh, ow, c));
        }
      }
    }
    return y;
  }

  double one(const HostArray& x, std::int64_t n, std::int64_t oh, std::int64_t ow, std::int64_t c) const {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0, places = 0;
    for (std::int64_t kh = 0; kh < window.kernel[0]; ++kh) {
      for (std::int64_t kw = 0; kw < window.kernel[1]; ++kw) {
        const std::int64_t h = oh * stride(0) - window.padding[0] + kh * window.dilation[0];
        const std::int64_t w = ow * stride(1) - window.padding[1] + kw * window.dilation[1];
        const bool is_inside = h >= 0 && h < in[1] && w >= 0 && w < in[2];
        const bool is_padded = h < in[1] + window.padding[0] && w < in[2] + window.padding[1];
        if (is_inside || (counts_padding && is_padded)) ++places;
        if (!is_inside) continue;
        const double value = x[((n * in[1] + h) * in[2] + w) * in[3] + c];
        largest = std::max(largest, value);
        sum += value;
      }
    }
    return is_max ? largest : sum / places;
  }
};

bool is_same(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor da = contiguous(a.detach()), db = contiguous(b.detach());
  return std::memcmp(memory::Pin(da).data(), memory::Pin(db).data(), da.bytes()) == 0;
}

OperatorCase max_row(const char* name, const Shape& shape, const PoolWindow& window) {
  return {name,
          {{shape}},
          [=](auto in) { return max_pool2d(in[0], window); },
          NaivePool{shape, window},
          [=](auto e, auto) { return shape.elements() * e; }};
}

OperatorCase average_row(const char* name, const Shape& shape, const PoolWindow& window, bool counts_padding) {
  return {name,
          {{shape}},
          [=](auto in) { return avg_pool2d(in[0], window, counts_padding); },
          NaivePool{shape, window, false, counts_padding},
          [](auto, auto) { return 0; }};
}

const PoolWindow stem{{3, 3}, {2, 2}, {1, 1}};

}  // namespace

TEST_CASE("ops_pool: max pooling") {
  std::vector<OperatorCase> rows{
      max_row("2 x 2", {2, 4, 6, 3}, {}),
      max_row("3 x 3, stride 2, padding 1", {2, 7, 8, 5}, stem),
      max_row("3 x 3, stride 1, padding 1", {1, 5, 4, 2}, {{3, 3}, {1, 1}, {1, 1}}),
      max_row("3 x 2, uneven", {1, 8, 7, 2}, {{3, 2}, {2, 3}, {1, 0}}),
      max_row("dilated", {1, 9, 8, 2}, {{3, 2}, {2, 1}, {2, 1}, {2, 3}}),
      max_row("ceil_mode", {2, 6, 7, 2}, {{3, 3}, {2, 2}, {0, 0}, {1, 1}, true}),
      max_row("ceil_mode and padding", {1, 6, 5, 2}, {{2, 2}, {2, 2}, {1, 1}, {1, 1}, true}),
      max_row("more elements than a byte can name", {1, 18, 17, 1}, {{16, 16}, {2, 1}, {1, 0}}),
      max_row("more channels than a tile", {1, 3, 3, 300}, {{2, 2}, {1, 1}}),
  };
  OperatorCase taps = max_row("keeping taps", {2, 7, 8, 5}, stem);
  taps.run = [](auto in) { return max_pool2d(in[0], stem, MaxPoolKeeps::taps); };
  taps.kept_bytes = [](auto, auto) { return 2 * 4 * 4 * 5; };
  rows.push_back(taps);
  OperatorCase strided = max_row("of a transposed tensor", {1, 4, 6, 2}, {});
  strided.operands = {{{1, 2, 6, 4}}};
  strided.run = [](auto in) { return max_pool2d(transpose(in[0], 1, 3), {}); };
  strided.reference = {};
  strided.kept_bytes = [](auto e, auto) { return 48 * e; };
  rows.push_back(strided);
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops_pool: average pooling") {
  const std::vector<OperatorCase> rows{
      average_row("2 x 2", {2, 4, 6, 3}, {}, true),
      average_row("3 x 3, stride 2, padding counts", {2, 7, 8, 5}, stem, true),
      average_row("3 x 3, stride 2, padding does not count", {2, 7, 8, 5}, stem, false),
      average_row("ceil_mode, padding counts", {1, 6, 5, 2}, {{3, 2}, {2, 2}, {1, 1}, {1, 1}, true}, true),
      average_row("ceil_mode, padding does not count", {1, 6, 5, 2}, {{3, 2}, {2, 2}, {1, 1}, {1, 1}, true}, false),
      average_row("overlapping", {1, 5, 4, 2}, {{3, 3}, {1, 1}, {1, 1}}, true),
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops_pool: global average pooling") {
  const auto reference = [](std::int64_t rows, std::int64_t channels) {
    return [=](const PoolArrays& in) {
      const auto images = static_cast<std::int64_t>(in[0].values.size()) / rows / channels;
      PoolValues y(static_cast<std::size_t>(images * channels));
      for (std::int64_t i = 0; i < images * rows * channels; ++i) {
        y[static_cast<std::size_t>(i / (rows * channels) * channels + i % channels)] +=
            in[0][i] / static_cast<double>(rows);
      }
      return y;
    };
  };
  const auto nothing = [](auto, auto) { return 0; };
  const auto call = [](auto in) { return global_avg_pool(in[0]); };
  const std::vector<OperatorCase> rows{
      {"global_avg_pool", {{{3, 2, 5, 4}}}, call, reference(10, 4), nothing},
      {"more rows than a block, more channels than a tile",
       {{{2, 70, 260}}},
       call,
       reference(70, 260),
       nothing,
       1,
       true,
       true,
       false,
       "larger than central differences are worth; the row above checks the gradient"},
      {"with a consumer of its gradient",
       {{{2, 3, 3, 4}}},
       [](auto in) { return global_avg_pool(batch_norm_relu(in[0], {}, {}, {}, {})); }},
  };
  for (const OperatorCase& row : rows) check_operator(row);
  // Their sum overflows f16, the mean does not.
  CHECK(item(global_avg_pool(full({1, 10, 10, 1}, 60000, DType::f16))) == 60000);
}

TEST_CASE("ops_pool: output sizes") {
  struct Row {
    std::int64_t in;
    PoolWindow window;
    std::int64_t out;
  };
  const auto along_h = [](std::int64_t kernel, std::int64_t stride, std::int64_t padding, std::int64_t dilation,
                          bool ceil) {
    return PoolWindow{{kernel, 1}, {stride, 1}, {padding, 0}, {dilation, 1}, ceil};
  };
  const std::vector<Row> rows{
      {112, along_h(3, 2, 1, 1, false), 56}, {5, along_h(2, 2, 0, 1, false), 2}, {5, along_h(2, 2, 0, 1, true), 3},
      {4, along_h(3, 2, 1, 1, true), 3},     {3, along_h(2, 2, 1, 1, true), 2},  {1, along_h(2, 2, 0, 1, true), 1},
      {7, along_h(3, 1, 0, 2, false), 3},    {9, along_h(3, 0, 0, 1, false), 3},
  };
  for (const Row& row : rows) {
    const Tensor x = zeros({1, row.in, 1, 1});
    CHECK(max_pool2d(x, row.window).shape() == Shape{1, row.out, 1, 1});
    CHECK(NaivePool{x.shape(), row.window}.out(0) == row.out);
  }
}

TEST_CASE("ops_pool: the first of equal elements takes the gradient, NaN beats all") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  struct Row {
    std::vector<double> x;
    double y;
    int winner;
  };
  const std::vector<Row> rows{{{1, 1, 1, 1}, 1, 0},
                              {{0, 2, 1, 2}, 2, 1},
                              {{3, nan, 4, 1}, nan, 1},
                              {{nan, 1, nan, 9}, nan, 2},
                              {{-inf, -inf, -inf, -inf}, -inf, 0},
                              {{-inf, -5, -inf, -5}, -5, 1}};
  for (const Row& row : rows) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const MaxPoolKeeps keeps : {MaxPoolKeeps::input, MaxPoolKeeps::taps}) {
        Tensor x = to_dtype(from_host(row.x, {1, 2, 2, 1}), dtype);
        x.require_grad();
        Tape tape;
        Tensor y;
        {
          const Recording on(tape);
          y = max_pool2d(x, {}, keeps);
        }
        tape.backward(y);
        const double got = item(y);
        CHECK((got == row.y || (std::isnan(got) && std::isnan(row.y))));
        std::vector<double> expected(4);
        expected[static_cast<std::size_t>(row.winner)] = 1;
        CHECK(to_host<double>(x.grad()) == expected);
      }
    }
  }
}

TEST_CASE("ops_pool: a window that dilation puts beside the image gives -inf and no gradient") {
  Tensor x = full({1, 1, 1, 2}, 7);
  x.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = max_pool2d(x, {{2, 1}, {1, 1}, {2, 0}, {3, 1}});  // rows -2 and 1, then -1 and 2
  }
  tape.backward(y, full(y.shape(), 1));
  CHECK(y.shape() == Shape{1, 2, 1, 2});
  CHECK(to_host<double>(y) == std::vector<double>(4, -std::numeric_limits<double>::infinity()));
  CHECK(to_host<double>(x.grad()) == std::vector<double>(2, 0.0));
}

TEST_CASE("ops_pool: both ways of keeping, and all instruction sets, give the same bits") {
  const auto gradient = [](DType dtype, MaxPoolKeeps keeps) {
    std::vector<double> values(2 * 9 * 11 * 37);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(i * 7919 % 64) / 16 - 2;  // many ties
    Tensor x = to_dtype(from_host(values, {2, 9, 11, 37}), dtype);
    x.require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = max_pool2d(x, stem, keeps);
      y = avg_pool2d(y, stem, false);
    }
    tape.backward(
        y, to_dtype(from_host(std::vector<double>(values.begin(), values.begin() + y.elements()), y.shape()), dtype));
    return x.grad();
  };
  const kernel_test::Settings settings;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    kernels::set_isa(kernels::Isa::generic);
    const Tensor expected = gradient(dtype, MaxPoolKeeps::input);
    for (const kernels::Isa isa : kernel_test::supported()) {
      kernels::set_isa(isa);
      CHECK(is_same(expected, gradient(dtype, MaxPoolKeeps::input)));
      CHECK(is_same(expected, gradient(dtype, MaxPoolKeeps::taps)));
    }
  }
}

TEST_CASE("ops_pool: empty batches and errors") {
  Tensor none = Tensor::empty({0, 8, 8, 3});
  none.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = global_avg_pool(max_pool2d(none, stem));
  }
  tape.backward(y, Tensor::empty({0, 3}));
  CHECK(none.grad().shape() == Shape{0, 8, 8, 3});

  const Tensor x = zeros({1, 4, 4, 2});
  CHECK_THROWS_AS(max_pool2d(zeros({4, 4, 2}), stem), ShapeError);
  CHECK_THROWS_AS(max_pool2d(zeros({1, 4, 4, 2}, DType::i32), stem), DTypeError);
  CHECK_THROWS_AS(max_pool2d(x, {{5, 5}}), ShapeError);
  CHECK_THROWS_WITH(
      max_pool2d(x, {{5, 5}}),
      "max_pool2d: kernel (5, 5), stride (0, 0), padding (0, 0), dilation (1, 1) on (1, 4, 4, 2): the window "
      "is larger than the padded image");
  CHECK_THROWS_AS(max_pool2d(x, {{2, 2}, {2, 2}, {2, 0}}), ValueError);
  CHECK_THROWS_AS(max_pool2d(x, {{0, 2}}), ValueError);
  CHECK_THROWS_AS(max_pool2d(x, {{2, 2}, {-1, 1}}), ValueError);
  CHECK_THROWS_AS(max_pool2d(x, {{2, 2}, {1, 1}, {0, 0}, {0, 1}}), ValueError);
  CHECK_THROWS_AS(avg_pool2d(x, {{2, 2}, {1, 1}, {0, 0}, {2, 1}}), ValueError);
  CHECK_THROWS_AS(global_avg_pool(zeros({2, 3})), ShapeError);
  CHECK_THROWS_AS(global_avg_pool(zeros({2, 0, 3})), ShapeError);
}

namespace {

// By definition in real numbers: the position of an output among the inputs, and its neighbours; for an area, the
// inputs that it covers.
std::vector<std::pair<std::int64_t, double>> resampled_from(Resample mode, std::int64_t o, std::int64_t in,
                                                            std::int64_t out) {
  const double ratio = static_cast<double>(in) / static_cast<double>(out), last = static_cast<double>(in - 1);
  std::vector<std::pair<std::int64_t, double>> parts;
  if (mode == Resample::nearest) return {{static_cast<std::int64_t>(static_cast<double>(o) * ratio + 1e-9), 1}};
  if (mode == Resample::area) {
    const auto begin = static_cast<std::int64_t>(static_cast<double>(o) * ratio + 1e-9);
    const auto end = static_cast<std::int64_t>(std::ceil(static_cast<double>(o + 1) * ratio - 1e-9));
    for (std::int64_t i = begin; i < end; ++i) parts.emplace_back(i, 1 / static_cast<double>(end - begin));
    return parts;
  }
  double at = mode == Resample::linear ? (static_cast<double>(o) + 0.5) * ratio - 0.5 : 0;
  if (mode == Resample::linear_aligned && out > 1) at = static_cast<double>(o) * last / static_cast<double>(out - 1);
  at = std::clamp(at, 0.0, last);
  const double low = std::floor(at);
  parts.emplace_back(static_cast<std::int64_t>(low), 1 - (at - low));
  if (low < last) parts.emplace_back(static_cast<std::int64_t>(low) + 1, at - low);
  return parts;
}

OperatorCase resample_row(const Shape& x, std::int64_t height, std::int64_t width, Resample mode) {
  return {"interpolate " + std::to_string(static_cast<int>(mode)) + " " + to_string(x) + " to " +
              to_string(Shape{height, width}),
          {{x}},
          [=](auto in) { return interpolate(in[0], height, width, mode); },
          [=](const PoolArrays& in) {
            PoolValues y;
            for (std::int64_t i = 0; i < x[0] * height * width * x[3]; ++i) {
              const std::int64_t c = i % x[3], w = i / x[3] % width, h = i / x[3] / width % height;
              double sum = 0;
              for (const auto& [ih, of_row] : resampled_from(mode, h, x[1], height)) {
                for (const auto& [iw, of_column] : resampled_from(mode, w, x[2], width)) {
                  const std::int64_t image = i / x[3] / width / height;
                  sum += of_row * of_column * in[0][((image * x[1] + ih) * x[2] + iw) * x[3] + c];
                }
              }
              y.push_back(sum);
            }
            return y;
          },
          [](auto, auto) { return std::int64_t{0}; },
          4};
}

}  // namespace

TEST_CASE("ops: interpolate and adaptive_avg_pool2d") {
  for (const Resample mode : {Resample::nearest, Resample::linear, Resample::linear_aligned, Resample::area}) {
    for (const auto& [x, height, width] : {std::tuple(Shape{2, 3, 4, 3}, 6, 8),
                                           {Shape{1, 5, 7, 2}, 3, 2},
                                           {Shape{1, 3, 5, 2}, 7, 4},
                                           {Shape{2, 1, 1, 3}, 4, 3},
                                           {Shape{1, 4, 6, 1}, 1, 1},
                                           {Shape{1, 3, 3, 2}, 3, 3},
                                           {Shape{0, 3, 2, 4}, 2, 5},
                                           {Shape{1, 2, 2, 260}, 3, 3}}) {
      check_operator(resample_row(x, height, width, mode));
    }
  }
  // A pixel lists exactly the outputs that read it, for all sizes.
  for (const Resample mode : {Resample::nearest, Resample::linear, Resample::linear_aligned, Resample::area}) {
    std::size_t wrong = 0;
    for (std::int64_t in = 1; in <= 17; ++in) {
      for (std::int64_t out = 1; out <= 17; ++out) {
        const kernels::ResampleAxis axis{in, out, mode};
        for (std::int64_t i = 0; i < in; ++i) {
          double by_outputs = 0, by_inputs = 0;
          const auto range = axis.outputs_of(i);
          for (std::int64_t o = range.first; o <= range.last; ++o) by_outputs += axis.weight<double>(o, i);
          for (std::int64_t o = 0; o < out; ++o) {
            double all = 0;
            for (const auto& [from, weight] : resampled_from(mode, o, in, out)) {
              if (from == i) by_inputs += weight;
              all += weight;
            }
            wrong += std::abs(all - 1) > 1e-12 ? 1 : 0;
          }
          wrong += range.first < 0 || range.last >= out || std::abs(by_outputs - by_inputs) > 1e-12 ? 1 : 0;
        }
      }
    }
    CHECK(wrong == 0);
  }
  const Tensor x = rand({2, 3, 5, 4});
  CHECK(to_host<float>(upsample(x, 2)) == to_host<float>(interpolate(x, 6, 10)));
  const auto pooled = to_host<float>(adaptive_avg_pool2d(x, 1, 1)), mean = to_host<float>(global_avg_pool(x));
  for (std::size_t i = 0; i < mean.size(); ++i) CHECK(pooled[i] == Approx(mean[i]));
  CHECK_THROWS_AS(interpolate(x, 0, 3), ShapeError);
  CHECK_THROWS_AS(max_pool2d(zeros({1, 32769, 1, 1}), PoolWindow{.kernel = {32769, 1}}), ValueError);
  CHECK_THROWS_AS(interpolate(x, 1, std::int64_t{1} << 30), ShapeError);
  CHECK_THROWS_AS(interpolate(zeros({3, 5, 4}), 2, 2), ShapeError);
  CHECK_THROWS_AS(upsample(zeros({3, 5, 4}), 2), ShapeError);
  CHECK_THROWS_AS(interpolate(zeros({1, 0, 5, 4}), 2, 2), ShapeError);
  CHECK_THROWS_AS(interpolate(arange(4), 2, 2), DTypeError);
  CHECK_THROWS_WITH(adaptive_avg_pool2d(x, 0, 3), Catch::StartsWith("adaptive_avg_pool2d: x is"));
}
