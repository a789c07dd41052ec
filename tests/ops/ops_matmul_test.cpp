// Rows of the operator table: matrix products, convolutions, einsum.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;
using Arrays = std::vector<HostArray>;

// y[b, i, j] = alpha sum_k a[b, i, k] c[k, j] with a (B, M, K), c (K, N)
Values product(const HostArray& a, const HostArray& c, std::int64_t rows, std::int64_t inner, std::int64_t columns,
               double alpha = 1) {
  Values y(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) sum += a[i * inner + k] * c[k * columns + j];
      y[static_cast<std::size_t>(i * columns + j)] = alpha * sum;
    }
  }
  return y;
}

// (rows, columns) -> (columns, rows)
HostArray transposed(const HostArray& a, std::int64_t rows, std::int64_t columns) {
  HostArray t = a;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) t.values[static_cast<std::size_t>(j * rows + i)] = a[i * columns + j];
  }
  return t;
}

// A product per batch: a (..., M, K), b (..., K, N), or transposed; b's batch may be missing.
Values batched_product(const Arrays& in, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t k,
                       std::int64_t n) {
  const std::int64_t batches = static_cast<std::int64_t>(in[0].values.size()) / (m * k);
  const bool is_shared = static_cast<std::int64_t>(in[1].values.size()) == k * n;
  Values y;
  for (std::int64_t i = 0; i < batches; ++i) {
    const auto part = [&](const HostArray& x, std::int64_t size, std::int64_t at) {
      return HostArray{{size}, Values(x.values.begin() + at * size, x.values.begin() + (at + 1) * size)};
    };
    HostArray a = part(in[0], m * k, i), b = part(in[1], k * n, is_shared ? 0 : i);
    if (transpose_a) a = transposed(a, k, m);
    if (transpose_b) b = transposed(b, n, k);
    const Values one = product(a, b, m, k, n);
    y.insert(y.end(), one.begin(), one.end());
  }
  return y;
}

Values linear_reference(const Arrays& in, double (*act)(double)) {  // x (2, 3, 5), w (4, 5), b (4)
  Values y = product(in[0], transposed(in[1], 4, 5), 6, 5, 4);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = act(y[i] + in[2][static_cast<std::int64_t>(i % 4)]);
  return y;
}

double gelu_of(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

// Seven loops; x (N, H, W, C), w (O, KH, KW, C / groups).
Values convolution(const Arrays& in, Conv2dOptions o) {
  const Shape &x = in[0].shape, &w = in[1].shape;
  const std::int64_t oh = (x[1] + 2 * o.padding - o.dilation * (w[1] - 1) - 1) / o.stride + 1;
  const std::int64_t ow = (x[2] + 2 * o.padding - o.dilation * (w[2] - 1) - 1) / o.stride + 1;
  Values y;
  for (std::int64_t n = 0; n < x[0]; ++n) {
    for (std::int64_t i = 0; i < oh; ++i) {
      for (std::int64_t j = 0; j < ow; ++j) {
        for (std::int64_t f = 0; f < w[0]; ++f) {
          const std::int64_t group = f / (w[0] / o.groups);
          double sum = in.size() > 2 ? in[2][f] : 0;
          for (std::int64_t kh = 0; kh < w[1]; ++kh) {
            for (std::int64_t kw = 0; kw < w[2]; ++kw) {
              const std::int64_t h = i * o.stride + kh * o.dilation - o.padding;
              const std::int64_t v = j * o.stride + kw * o.dilation - o.padding;
              if (h < 0 || v < 0 || h >= x[1] || v >= x[2]) continue;
              for (std::int64_t c = 0; c < w[3]; ++c) {
                sum += in[0][((n * x[1] + h) * x[2] + v) * x[3] + group * w[3] + c] *
                       in[1][((f * w[1] + kh) * w[2] + kw) * w[3] + c];
              }
            }
          }
          y.push_back(sum);
        }
      }
    }
  }
  return y;
}

OperatorCase conv_row(const char* name, Shape x, Shape w, Conv2dOptions o) {
  return {name,
          {{x}, {w}},
          [o](auto in) { return conv2d(in[0], in[1], {}, o); },
          [o](const Arrays& in) { return convolution(in, o); },
          [x, w](std::int64_t e, std::int64_t) { return (x.elements() + w.elements()) * e; },
          30};
}

}  // namespace

