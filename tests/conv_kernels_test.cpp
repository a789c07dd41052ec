// Convolution kernels: forward and the three gradients against the plain loops, as adjoints of each other, and the
// bits.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include <thimble/core/kernels/conv.h>

#include "catch.h"
#include "kernel_data.h"

namespace conv_test {

using namespace kernel_test;

ConvShape shape(std::int64_t images, std::int64_t size, std::int64_t channels, std::int64_t filters,
                std::int64_t kernel, std::int64_t stride, std::int64_t pad, std::int64_t dilation = 1,
                std::int64_t groups = 1) {
  ConvShape s;
  s.images = images;
  s.height = size;
  s.width = size;
  s.channels = channels;
  s.filters = filters;
  s.kernel_h = s.kernel_w = kernel;
  s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_bottom = s.pad_left = s.pad_right = pad;
  s.dilation_h = s.dilation_w = dilation;
  s.groups = groups;
  return s;
}

/// Everything different in height and width.
ConvShape uneven(std::int64_t groups) {
  ConvShape s = shape(2, 11, 3 * groups, 5 * groups, 3, 2, 0, 1, groups);
  s.width = 8;
  s.kernel_w = 2;
  s.stride_w = 3;
  s.pad_top = 2;
  s.pad_bottom = 1;
  s.pad_right = 3;
  s.dilation_h = 2;
  s.dilation_w = 4;
  return s;
}

std::vector<ConvShape> shapes() {
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
      uneven(1),
      uneven(2),
  };
  return list;
}

std::string describe(const ConvShape& s, DType dtype) {
  const auto text = [](std::int64_t value) { return std::to_string(value) + " "; };
  return std::string(to_string(isa())) + " " + std::string(to_string(dtype)) + " N H W C " + text(s.images) +
         text(s.height) + text(s.width) + text(s.channels) + "O " + text(s.filters) + "kernel " + text(s.kernel_h) +
         text(s.kernel_w) + "stride " + text(s.stride_h) + text(s.stride_w) + "dilation " + text(s.dilation_h) +
         text(s.dilation_w) + "groups " + text(s.groups);
}

std::int64_t x_elements(const ConvShape& s) { return s.images * s.height * s.width * s.channels; }
std::int64_t weight_elements(const ConvShape& s) {
  return s.filters * s.kernel_h * s.kernel_w * (s.channels / s.groups);
}
std::int64_t y_elements(const ConvShape& s) { return s.images * s.out_height() * s.out_width() * s.filters; }

