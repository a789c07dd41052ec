// Convolution kernels: forward and the three gradients against the plain loops, as adjoints of each other, and their
// bits.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/conv/winograd.h>

#include "conv_calls.h"
#include "support/catch.h"

using namespace conv_test;

namespace {

double inner_product(const Data& a, const Data& b) {
  const std::vector<double> left = a.values(), right = b.values();
  double sum = 0;
  for (std::size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  return sum;
}

}  // namespace

TEST_CASE("conv kernels: shapes against the plain loops", "[conv]") {
  Settings settings;
  for (const ConvShape& s : shapes()) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      const Tensors t(s, dtype);
      check_forward(s, dtype, dtype, t, supported());
      check_input_grad(s, dtype, dtype, false, t, supported());
      check_weight_grad(s, dtype, dtype, false, t, supported());
    }
  }
}

TEST_CASE("conv kernels: random shapes against the plain loops", "[conv]") {
  Settings settings;
  std::mt19937 random(7);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int i = 0; i < 120; ++i) {
    const std::int64_t groups = between(1, 4) == 1 ? between(2, 3) : 1;
    const std::int64_t few = between(1, 9), many = between(60, 70);
    const bool has_many_channels = between(0, 2) == 0, has_many_filters = between(0, 2) == 0;
    ConvShape s = shape(between(1, 9), between(1, 6), groups * (has_many_channels ? many : few),
                        groups * (has_many_filters ? many : few), between(1, 4), between(1, 3), 0, 1, groups);
    s.width = between(1, 6);
    s.kernel_w = between(1, 4);
    s.stride_w = between(1, 3);
    s.pad_top = between(0, 3), s.pad_bottom = between(0, 3), s.pad_left = between(0, 3), s.pad_right = between(0, 3);
    s.dilation_h = between(1, 2), s.dilation_w = between(1, 2);
    const Tensors t(s, DType::f32);
    check_forward(s, DType::f32, DType::f32, t, supported());
    check_input_grad(s, DType::f32, DType::f32, i % 2 == 0, t, supported());
    check_weight_grad(s, DType::f32, DType::f32, i % 2 == 1, t, supported());
  }
}

// Whole vectors of channels and single ones, in each order of the loops: few channels, many, and many in wide rows.
TEST_CASE("conv kernels: one channel in a group, against the plain loops", "[conv]") {
  Settings settings;
  const ConvShape kinds[] = {shape(2, 6, 0, 0, 1, 1, 0),  shape(2, 7, 0, 0, 2, 1, 1),
                             shape(2, 9, 0, 0, 3, 1, 1),  shape(2, 22, 0, 0, 3, 1, 1),
                             shape(2, 23, 0, 0, 3, 2, 1), shape(2, 12, 0, 0, 3, 2, 0, 2),
                             shape(2, 12, 0, 0, 2, 3, 0), shape(2, 10, 0, 0, 3, 1, 2, 2),
                             shape(2, 13, 0, 0, 4, 3, 1), shape(2, 15, 0, 0, 5, 1, 2)};
  for (const std::int64_t channels : {17, 40, 128, 131}) {
    for (ConvShape s : kinds) {
      s.channels = s.filters = s.groups = channels;
      const Tensors t(s, DType::f32);
      check_forward(s, DType::f32, DType::f32, t, supported());
      check_input_grad(s, DType::f32, DType::f32, s.kernel_w % 2 == 0, t, supported());
      check_weight_grad(s, DType::f32, DType::f32, s.kernel_w % 2 == 1, t, supported());
    }
  }
}

