// Convolutions that share kernels: the operator against a plain convolution and finite differences, the live bytes of
// expanded kernels, and the network.

#include <array>
#include <string>
#include <vector>

#include <thimble/autograd/functions/matmul.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/sharedconv/sharedconv.h>

#include "support/catch.h"
#include "support/model_runs.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;

namespace {

using Arrays = std::vector<HostArray>;

// The kernel's definition in seven loops; x (N, H, W, C), basis (r, O, K, K), coefficients (C / groups, r).
std::vector<double> shared_convolution(const Arrays& in, const Conv2dOptions& o) {
  const Shape &x = in[0].shape, &b = in[1].shape;
  const std::int64_t r = b[0], filters = b[1], k = b[2], channels = in[2].shape[0];
  const auto out_size = [&](std::int64_t size) {
    return (size + 2 * o.padding - o.dilation * (k - 1) - 1) / o.stride + 1;
  };
  std::vector<double> y;
  for (std::int64_t n = 0; n < x[0]; ++n) {
    for (std::int64_t i = 0; i < out_size(x[1]); ++i) {
      for (std::int64_t j = 0; j < out_size(x[2]); ++j) {
        for (std::int64_t f = 0; f < filters; ++f) {
          double sum = in.size() > 3 ? in[3][f] : 0;
          for (std::int64_t tap = 0; tap < k * k; ++tap) {
            const std::int64_t h = i * o.stride + tap / k * o.dilation - o.padding;
            const std::int64_t w = j * o.stride + tap % k * o.dilation - o.padding;
            if (h < 0 || w < 0 || h >= x[1] || w >= x[2]) continue;
            for (std::int64_t c = 0; c < channels; ++c) {
              double weight = 0;
              for (std::int64_t q = 0; q < r; ++q) weight += in[1][(q * filters + f) * k * k + tap] * in[2][c * r + q];
              sum += weight * in[0][((n * x[1] + h) * x[2] + w) * x[3] + f / (filters / o.groups) * channels + c];
            }
          }
          y.push_back(sum);
        }
      }
    }
  }
  return y;
}

OperatorCase shared_row(const char* name, Shape x, Shape basis, Shape coefficients, Conv2dOptions o) {
  return {name,
          {{x}, {basis}, {coefficients}},
          [o](auto in) { return shared_conv2d(in[0], in[1], in[2], {}, o); },
          [o](const Arrays& in) { return shared_convolution(in, o); },
          [=](std::int64_t e, std::int64_t) { return (x.elements() + basis.elements() + coefficients.elements()) * e; },
          60};
}

ModelOptions tiny(Build build, bool shares_kernels = true) {
  ModelOptions options;
  options.image = 12, options.width = 8, options.layers = 2;
  options.shares_kernels = shares_kernels;
  options.build = build;
  return options;
}

std::int64_t parameters_of(const ModelOptions& options) {
  return make_model("sharedconv", options, {dry(cpu)})->parameter_count();
}

}  // namespace