Data computed(ConvForwardArgs args, int threads) {
  set_thread_count(threads);
  Data y(args.out_dtype, y_elements(args.shape), 99);
  args.y = y.bytes.data();
  Workspace workspace(conv_workspace_bytes(args, threads));
  conv_forward(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
  return y;
}
Data computed(ConvInputGradArgs args, int threads) {
  set_thread_count(threads);
  Data dx(args.out_dtype, x_elements(args.shape), 99);
  args.dx = dx.bytes.data();
  Workspace workspace(conv_workspace_bytes(args, threads));
  conv_input_grad(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
  return dx;
}
Data computed(ConvWeightGradArgs args, int threads) {
  set_thread_count(threads);
  Data dweight(args.out_dtype, weight_elements(args.shape), 99);
  args.dweight = dweight.bytes.data();
  Workspace workspace(conv_workspace_bytes(args, threads));
  conv_weight_grad(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
  return dweight;
}

/// Elements of `got` that are further from `want` (f64) than `depth` roundings in the type of arithmetic and one at the
/// store allow.
int differences(const Data& got, const Data& want, DType operands, std::int64_t depth) {
  const double arithmetic =
      epsilon(operands == DType::f64 ? DType::f64 : DType::f32) *
      (16 + 2 * static_cast<double>(operands == DType::f64 ? depth : std::min<std::int64_t>(depth, 256)));
  const double subnormal = size_of(got.dtype) == 1 ? 0.001 : 0;
  const std::vector<double> results = got.values(), exact = want.values();
  int count = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    count += !(std::abs(results[i] - exact[i]) <= epsilon(got.dtype) * std::abs(exact[i]) + arithmetic + subnormal);
  }
  return count;
}

struct Tensors {
  Tensors(const ConvShape& s, DType dtype)
      : x(dtype, x_elements(s), 1),
        weight(dtype, weight_elements(s), 2),
        dy(dtype, y_elements(s), 3),
        bias(dtype, s.filters, 4) {}
  Data x, weight, dy, bias;
};

ConvForwardArgs forward_args(const ConvShape& s, DType dtype, const Tensors& t) {
  ConvForwardArgs args;
  args.shape = s;
  args.x = t.x.bytes.data();
  args.weight = t.weight.bytes.data();
  args.bias = t.bias.bytes.data();
  args.dtype = args.out_dtype = dtype;
  return args;
}
ConvInputGradArgs input_grad_args(const ConvShape& s, DType dtype, const Tensors& t) {
  ConvInputGradArgs args;
  args.shape = s;
  args.dy = t.dy.bytes.data();
  args.weight = t.weight.bytes.data();
  args.dtype = args.out_dtype = dtype;
  return args;
}
ConvWeightGradArgs weight_grad_args(const ConvShape& s, DType dtype, const Tensors& t) {
  ConvWeightGradArgs args;
  args.shape = s;
  args.x = t.x.bytes.data();
  args.dy = t.dy.bytes.data();
  args.dtype = args.out_dtype = dtype;
  return args;
}

void check_forward(const ConvShape& s, DType dtype, DType out_dtype, const Tensors& t) {
  ConvForwardArgs args = forward_args(s, dtype, t);
  const Data bias(out_dtype, s.filters, 4), wide_bias = bias.converted(DType::f64);
  args.out_dtype = out_dtype;
  args.bias = bias.bytes.data();
  const Data y = computed(args, 2);
  Data expected(DType::f64, y.count(), 0);
  args.out_dtype = DType::f64;
  args.bias = wide_bias.bytes.data();
  args.y = expected.bytes.data();
  conv_forward_reference(args);
  CHECK(differences(y, expected, dtype, weight_elements(s) / s.filters) == 0);
}

void check_input_grad(const ConvShape& s, DType dtype, DType out_dtype, bool accumulate, const Tensors& t) {
  ConvInputGradArgs args = input_grad_args(s, dtype, t);
  args.out_dtype = out_dtype;
  args.accumulate = accumulate;
  const Data dx = computed(args, 2);
  Data expected = Data(out_dtype, x_elements(s), 99).converted(DType::f64);
  args.out_dtype = DType::f64;
  args.dx = expected.bytes.data();
  conv_input_grad_reference(args);
  CHECK(differences(dx, expected, dtype, s.kernel_h * s.kernel_w * s.filters / s.groups) == 0);
}

void check_weight_grad(const ConvShape& s, DType dtype, DType out_dtype, bool accumulate, const Tensors& t) {
  ConvWeightGradArgs args = weight_grad_args(s, dtype, t);
  args.out_dtype = out_dtype;
  args.accumulate = accumulate;
  const Data dweight = computed(args, 2);
  Data expected = Data(out_dtype, weight_elements(s), 99).converted(DType::f64);
  args.out_dtype = DType::f64;
  args.dweight = expected.bytes.data();
  conv_weight_grad_reference(args);
  CHECK(differences(dweight, expected, dtype, s.images * s.out_height() * s.out_width()) == 0);
}

double inner_product(const Data& a, const Data& b) {
  const std::vector<double> left = a.values(), right = b.values();
  double sum = 0;
  for (std::size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  return sum;
}

}  // namespace conv_test

using namespace conv_test;

TEST_CASE("conv kernels: shapes against the plain loops", "[conv]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const ConvShape& s : shapes()) {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        INFO(describe(s, dtype));
        const Tensors t(s, dtype);
        check_forward(s, dtype, dtype, t);
        check_input_grad(s, dtype, dtype, false, t);
        check_weight_grad(s, dtype, dtype, false, t);
      }
    }
  }
}

TEST_CASE("conv kernels: storage dtypes, accumulation", "[conv]") {
  Settings settings;
  const DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  for (const ConvShape& s :
       {shape(2, 7, 5, 6, 3, 2, 1), shape(2, 5, 6, 8, 1, 1, 0), shape(1, 6, 4, 6, 3, 1, 1, 1, 2)}) {
    for (const DType dtype : dtypes) {
      const Tensors t(s, dtype);
      for (const DType out_dtype : dtypes) {
        INFO(describe(s, dtype) << " -> " << to_string(out_dtype));
        check_forward(s, dtype, out_dtype, t);
        check_input_grad(s, dtype, out_dtype, true, t);
        check_weight_grad(s, dtype, out_dtype, true, t);
      }
    }
  }
}

TEST_CASE("conv kernels: activation and pre-activation", "[conv]") {
  Settings settings;
  const ConvShape s = shape(2, 6, 5, 7, 3, 1, 1);
  const Tensors t(s, DType::f32);
  const Data wide_bias = t.bias.converted(DType::f64);
  for (const Activation activation : {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
    ConvForwardArgs args = forward_args(s, DType::f32, t);
    args.activation = activation;
    Data before(DType::f32, y_elements(s), 0);
    args.pre_activation = before.bytes.data();
    const Data y = computed(args, 2);
    Data expected(DType::f64, y.count(), 0), expected_before(DType::f64, y.count(), 0);
    args.out_dtype = DType::f64;
    args.bias = wide_bias.bytes.data();
    args.y = expected.bytes.data();
    args.pre_activation = expected_before.bytes.data();
    conv_forward_reference(args);
    CHECK(differences(y, expected, DType::f32, 45) == 0);
    CHECK(differences(before, expected_before, DType::f32, 45) == 0);
  }
}

TEST_CASE("conv kernels: gradients are adjoints of the forward pass", "[conv]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const ConvShape& s : shapes()) {
      INFO(describe(s, DType::f64));
      const Tensors t(s, DType::f64);
      ConvForwardArgs forward = forward_args(s, DType::f64, t);
      forward.bias = nullptr;
      const double through_y = inner_product(t.dy, computed(forward, 2));
      const double through_x = inner_product(t.x, computed(input_grad_args(s, DType::f64, t), 2));
      const double through_weight = inner_product(t.weight, computed(weight_grad_args(s, DType::f64, t), 2));
      CHECK(std::abs(through_y - through_x) <= 1e-10 * (1 + std::abs(through_y)));
      CHECK(std::abs(through_y - through_weight) <= 1e-10 * (1 + std::abs(through_y)));
    }
  }
}