TEST_CASE("ops: matmul and linear") {
  const std::vector<OperatorCase> rows{
      {"matmul (2, 3, 5) x (5, 4)",
       {{{2, 3, 5}}, {{5, 4}}},
       [](auto in) { return matmul(in[0], in[1]); },
       [](const Arrays& in) { return product(in[0], in[1], 6, 5, 4); },
       [](std::int64_t e, std::int64_t) { return (30 + 20) * e; },
       20},
      {"matmul transposed b, scaled",
       {{{3, 5}}, {{4, 5}}},
       [](auto in) { return matmul(in[0], in[1], false, true, 0.5); },
       [](const Arrays& in) { return product(in[0], transposed(in[1], 4, 5), 3, 5, 4, 0.5); },
       [](std::int64_t e, std::int64_t) { return (15 + 20) * e; },
       20},
      {"matmul transposed a",
       {{{5, 3}}, {{5, 4}}},
       [](auto in) { return matmul(in[0], in[1], true, false); },
       [](const Arrays& in) { return product(transposed(in[0], 5, 3), in[1], 3, 5, 4); },
       [](std::int64_t e, std::int64_t) { return (15 + 20) * e; },
       20},
      {"matmul, both transposed, b without a batch",
       {{{2, 5, 3}}, {{4, 5}}},
       [](auto in) { return matmul(in[0], in[1], true, true); },
       [](const Arrays& in) { return batched_product(in, true, true, 3, 5, 4); },
       [](std::int64_t e, std::int64_t) { return (30 + 20) * e; },
       20},
      {"matmul in batches",
       {{{2, 3, 5}}, {{2, 5, 4}}},
       [](auto in) { return matmul(in[0], in[1]); },
       [](const Arrays& in) { return batched_product(in, false, false, 3, 5, 4); },
       [](std::int64_t e, std::int64_t) { return (30 + 40) * e; },
       20},
      {"matmul in batches of batches, b transposed",
       {{{2, 3, 2, 5}}, {{2, 3, 4, 5}}},
       [](auto in) { return matmul(in[0], in[1], false, true); },
       [](const Arrays& in) { return batched_product(in, false, true, 2, 5, 4); },
       [](std::int64_t e, std::int64_t) { return (60 + 120) * e; },
       20},
      {"matmul whose batches broadcast",
       {{{2, 1, 3, 5}}, {{4, 5, 2}}},
       [](auto in) { return matmul(in[0], in[1]); },
       [](const Arrays& in) {
         Values y;
         for (std::int64_t i = 0; i < 8; ++i) {
           const auto a = in[0].values.begin() + i / 4 * 15, b = in[1].values.begin() + i % 4 * 10;
           const Values one = product({{3, 5}, Values(a, a + 15)}, {{5, 2}, Values(b, b + 10)}, 3, 5, 2);
           y.insert(y.end(), one.begin(), one.end());
         }
         return y;
       },
       [](std::int64_t e, std::int64_t) { return (30 + 40) * e; },
       20},
      {"matmul shared by threads",
       {{{150, 70}}, {{70, 90}}},
       [](auto in) { return matmul(in[0], in[1]); },
       [](const Arrays& in) { return product(in[0], in[1], 150, 70, 90); },
       [](std::int64_t e, std::int64_t) { return (150 * 70 + 70 * 90) * e; },
       100,
       true,
       true,
       false,
       "larger than central differences are worth; the rows above check the gradients"},
      {"linear with gelu in its erf form",
       {{{2, 3, 5}}, {{4, 5}}, {{4}}},
       [](auto in) { return linear(in[0], in[1], in[2], kernels::Activation::gelu_erf); },
       [](const Arrays& in) {
         return linear_reference(in, [](double v) { return 0.5 * v * std::erfc(-v / std::sqrt(2)); });
       },
       [](std::int64_t e, std::int64_t) { return (30 + 20 + 24) * e; },
       20},
      {"linear",
       {{{2, 3, 5}}, {{4, 5}}, {{4}}},
       [](auto in) { return linear(in[0], in[1], in[2]); },
       [](const Arrays& in) { return linear_reference(in, [](double v) { return v; }); },
       [](std::int64_t e, std::int64_t) { return (30 + 20) * e; },
       20},
      {"linear with relu: its output is kept",
       {{{2, 3, 5}}, {{4, 5}}, {{4}}},
       [](auto in) { return linear(in[0], in[1], in[2], kernels::Activation::relu); },
       [](const Arrays& in) { return linear_reference(in, [](double v) { return v > 0 ? v : 0; }); },
       [](std::int64_t e, std::int64_t) { return (30 + 20 + 24) * e; },
       20},
      {"linear with gelu: its input is kept",
       {{{2, 3, 5}}, {{4, 5}}, {{4}}},
       [](auto in) { return linear(in[0], in[1], in[2], kernels::Activation::gelu_tanh); },
       [](const Arrays& in) { return linear_reference(in, gelu_of); },
       [](std::int64_t e, std::int64_t) { return (30 + 20 + 24) * e; },
       20},
      {"linear with (in, out) weight, without bias",
       {{{6, 5}}, {{5, 4}}},
       [](auto in) { return linear(in[0], in[1], {}, kernels::Activation::none, true); },
       [](const Arrays& in) { return product(in[0], in[1], 6, 5, 4); },
       [](std::int64_t e, std::int64_t) { return (30 + 20) * e; },
       20},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops: conv2d") {
  std::vector<OperatorCase> rows{
      conv_row("conv 3x3 pad 1", {2, 5, 6, 3}, {4, 3, 3, 3}, {1, 1, 1, 1}),
      conv_row("conv 3x3 stride 2 pad 1", {2, 5, 6, 3}, {4, 3, 3, 3}, {2, 1, 1, 1}),
      conv_row("conv 1x1", {2, 4, 5, 6}, {3, 1, 1, 6}, {}),
      conv_row("conv 1x1 stride 2", {2, 5, 5, 6}, {3, 1, 1, 6}, {2, 0, 1, 1}),
      conv_row("conv 3x3 dilation 2", {1, 7, 7, 2}, {3, 3, 3, 2}, {1, 2, 2, 1}),
      conv_row("conv 3x3 in 2 groups", {2, 5, 5, 4}, {6, 3, 3, 2}, {1, 1, 1, 2}),
      conv_row("conv 7x7 stride 2 pad 3", {1, 9, 9, 3}, {2, 7, 7, 3}, {2, 3, 1, 1}),
      conv_row("conv 3x3 depthwise", {2, 5, 5, 4}, {4, 3, 3, 1}, {1, 1, 1, 4}),
      conv_row("conv 3x3 stride 2 pad 2 dilation 2 in 2 groups", {2, 7, 8, 4}, {4, 3, 3, 2}, {2, 2, 2, 2}),
      conv_row("conv 2x3 kernel", {1, 5, 6, 2}, {3, 2, 3, 2}, {1, 1, 1, 1}),
      conv_row("conv 3x3 stride 2 depthwise", {2, 7, 6, 5}, {5, 3, 3, 1}, {2, 1, 1, 5}),
      conv_row("conv 5x5 dilation 2 depthwise", {1, 9, 9, 3}, {3, 5, 5, 1}, {1, 4, 2, 3}),
  };
  OperatorCase with_bias = conv_row("conv with bias", {2, 4, 4, 3}, {4, 3, 3, 3}, {1, 1, 1, 1});
  with_bias.operands.push_back({{4}});
  with_bias.run = [](auto in) { return conv2d(in[0], in[1], in[2], {1, 1, 1, 1}); };
  rows.push_back(with_bias);
  for (const OperatorCase& row : rows) check_operator(row);
}

namespace {

// Each input adds its products to the outputs that it reaches; x (N, H, W, I), w (I, KH, KW, O / groups).
Values transposed_convolution(const Arrays& in, Conv2dOptions o, std::int64_t more) {
  const Shape &x = in[0].shape, &w = in[1].shape;
  const std::int64_t filters = w[3] * o.groups;
  const std::int64_t oh = (x[1] - 1) * o.stride - 2 * o.padding + o.dilation * (w[1] - 1) + 1 + more;
  const std::int64_t ow = (x[2] - 1) * o.stride - 2 * o.padding + o.dilation * (w[2] - 1) + 1 + more;
  Values y(static_cast<std::size_t>(x[0] * oh * ow * filters), 0);
  for (std::size_t i = 0; in.size() > 2 && i < y.size(); ++i) {
    y[i] = in[2][static_cast<std::int64_t>(i) % filters];
  }
  for (std::int64_t pixel = 0; pixel < x[0] * x[1] * x[2]; ++pixel) {
    for (std::int64_t tap = 0; tap < w[1] * w[2]; ++tap) {
      const std::int64_t h = pixel / x[2] % x[1] * o.stride + tap / w[2] * o.dilation - o.padding;
      const std::int64_t v = pixel % x[2] * o.stride + tap % w[2] * o.dilation - o.padding;
      if (h < 0 || v < 0 || h >= oh || v >= ow) continue;
      for (std::int64_t c = 0; c < x[3]; ++c) {
        for (std::int64_t f = 0; f < w[3]; ++f) {
          const std::int64_t to = c / (x[3] / o.groups) * w[3] + f;
          y[static_cast<std::size_t>(((pixel / x[1] / x[2] * oh + h) * ow + v) * filters + to)] +=
              in[0][pixel * x[3] + c] * in[1][(c * w[1] * w[2] + tap) * w[3] + f];
        }
      }
    }
  }
  return y;
}

}  // namespace

TEST_CASE("ops: conv_transpose2d") {
  struct Row {
    const char* name;
    Shape x, w;
    Conv2dOptions options;
    std::int64_t more = 0;
    bool has_bias = false;
  };
  for (const Row& r : std::vector<Row>{{"2x2 stride 2", {2, 3, 4, 4}, {4, 2, 2, 3}, {2}, 0, true},
                                       {"3x3 pad 1", {2, 4, 3, 3}, {3, 3, 3, 4}, {1, 1}},
                                       {"3x3 stride 2 pad 1, one more", {2, 3, 3, 3}, {3, 3, 3, 2}, {2, 1}, 1, true},
                                       {"4x4 stride 2 pad 1", {1, 3, 4, 2}, {2, 4, 4, 3}, {2, 1}},
                                       {"3x3 stride 3 dilation 2, two more", {1, 3, 2, 2}, {2, 3, 3, 2}, {3, 0, 2}, 2},
                                       {"in 2 groups", {2, 3, 3, 4}, {4, 3, 3, 3}, {2, 1, 1, 2}, 1, true},
                                       {"depthwise", {2, 3, 4, 5}, {5, 3, 3, 1}, {2, 1, 1, 5}, 1, true},
                                       {"1x1", {2, 3, 3, 3}, {3, 1, 1, 2}, {}},
                                       {"one pixel", {1, 1, 1, 2}, {2, 3, 3, 2}, {1, 1}, 0, true},
                                       {"no images", {0, 3, 3, 2}, {2, 3, 3, 2}, {}, 0, true}}) {
    OperatorCase row{
        r.name,
        {{r.x}, {r.w}},
        [=](auto in) { return conv_transpose2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), r.options, r.more); },
        [=](const Arrays& in) { return transposed_convolution(in, r.options, r.more); },
        [=](std::int64_t e, std::int64_t) { return (r.x.elements() + r.w.elements()) * e; },
        30};
    if (r.has_bias) row.operands.push_back({{r.w[3] * r.options.groups}});
    check_operator(row);
  }
  const Tensor x = zeros({1, 3, 3, 4}), w = zeros({4, 3, 3, 2});
  CHECK_THROWS_AS(conv_transpose2d(x, zeros({3, 3, 3, 2})), ShapeError);
  CHECK_THROWS_AS(conv_transpose2d(x, w, zeros({3})), ShapeError);
  CHECK_THROWS_AS(conv_transpose2d(zeros({3, 3, 4}), w), ShapeError);
  CHECK_THROWS_AS(conv_transpose2d(x, w, {}, {1, 3}), ShapeError);  // no output is left
  CHECK_THROWS_AS(conv_transpose2d(x, w, {}, {1, 0, 1, 3}), ShapeError);
  CHECK_THROWS_AS(conv_transpose2d(x, w, {}, {2}, 2), ValueError);
  for (const bool is_high : {true, false}) {  // each side is compared with its own stride
    ops::ConvTranspose2d op;
    op.conv.stride_h = is_high ? 2 : 3, op.conv.stride_w = is_high ? 3 : 2;
    (is_high ? op.extra_h : op.extra_w) = 2;
    CHECK_THROWS_AS(apply(op, x, w, Tensor()), ValueError);
  }
  CHECK_THROWS_AS(conv_transpose2d(x, w, {}, {0}), ValueError);
  CHECK_THROWS_AS(conv_transpose2d(x, cast(w, DType::f64)), DTypeError);
}