TEST_CASE("models sharedconv: rows of the operator table", "[models][sharedconv][ops][quick]") {
  std::vector<OperatorCase> rows{
      shared_row("shared conv 3x3 pad 1", {2, 5, 4, 3}, {2, 4, 3, 3}, {3, 2}, {.padding = 1}),
      shared_row("shared conv 3x3 stride 2", {2, 6, 5, 4}, {3, 2, 3, 3}, {4, 3}, {.stride = 2, .padding = 1}),
      shared_row("shared conv 1x1", {2, 3, 3, 5}, {2, 4, 1, 1}, {5, 2}, {}),
      shared_row("shared conv 3x3 in 2 groups", {1, 5, 5, 4}, {2, 6, 3, 3}, {2, 2}, {.padding = 1, .groups = 2}),
      shared_row("shared conv of one kernel, dilated", {1, 6, 6, 2}, {1, 3, 3, 3}, {2, 1},
                 {.padding = 2, .dilation = 2}),
  };
  OperatorCase with_bias = shared_row("shared conv with bias", {2, 4, 4, 3}, {2, 4, 3, 3}, {3, 2}, {.padding = 1});
  with_bias.operands.push_back({{4}});
  with_bias.run = [](auto in) { return shared_conv2d(in[0], in[1], in[2], in[3], {.padding = 1}); };
  rows.push_back(with_bias);
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("models sharedconv: a basis of unit kernels is a plain convolution", "[models][sharedconv][quick]") {
  // With r = C and the identity as coefficients, the basis is the weight with inputs first.
  const Threads alone;
  RandomGenerator generator(3);
  const GeneratorScope scope(generator);
  const Tensor x = Tensor::empty({2, 6, 6, 4}, DType::f64), basis = Tensor::empty({4, 5, 3, 3}, DType::f64);
  fill_normal(x, 0, 1), fill_normal(basis, 0, 1);
  std::vector<double> identity(16, 0.0);
  for (std::size_t i = 0; i < 4; ++i) identity[5 * i] = 1;
  const Tensor weight = contiguous(view::permute(basis, {1, 2, 3, 0}));  // (O, KH, KW, I)
  const Tensor shared = shared_conv2d(x, basis, from_host(identity, {4, 4}), {}, {.padding = 1});
  CHECK(to_host<double>(shared) == to_host<double>(conv2d(x, weight, {}, {.padding = 1})));
}

TEST_CASE("models sharedconv: one expanded kernel at a time", "[models][sharedconv][quick]") {
  // A kernel of 512 x 512 x 3 x 3 is 9 MiB; x, y and their gradients together 16 KiB.
  const Threads alone;
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  const nn::TensorOptions on{dry(cpu)};
  const Tensor basis = nn::make_kernel_basis(16, 512, 3, on);
  std::vector<std::unique_ptr<nn::SharedConv2d>> layers;
  for (int i = 0; i < 4; ++i)
    layers.push_back(std::make_unique<nn::SharedConv2d>(512, basis, Conv2dOptions{.padding = 1}, on));
  Tensor x = zeros({1, 1, 1, 512}, DType::f32, dry(cpu));
  x.require_grad();
  const std::int64_t state = static_cast<std::int64_t>(stack.ledger->bytes(memory::Category::parameter));
  const auto spare = [&] { return static_cast<std::int64_t>(stack.ledger->max_allocated()) - state; };
  const std::int64_t kernel = 512 * 512 * 9 * 4, small = (3 << 20) + (1 << 19);  // includes workspaces of products
  Tape tape;
  Tensor y = x;
  stack.ledger->reset_peak();
  {
    const Recording recording(tape);
    for (const auto& layer : layers) y = (*layer)(y);
  }
  CHECK(spare() > kernel);
  CHECK(spare() < kernel + small);
  CHECK(stack.ledger->bytes(memory::Category::temporary) + stack.ledger->bytes(memory::Category::activation) <
        std::size_t{1} << 16);
  stack.ledger->reset_peak();
  tape.backward(y, y);
  CHECK(spare() > kernel);
  CHECK(spare() < kernel + small + 2 * state);  // gradients, and one being added
}

TEST_CASE("models sharedconv: gradients of a shared basis accumulate", "[models][sharedconv][quick]") {
  const Threads alone;
  RandomGenerator generator(3);
  const GeneratorScope scope(generator);
  const nn::TensorOptions on{cpu, DType::f64};
  Tensor basis = nn::make_kernel_basis(2, 4, 3, on);
  nn::SharedConv2d first(4, basis, {.padding = 1}, on), second(4, basis, {.padding = 1}, on);
  const Tensor x = Tensor::empty({2, 5, 5, 4}, DType::f64);
  fill_normal(x, 0, 1);
  const auto gradient = [&](bool has_first, bool has_second) {  // of the sum of both results
    Tape tape;
    Tensor y;
    {
      const Recording recording(tape);
      if (has_first) y = first(x);
      if (has_second) y = has_first ? add(y, second(x)) : second(x);
    }
    tape.backward(y, full(y.shape(), 1, DType::f64));
    const auto values = to_host<double>(basis.grad());
    basis.grad() = first.coefficients.grad() = second.coefficients.grad() = Tensor();
    return values;
  };
  const auto both = gradient(true, true), a = gradient(true, false), b = gradient(false, true);
  for (std::size_t i = 0; i < both.size(); ++i) CHECK(both[i] == Approx(a[i] + b[i]).epsilon(1e-12));
  CHECK(a != b);
}

TEST_CASE("models sharedconv: a third of its twin's parameters", "[models][sharedconv][quick]") {
  ModelOptions plain;
  plain.shares_kernels = false;
  CHECK(parameters_of({}) == 216618);
  CHECK(parameters_of(plain) == 696618);
  for (const bool shares_kernels : {true, false}) {
    for (const std::int64_t layers : {1, 2, 3}) {
      for (const std::int64_t width : {5, 8, 32}) {
        ModelOptions options;
        options.shares_kernels = shares_kernels, options.layers = layers, options.width = width;
        CHECK(parameters_of(options) == make_theory("sharedconv", options).state(1).parameter_elements);
      }
    }
  }
  const auto model = make_model("sharedconv", {}, {dry(cpu)});
  CHECK(file_shape_of(*model, "stage2.basis") == "(48, 64, 3, 3)");
  CHECK(file_shape_of(*model, "stage2.0.conv1.coefficients") == "(32, 48)");
  CHECK(file_shape_of(*model, "stage2.1.conv2.coefficients") == "(64, 48)");
  CHECK(file_shape_of(*model, "stage2.0.downsample.0.weight") == "(64, 32, 1, 1)");
  CHECK(file_shape_of(*model, "stage2.0.conv1.basis").empty());  // listed once
  const auto twin = make_model("sharedconv", plain, {dry(cpu)});
  CHECK(file_shape_of(*twin, "stage2.0.conv1.weight") == "(64, 32, 3, 3)");
}

TEST_CASE("models sharedconv: the fused and the textbook build have the same bits", "[models][sharedconv][quick]") {
  const Threads alone;
  for (const bool shares_kernels : {true, false}) {
    const auto a = make_seeded("sharedconv", tiny(Build::fused, shares_kernels));
    const auto b = make_seeded("sharedconv", tiny(Build::textbook, shares_kernels));
    const Batch batch = make_batch(*a, 2);
    CHECK(run_pass(*a, batch) == run_pass(*b, batch));
  }
}

TEST_CASE("models sharedconv: it learns as its twin does", "[models][sharedconv][quick]") {
  const Threads alone;
  for (const bool shares_kernels : {true, false}) {
    const auto model = make_seeded("sharedconv", tiny(Build::fused, shares_kernels));
    optim::Sgd sgd(model->trainable(), {.rate = 0.05, .momentum = 0.9});
    RandomGenerator generator(2);
    const GeneratorScope scope(generator);
    const auto losses = train_on(*model, sgd, make_batch(*model, 4), 15);
    CAPTURE(shares_kernels, losses);
    CHECK(losses.back() < losses.front() / 2);
  }
}

TEST_CASE("models sharedconv: theory is the ledger, to the byte", "[models][sharedconv][theory][quick]") {
  for (const bool shares_kernels : {true, false}) {
    for (const std::int64_t image : {12, 33}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        ModelOptions options = tiny(Build::textbook, shares_kernels);
        options.image = image;
        CAPTURE(shares_kernels, image, to_string(dtype));
        check_theory(make_theory("sharedconv", options, dtype), "sharedconv", options, 3);
      }
    }
  }
}