TEST_CASE("conv kernels: in a narrow dtype they are those of the same numbers in f32, rounded once", "[conv]") {
  Settings settings;
  const Bf16On converted(std::nullopt);  // no unit that sums in another order
  for (const Isa set : supported()) {
    set_isa(set);
    for (const ConvShape& s : shapes()) {
      for (const DType dtype : {DType::f16, DType::bf16}) {
        INFO(to_string(set) << " " << describe(s, dtype));
        const Tensors narrow(s, dtype);
        Tensors wide = narrow;
        for (Data Tensors::*const data : {&Tensors::x, &Tensors::weight, &Tensors::dy, &Tensors::bias}) {
          wide.*data = (narrow.*data).converted(DType::f32);
        }
        CHECK(computed(forward_args(s, dtype, narrow), 2).bytes ==
              computed(forward_args(s, DType::f32, wide), 2).converted(dtype).bytes);
        CHECK(computed(input_grad_args(s, dtype, narrow), 2).bytes ==
              computed(input_grad_args(s, DType::f32, wide), 2).converted(dtype).bytes);
        CHECK(computed(weight_grad_args(s, dtype, narrow), 2).bytes ==
              computed(weight_grad_args(s, DType::f32, wide), 2).converted(dtype).bytes);
      }
    }
  }
}

TEST_CASE("conv kernels: storage dtypes, accumulation", "[conv]") {
  Settings settings;
  const DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  for (const ConvShape& s : {shape(2, 7, 5, 6, 3, 2, 1), shape(2, 5, 6, 8, 1, 1, 0), shape(1, 6, 4, 6, 3, 1, 1, 1, 2),
                             shape(1, 8, 32, 32, 3, 1, 1)}) {
    for (const DType dtype : dtypes) {
      const Tensors t(s, dtype);
      for (const DType out_dtype : dtypes) {
        INFO(describe(s, dtype) << " -> " << to_string(out_dtype));
        check_forward(s, dtype, out_dtype, t, {isa()});
        check_input_grad(s, dtype, out_dtype, true, t, {isa()});
        check_weight_grad(s, dtype, out_dtype, true, t, {isa()});
      }
    }
  }
}

TEST_CASE("conv kernels: sums of several segments of tiles are added to what is there", "[conv]") {
  Settings settings;
  const ConvShape s = shape(5, 16, 32, 48, 3, 1, 1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    check_weight_grad(s, dtype, dtype, true, Tensors(s, dtype), supported());
  }
}

TEST_CASE("conv kernels: activation and pre-activation", "[conv]") {
  Settings settings;
  for (const ConvShape& s : {shape(2, 6, 5, 7, 3, 1, 1), shape(2, 9, 32, 112, 3, 1, 1)}) {
    const Tensors t(s, DType::f32);
    const std::int64_t depth = 9 * s.channels;
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
      CHECK(differences(y, expected, DType::f32, depth) == 0);
      CHECK(differences(before, expected_before, DType::f32, depth) == 0);
    }
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
    for (const ConvShape& s :
         {shape(4, 13, 21, 50, 3, 1, 1), shape(3, 15, 30, 33, 3, 2, 1), shape(3, 21, 3, 40, 7, 2, 3),
          shape(4, 9, 70, 52, 1, 1, 0), shape(4, 8, 8, 24, 3, 1, 1, 1, 2), shape(9, 3, 64, 70, 3, 1, 1),
          wide(shape(2, 6, 3, 50, 7, 2, 3), 210), shape(3, 16, 32, 48, 3, 1, 1), shape(2, 8, 288, 32, 3, 1, 1)}) {
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
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
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
    for (const ConvShape& s : {shape(64, 224, 3, 64, 7, 2, 3), shape(64, 56, 256, 512, 3, 1, 1),
                               shape(64, 56, 64, 64, 3, 1, 1), shape(64, 28, 128, 128, 3, 1, 1)}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        const Tensors none(shape(0, 0, 0, 1, 1, 1, 0), dtype);
        const std::size_t limit = (std::size_t{2112} << 10) * static_cast<std::size_t>(threads);
        CHECK(conv_workspace_bytes(forward_args(s, dtype, none), threads) <= limit);
        CHECK(conv_workspace_bytes(input_grad_args(s, dtype, none), threads) <= limit);
        const std::size_t shared = conv_detail::winograd_pays(s) ? std::size_t{3} << 20 : 0;
        CHECK(conv_workspace_bytes(weight_grad_args(s, dtype, none), threads) <= limit + shared);
      }
    }
  }
}