TEST_CASE("ops: conv1d is a convolution of images of one row") {
  struct Row {
    Shape x, w;
    Conv2dOptions options;
  };
  for (const Row& r : std::vector<Row>{{{2, 9, 3}, {4, 3, 3}, {1, 1}},
                                       {{2, 9, 4}, {4, 4, 2}, {2, 2, 1, 2}},
                                       {{1, 8, 3}, {2, 3, 3}, {1, 2, 2}},
                                       {{2, 7, 5}, {5, 3, 1}, {1, 1, 1, 5}},
                                       {{1, 1, 2}, {3, 1, 2}, {}}}) {
    OperatorCase row{"conv1d",
                     {{r.x}, {r.w}, {{r.w[0]}}},
                     [=](auto in) { return conv1d(in[0], in[1], in[2], r.options); },
                     [=](const Arrays& in) {
                       Values y;
                       const std::int64_t taps = r.w[1], length = r.x[1];
                       const std::int64_t out =
                           (length + 2 * r.options.padding - r.options.dilation * (taps - 1) - 1) / r.options.stride +
                           1;
                       for (std::int64_t i = 0; i < r.x[0] * out * r.w[0]; ++i) {
                         const std::int64_t f = i % r.w[0], at = i / r.w[0] % out, n = i / r.w[0] / out;
                         double sum = in[2][f];
                         for (std::int64_t k = 0; k < taps; ++k) {
                           const std::int64_t from = at * r.options.stride + k * r.options.dilation - r.options.padding;
                           if (from < 0 || from >= length) continue;
                           for (std::int64_t c = 0; c < r.w[2]; ++c) {
                             const std::int64_t channel = f / (r.w[0] / r.options.groups) * r.w[2] + c;
                             sum += in[0][(n * length + from) * r.x[2] + channel] * in[1][(f * taps + k) * r.w[2] + c];
                           }
                         }
                         y.push_back(sum);
                       }
                       return y;
                     },
                     [=](std::int64_t e, std::int64_t) { return (r.x.elements() + r.w.elements()) * e; },
                     30};
    check_operator(row);
  }
  CHECK_THROWS_AS(conv1d(zeros({2, 5, 3}), zeros({4, 3, 2})), ShapeError);
  CHECK_THROWS_AS(conv1d(zeros({2, 5}), zeros({4, 3, 2})), ShapeError);
}