TEST_CASE("models sharedconv: dry and real steps are the same events and the same peak",
          "[models][sharedconv][quick]") {
  for (const bool shares_kernels : {true, false}) check_dry_run("sharedconv", tiny(Build::fused, shares_kernels), 2);
}

TEST_CASE("models sharedconv: weights are saved and loaded byte for byte", "[models][sharedconv][quick]") {
  const Threads alone;
  check_weights_round_trip("sharedconv", tiny(Build::fused));
}

TEST_CASE("models sharedconv: what does not fit is refused by name", "[models][sharedconv][quick]") {
  const Tensor x = zeros({1, 4, 4, 3}), basis = zeros({2, 4, 3, 3}), coefficients = zeros({3, 2});
  const std::array<Tensor, 3> operands{x, basis, coefficients};  // 2 x 2 pixels of 4 filters, and a kernel of 36 x 3
  const std::array<Tensor, 2> plain{x, zeros({4, 3, 3, 3})};
  CHECK(ops::Conv2d().multiply_adds(plain, zeros({1, 2, 2, 5})) == 20 * 27);
  CHECK(ops::SharedConv2d().multiply_adds(operands, zeros({1, 2, 2, 4})) == 16 * 27 + 36 * 3 * 2);
  CHECK_THROWS_AS(shared_conv2d(x, basis, zeros({3, 3})), ShapeError);
  CHECK_THROWS_AS(shared_conv2d(x, basis, zeros({4, 2})), ShapeError);
  CHECK_THROWS_AS(shared_conv2d(x, zeros({4, 3, 3}), coefficients), ShapeError);
  CHECK_THROWS_AS(shared_conv2d(x, zeros({0, 4, 3, 3}), zeros({3, 0})), ShapeError);
  CHECK_THROWS_AS(shared_conv2d(x, basis, zeros({3, 2}, DType::f64)), DTypeError);
  CHECK_THROWS_AS(shared_conv2d(x, basis, zeros({3, 2}, DType::f32, dry(cpu))), DeviceError);
  CHECK_THROWS_AS(shared_conv2d(x, basis, coefficients, {}, {.stride = 0}), ValueError);
  CHECK_THROWS_AS(nn::make_kernel_basis(0, 4, 3), ValueError);
  CHECK_THROWS_AS(nn::SharedConv2d(3, basis, {.groups = 2}), ValueError);
  ModelOptions options;
  options.width = 1;
  CHECK_THROWS_AS(sharedconv_options(options), ValueError);
  CHECK_THROWS_AS(make_theory("sharedconv").state(-1), ValueError);
}