TEST_CASE("conv kernels: bits do not depend on threads or on the other images", "[conv]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const ConvShape& s : {shape(4, 13, 21, 50, 3, 1, 1), shape(3, 15, 30, 33, 3, 2, 1),
                               shape(4, 9, 70, 52, 1, 1, 0), shape(4, 8, 8, 24, 3, 1, 1, 1, 2)}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        INFO(describe(s, dtype));
        const Tensors t(s, dtype);
        const Data y = computed(forward_args(s, dtype, t), 1);
        const Data dx = computed(input_grad_args(s, dtype, t), 1);
        const Data dweight = computed(weight_grad_args(s, dtype, t), 1);
        for (const int threads : {2, 5}) {
          CHECK(computed(forward_args(s, dtype, t), threads).bytes == y.bytes);
          CHECK(computed(input_grad_args(s, dtype, t), threads).bytes == dx.bytes);
          CHECK(computed(weight_grad_args(s, dtype, t), threads).bytes == dweight.bytes);
        }
        ConvShape one = s;
        one.images = 1;
        const auto bytes_of = [&](std::int64_t elements) {
          return static_cast<std::size_t>(elements) * size_of(dtype);
        };
        for (std::int64_t n = 0; n < s.images; ++n) {
          ConvForwardArgs forward = forward_args(one, dtype, t);
          forward.x = t.x.bytes.data() + bytes_of(n * x_elements(one));
          const Data y_alone = computed(forward, 2);
          CHECK(std::memcmp(y_alone.bytes.data(), y.bytes.data() + bytes_of(n * y_elements(one)),
                            y_alone.bytes.size()) == 0);
          ConvInputGradArgs input_grad = input_grad_args(one, dtype, t);
          input_grad.dy = t.dy.bytes.data() + bytes_of(n * y_elements(one));
          const Data dx_alone = computed(input_grad, 2);
          CHECK(std::memcmp(dx_alone.bytes.data(), dx.bytes.data() + bytes_of(n * x_elements(one)),
                            dx_alone.bytes.size()) == 0);
        }
      }
    }
  }
}

TEST_CASE("conv kernels: column sums", "[conv]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const std::int64_t rows : {0, 1, 256, 600}) {
        for (const std::int64_t columns : {0, 1, 17, 150}) {
          for (const bool accumulate : {false, true}) {
            INFO(to_string(set) << " " << to_string(dtype) << " " << rows << " x " << columns);
            const Data in(dtype, rows * columns, 1);
            Data out(dtype, columns, 2), again(dtype, columns, 2),
                expected = Data(dtype, columns, 2).converted(DType::f64);
            ColumnSumArgs args{rows, columns, in.bytes.data(), out.bytes.data(), dtype, dtype, accumulate};
            set_thread_count(2);
            column_sum(args);
            args.out = again.bytes.data();
            set_thread_count(5);
            column_sum(args);
            CHECK(again.bytes == out.bytes);
            args.out = expected.bytes.data();
            args.out_dtype = DType::f64;
            column_sum_reference(args);
            CHECK(differences(out, expected, dtype, rows) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("conv kernels: output sizes and workspace", "[conv]") {
  Settings settings;
  CHECK(shape(1, 224, 3, 64, 7, 2, 3).out_height() == 112);
  CHECK(shape(1, 56, 64, 64, 3, 1, 1).out_width() == 56);
  CHECK(shape(1, 5, 1, 1, 3, 2, 0, 2).out_height() == 1);
  CHECK(shape(1, 4, 1, 1, 3, 1, 0, 2).out_height() == 0);
  for (const int threads : {1, 2, 16}) {
    for (const ConvShape& s : {shape(64, 224, 3, 64, 7, 2, 3), shape(64, 56, 256, 512, 3, 1, 1)}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        const Tensors none(shape(0, 0, 0, 1, 1, 1, 0), dtype);
        const std::size_t limit = (std::size_t{2112} << 10) * static_cast<std::size_t>(threads);
        CHECK(conv_workspace_bytes(forward_args(s, dtype, none), threads) <= limit);
        CHECK(conv_workspace_bytes(input_grad_args(s, dtype, none), threads) <= limit);
        CHECK(conv_workspace_bytes(weight_grad_args(s, dtype, none), threads) <= limit);
      }
    }
  }
}