TEST_CASE("ops: matmul and conv2d name both shapes") {
  const Tensor a = Tensor::empty({2, 3}), b = Tensor::empty({4, 5});
  CHECK_THROWS_AS(matmul(a, b), ShapeError);
  CHECK_THROWS_WITH(matmul(a, b), "matmul: inner sizes differ, lhs (2, 3), rhs (4, 5)");
  CHECK_THROWS_AS(matmul(a, Tensor::empty({3, 2}, DType::f64)), DTypeError);
  CHECK_THROWS_AS(linear(a, b), ShapeError);
  CHECK_THROWS_AS(linear(full({2, 3}, 100, DType::i8), full({2, 3}, 100, DType::i8)), DTypeError);
  CHECK_THROWS_AS(matmul(full({2, 3}, 1, DType::i32), full({3, 2}, 1, DType::i32), false, false, 0.5), DTypeError);
  CHECK_THROWS_AS(conv2d(Tensor::empty({1, 4, 4, 3}), Tensor::empty({2, 3, 3, 4})), ShapeError);
  CHECK_THROWS_AS(conv2d(Tensor::empty({1, 2, 2, 3}), Tensor::empty({2, 3, 3, 3})), ShapeError);
  const auto message = [](const Shape& image, const Shape& weight, std::int64_t groups = 1) {
    try {
      conv2d(Tensor::empty(image), Tensor::empty(weight), {}, {.groups = groups});
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message({2, 3, 8, 8}, {4, 5, 5, 3}) ==
        "conv2d takes images (N, H, W, C) and weights (O, KH, KW, C / groups), groups dividing C and O; got input "
        "(2, 3, 8, 8), weight (4, 5, 5, 3), groups 1; the image looks like (N, C, H, W): permute(x, {0, 2, 3, 1})");
  // The fix in a message makes the call work.
  const std::string last_first = "{0, 2, 3, 1}";
  struct Row {
    Shape image, weight;
    std::int64_t groups;
    std::string fix;  // the message's end
  };
  for (const Row& row :
       {Row{{2, 3, 8, 8}, {4, 5, 5, 3}, 1, "the image looks like (N, C, H, W): permute(x, " + last_first + ")"},
        Row{{2, 8, 8, 3}, {4, 3, 5, 5}, 1, "the weight looks like (O, I, KH, KW): permute(weight, " + last_first + ")"},
        Row{{2, 8, 8, 6}, {4, 3, 5, 5}, 2, "the weight looks like (O, I, KH, KW): permute(weight, " + last_first + ")"},
        Row{{2, 3, 8, 8},
            {4, 3, 5, 5},
            1,
            "both look like (N, C, H, W) and (O, I, KH, KW): permute by " + last_first}}) {
    CHECK(message(row.image, row.weight, row.groups).ends_with("; " + row.fix));
    Tensor x = Tensor::empty(row.image), weight = Tensor::empty(row.weight);
    if (!row.fix.starts_with("the weight")) x = permute(x, {0, 2, 3, 1});
    if (!row.fix.starts_with("the image")) weight = permute(weight, {0, 2, 3, 1});
    CHECK(conv2d(x, weight, {}, {.groups = row.groups}).shape() == Shape{2, 4, 4, 4});
  }
  CHECK(message({2, 8, 8, 6}, {4, 5, 5, 7}).ends_with("groups 1"));
}

namespace {

// The definition: a sum over the sizes of all names.
Values einsum_reference(const std::string& equation, const Arrays& in) {
  const std::size_t arrow = equation.find("->");
  const std::string result = equation.substr(arrow + 2);
  std::vector<std::string> terms{""};
  for (const char c : equation.substr(0, arrow)) {
    if (c == ',') {
      terms.emplace_back();
    } else {
      terms.back() += c;
    }
  }
  std::map<char, std::int64_t> sizes, at;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    for (std::size_t k = 0; k < terms[i].size(); ++k) sizes[terms[i][k]] = in[i].shape[static_cast<int>(k)];
  }
  std::int64_t elements = 1, all = 1;
  for (const char c : result) elements *= sizes[c];
  for (const auto& [name, size] : sizes) all *= size;
  Values y(static_cast<std::size_t>(elements), 0);
  const auto offset = [&](const std::string& axes) {
    std::int64_t to = 0;
    for (const char c : axes) to = to * sizes[c] + at[c];
    return to;
  };
  for (std::int64_t i = 0; i < all; ++i) {
    std::int64_t rest = i;
    for (const auto& [name, size] : sizes) at[name] = rest % size, rest /= size;
    double term = 1;
    for (std::size_t k = 0; k < terms.size(); ++k) term *= in[k][offset(terms[k])];
    y[static_cast<std::size_t>(offset(result))] += term;
  }
  return y;
}

}  // namespace

TEST_CASE("ops: einsum") {
  const std::map<char, std::int64_t> sizes{{'b', 2}, {'h', 3}, {'i', 4}, {'j', 5}, {'k', 1}, {'z', 0}};
  for (const std::string equation : {"ij,jb->ib", "bij,bjh->bih", "bij,bhj->bhi", "bhi,bji->bhij", "i,j->ij", "ij->ji",
                                     "ij->j", "bij->", "i,i->", "bi,bi->b", "bi,bi->bi", "bij,j->bi", "ij,jh,hb->ib",
                                     "bi,ij,bj->b", "ik,kj->ij", "iz,zj->ij", "bhij,bhj->hbi", "bih,bjk->bij"}) {
    OperatorCase row{equation,
                     {},
                     [=](auto in) { return einsum(equation, in); },
                     [=](const Arrays& in) { return einsum_reference(equation, in); }};
    for (std::size_t at = 0; at <= equation.find("->");) {
      const std::size_t end = std::min(equation.find(',', at), equation.find("->"));
      Shape shape;
      for (const char c : equation.substr(at, end - at)) shape.push_back(sizes.at(c));
      row.operands.push_back({shape});
      at = end + 1;
    }
    row.tolerance = 20;  // sums of rounded products in 16 bits
    check_operator(row);
  }
  const Tensor a = rand({2, 3}), b = rand({3, 4});
  CHECK(einsum("ij, jk", {a, b}).shape() == Shape{2, 4});
  CHECK(einsum("ba", {a}).shape() == Shape{3, 2});  // sorted
  CHECK(einsum("zA,AZ->Zz", {a, b}).shape() == Shape{4, 2});
  CHECK(einsum("aA->Aa", {a}).shape() == Shape{3, 2});
  const std::pair<std::string, std::string> wrong[] = {{"ij,jk->il", "no operand has l"},
                                                       {"ij,jk->ii", "i is twice in ii"},
                                                       {"ii,jk->ik", "i is twice in ii"},
                                                       {"ij->i", "it names 1 operands, given are 2"},
                                                       {"ij,ik->jk", "i is 2 and, in operand 1, 3"},
                                                       {"i,jk->ik", "operand 0 is f32 (2, 3) on cpu, expected 1 axes"}};
  for (const auto& [text, why] : wrong) {
    CHECK_THROWS_WITH(einsum(text, {a, b}), "einsum: \"" + text + "\": " + why);
  }
  for (const char c : {'.', '@', '[', '`', '{'}) {  // beside A, Z, a and z
    const std::string text = std::string("i") + c + ",jk->ik", got = std::string("got \"") + c + "\"";
    CHECK_THROWS_WITH(einsum(text, {a, b}), "einsum: \"" + text + "\": expected letters, \",\" and \"->\", " + got);
  }
}

TEST_CASE("ops: a linear layer of no inputs gives its bias", "[ops]") {
  const Tensor none = zeros({2, 2, 0}), weight = zeros({3, 0});
  Tensor bias = from_host(std::vector<float>{1, 2, 3}, {3});
  bias.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = linear(none, weight, bias);
  }
  CHECK(y.shape() == Shape{2, 2, 3});
  CHECK(to_host<float>(y) == std::vector<float>{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3});
  tape.backward(y, full({2, 2, 3}, 1));
  CHECK(to_host<float>(bias.grad()) == std::vector<float>{4, 4, 4});
  CHECK(to_host<float>(linear(none, weight)) == std::vector<float>(12, 0));
}

TEST_CASE("ops: a linear layer without gradients makes its result and nothing else", "[ops]") {
  using kernels::Activation;
  for (const Activation f : {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
    const memory::Stack stack = memory::make_resource(dry(cpu), {.trace = true});
    const ResourceScope scope(stack.top);
    const Tensor x = zeros({33, 7}, DType::f32, dry(cpu)), w = zeros({65, 7}, DType::f32, dry(cpu));
    const NoGrad off;
    const std::size_t before = stack.trace->event_count();
    const Tensor y = linear(x, w, {}, f);
    std::vector<std::size_t> made;
    const std::vector<memory::Trace::Event> events = stack.trace->events();
    for (std::size_t i = before; i < events.size(); ++i) {
      const memory::Trace::Event& event = events[i];
      const bool is_result =
          event.action == memory::Trace::Action::allocate && event.category != memory::Category::workspace;
      if (is_result) made.push_back(event.bytes);
    }
    CHECK(made == std::vector<std::size_t>{33 * 65 * 4});
  }
}
