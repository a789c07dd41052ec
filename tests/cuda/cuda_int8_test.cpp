// Nets in 8-bit codes on a CUDA device have the CPU's bits. On a GPU if there is one; in a build without CUDA on
// tests/emulated, whose library makes products on request.

#include <limits>
#include <random>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/shared/quant_rows.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/quant/quantized_model.h>

#include "emulated/library.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"
#include "support/quant_nets.h"

using namespace thimble;
using namespace thimble::nn::quant;
using thimble::testing::has_cuda;

namespace cuda_int8_test {

std::vector<std::uint8_t> bytes_of(const Tensor& t) {
  const Tensor here = to_device(t, cpu);
  if (here.elements() == 0) return {};
  const memory::Pin pin(here);
  const auto* const first = static_cast<const std::uint8_t*>(pin.data());
  return {first, first + here.bytes()};
}

template <class T>
Tensor random_tensor(const Shape& shape, int low, int high, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> list(static_cast<std::size_t>(shape.elements()));
  for (T& v : list) v = static_cast<T>(low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
  return from_host(list, shape);
}

Codes random_codes(const Shape& shape, const CodeScale& scale, unsigned seed) {
  return {random_tensor<std::uint8_t>(shape, scale.low, scale.high, seed), scale};
}

Codes there(const Codes& c) { return {to_device(c.tensor, cuda()), c.scale}; }

struct Row {
  std::int64_t images, size, channels, filters, kernel, stride, padding, dilation = 1;
};

constexpr Row rows[] = {{2, 5, 1, 8, 3, 1, 1},     {3, 6, 8, 8, 3, 1, 1},     {2, 6, 8, 16, 3, 2, 1},
                        {1, 7, 3, 64, 7, 2, 3},    {2, 5, 12, 40, 1, 2, 0},   {1, 6, 4, 70, 3, 1, 0},
                        {2, 9, 5, 33, 3, 1, 2, 2}, {1, 3, 130, 130, 3, 1, 1}, {2, 4, 16, 17, 1, 1, 0},
                        {2, 9, 16, 32, 1, 1, 0},   {1, 6, 48, 16, 1, 1, 0},   {7, 2, 6, 5, 2, 2, 1}};

/// Compares a layer's results on both devices.
void check_layer(const Step& step, const Shape& x_shape, const Shape& w_shape, unsigned seed) {
  const CodeScale in{0.02F, 113, 0, 255}, out{0.7F, 90, 0, 255}, of_residual{0.4F, 31, 0, 255};
  const Codes x = random_codes(x_shape, in, seed);
  const std::int64_t filters = w_shape[0];
  const Tensor weight = random_tensor<std::int8_t>(w_shape, -127, 127, seed + 1);
  const Tensor bias = random_tensor<std::int32_t>({filters}, -8000, 8000, seed + 2);
  const Tensor scale = mul(to_dtype(random_tensor<std::int32_t>({filters}, 1, 90, seed + 3), DType::f32), 1e-4);
  for (const CodeScale* to : {&out, static_cast<const CodeScale*>(nullptr)}) {
    const PackedWeights here = pack_codes(weight, scale, bias, step, in, to);
    const PackedWeights away =
        pack_codes(to_device(weight, cuda()), to_device(scale, cuda()), to_device(bias, cuda()), step, in, to);
    CHECK(away.codes.device() == cuda());
    CHECK(bytes_of(unpacked_codes(away)) == bytes_of(weight));
    const Codes plain = conv_codes(x, here, step, nullptr, to);
    CHECK(bytes_of(conv_codes(there(x), away, step, nullptr, to).tensor) == bytes_of(plain.tensor));
    if (to == nullptr) continue;
    const Codes residual = random_codes(plain.tensor.shape(), of_residual, seed + 4), residual_there = there(residual);
    const auto expected = bytes_of(conv_codes(x, here, step, &residual, to).tensor);
    CHECK(bytes_of(conv_codes(there(x), away, step, &residual_there, to).tensor) == expected);
    const emulated::LibraryScope library;
    CHECK(bytes_of(conv_codes(there(x), away, step, &residual_there, to).tensor) == expected);
    CHECK(bytes_of(conv_codes(there(x), away, step, nullptr, to).tensor) == bytes_of(plain.tensor));
  }
}

}  // namespace cuda_int8_test

using namespace cuda_int8_test;

TEST_CASE("cuda int8: convolutions and linear layers have the CPU's bits", "[cuda][quant]") {
  if (!has_cuda()) return;
  const auto stack = memory::make_resource(cuda(), {.arena = {.poison = true}});
  const ResourceScope scope(stack.top);
  unsigned seed = 1;
  for (const Row& r : rows) {
    INFO(r.channels << " channels, " << r.filters << " filters, kernel " << r.kernel << ", stride " << r.stride);
    Step step;
    step.name = "layer";
    step.has_relu = seed % 2 == 0;
    step.window.kernel = {r.kernel, r.kernel};
    step.window.stride = {r.stride, r.stride};
    step.window.padding = {r.padding, r.padding};
    step.window.dilation = {r.dilation, r.dilation};
    check_layer(step, {r.images, r.size, r.size + 1, r.channels}, {r.filters, r.kernel, r.kernel, r.channels}, seed++);
    step.kind = StepKind::linear;
    step.window = {};
    check_layer(step, {r.images * 11, r.channels}, {r.filters, r.channels}, seed++);
  }
}

TEST_CASE("cuda int8: steps between codes have the CPU's bits", "[cuda][quant]") {
  if (!has_cuda()) return;
  const CodeScale a{0.1F, 40, 0, 255}, b{0.03F, 128, 1, 255}, c{0.22F, 7, 0, 250};
  const Shape shape{3, 7, 9, 5};
  const Codes x = random_codes(shape, a, 1), y = random_codes(shape, b, 2);
  const Codes x2 = there(x), y2 = there(y);
  const auto check = [](const Codes& got, const Codes& expected) {
    CHECK(got.tensor.device() == cuda());
    CHECK(got.tensor.shape() == expected.tensor.shape());
    CHECK(bytes_of(got.tensor) == bytes_of(expected.tensor));
  };
  check(sum_of(x2, y2, false, c), sum_of(x, y, false, c));
  check(sum_of(x2, y2, true, c), sum_of(x, y, true, c));
  check(relu_of(x2), relu_of(x));
  check(mean_of(x2, c), mean_of(x, c));
  check(concat_of({x2, relu_of(x2), x2}), concat_of({x, relu_of(x), x}));
  StepWindow window;
  window.kernel = {3, 2}, window.stride = {2, 2}, window.padding = {1, 0}, window.rounds_up = true;
  check(max_pool_of(x2, window), max_pool_of(x, window));
  CHECK(bytes_of(from_codes(x2)) == bytes_of(from_codes(x)));

  Tensor numbers = quant_nets::images({4, 300}, 3);
  for (const CodeScale& scale : {CodeScale{0.01F, 100, 0, 255}, CodeScale{0.004F, 128, 1, 255}}) {
    check(to_codes(to_device(numbers, cuda()), scale), to_codes(numbers, scale));
  }
  std::vector<float> bad = to_host<float>(numbers);
  for (const float v : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    bad[700] = v;
    CHECK_THROWS_AS(to_codes(to_device(from_host(bad, {4, 300}), cuda()), a), ValueError);
  }
  bad[700] = std::numeric_limits<float>::max();
  CHECK_NOTHROW(to_codes(to_device(from_host(bad, {4, 300}), cuda()), a));
  CHECK_THROWS_AS(sum_of(x, y2, false, c), DeviceError);
  CHECK_THROWS_AS(concat_of({x2, x}), DeviceError);
}

TEST_CASE("cuda int8: a net has the CPU's bits and the bytes of a dry run, and its file is the same",
          "[cuda][quant][slow]") {
  if (!has_cuda()) return;
  const NoGrad off;
  const files_test::TemporaryFolder folder;
  for (const char* name : {"resnet18", "resnet50", "googlenet"}) {
    INFO(name);
    quant_nets::Net net(name, {.image = 32, .width = 8}, DType::f32, 2);
    QuantizedModel here(*net.folded, net.scales());
    here.save(folder / "here");
    const Tensor expected = here(net.x);
    std::vector<std::vector<std::size_t>> figures;
    for (const memory::Device device : {cuda(), dry(cuda())}) {
      const memory::Stack stack = memory::make_resource(device);
      const ResourceScope scope(stack.top);
      const auto away = QuantizedModel::load(folder / "here", device);
      Tensor x = Tensor::empty(net.x.shape(), DType::f32, device);
      if (!device.is_dry) x = to_device(net.x, device);
      const Tensor scores = (*away)(x);
      if (!device.is_dry) {
        CHECK(bytes_of(scores) == bytes_of(expected));
        {
          const emulated::LibraryScope library;
          CHECK(bytes_of((*away)(x)) == bytes_of(expected));
        }
        away->save(folder / "away");
        CHECK(files_test::read_text_file(folder / "away") == files_test::read_text_file(folder / "here"));
      }
      figures.push_back({stack.ledger->bytes(memory::Category::parameter),
                         stack.ledger->bytes(memory::Category::temporary),
                         stack.ledger->max_allocated(memory::Category::workspace)});
    }
    CHECK(figures[0] == figures[1]);
  }
}

TEST_CASE("cuda int8: a net made on the device is the one made on the CPU", "[cuda][quant]") {
  if (!has_cuda()) return;
  const NoGrad off;
  quant_nets::Net net("resnet18", {.width = 8}, DType::f32, 2);
  const Scales scales = net.scales();
  QuantizedModel here(*net.folded, scales);
  const auto model = models::make_model("resnet18", {.image = 16, .channels = 3, .width = 8}, {cuda(), DType::f32});
  for (std::size_t i = 0; i < model->parameters().size(); ++i) {
    copy_into(model->parameters()[i].tensor, to_device(net.model->parameters()[i].tensor.detach(), cuda()));
  }
  for (std::size_t i = 0; i < model->buffers().size(); ++i) {
    copy_into(model->buffers()[i].tensor, to_device(net.model->buffers()[i].tensor, cuda()));
  }
  model->eval();
  FoldedNet folded(
      *model, [&](const Tensor& t) { return model->forward(t); }, to_device(net.x, cuda()));
  QuantizedModel away(folded, scales);
  const Tensor x = to_device(net.x, cuda());
  CHECK(bytes_of(away(x)) == bytes_of(here(net.x)));
  // Its fake-quantized form for training is near, too.
  net.folded->fake_quantize(scales);
  folded.fake_quantize(scales);
  const auto expected = to_host<float>((*net.folded)(net.x)), got = to_host<float>(folded(x));
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).margin(0.1));
}

TEST_CASE("cuda int8: weights alone in Q8_0", "[cuda][quant]") {
  if (!has_cuda()) return;
  const Tensor weight = quant_nets::images({48, 96}, 4), x = quant_nets::images({7, 96}, 5);
  const Tensor bias = quant_nets::images({48}, 6);
  const Tensor blocks = quantize_q8(weight), away = quantize_q8(to_device(weight, cuda()));
  CHECK(away.device() == cuda());
  CHECK(bytes_of(away) == bytes_of(blocks));
  CHECK(bytes_of(dequantize_q8(away)) == bytes_of(dequantize_q8(blocks)));
  const NoGrad off;
  const Tensor here = linear_q8(x, blocks, bias, kernels::Activation::gelu_tanh);
  const Tensor there = linear_q8(to_device(x, cuda()), away, to_device(bias, cuda()), kernels::Activation::gelu_tanh);
  const auto a = to_host<float>(here), b = to_host<float>(there);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(b[i] == Approx(a[i]).margin(1e-5));
  CHECK_THROWS_AS(linear_q8(x, away, bias, kernels::Activation::none), DeviceError);
}

TEST_CASE("cuda int8: what cuBLASLt may be asked for, and its workspace", "[cuda][quant]") {
  using namespace thimble::kernels;
  ConvShape s;
  s.images = 2, s.height = 5, s.width = 7, s.channels = 32, s.filters = 48;
  s.kernel_h = s.kernel_w = s.stride_h = s.stride_w = s.dilation_h = s.dilation_w = 1;
  CHECK(is_library_quant_conv(s));
  CHECK(cuda_quant_conv_bytes(s, 1) == 70 * (32 + 4 * 48));
  CHECK(quant_conv_kernels(dry(cuda())).workspace_bytes(s, 3) == 70 * (32 + 4 * 48));
  CHECK(quant_rows_bytes(s) == 48 * (32 + 4));
  if (quant_conv_cuda) CHECK(quant_conv_cuda->workspace_bytes == quant_conv_cuda_sizes.workspace_bytes);
  s.images = 1 << 20;
  CHECK(cuda_quant_conv_bytes(s, 1) <= static_cast<std::size_t>(max_quant_workspace_bytes));
  CHECK(quant_window_rows(s) % 16 == 0);
  for (const auto member : {&ConvShape::pad_top, &ConvShape::pad_right, &ConvShape::stride_w, &ConvShape::kernel_h,
                            &ConvShape::channels, &ConvShape::filters}) {
    ConvShape other = s;
    ++(other.*member);
    CHECK_FALSE(is_library_quant_conv(other));
    CHECK(cuda_quant_conv_bytes(other, 1) == 0);
  }
}

// ---- The command `thimble quantize --device cuda`: on a GPU if there is one; in a build without CUDA on
// tests/emulated.

using thimble::testing::has_cuda;

namespace cuda_quantize_test {

models::QuantizeOptions options_for(const std::string& name, const models::ModelOptions& sizes,
                                    const std::string& weights) {
  models::QuantizeOptions o;
  o.setup.model = name;
  o.setup.sizes = sizes;
  o.setup.batch = 2;
  o.data = "synthetic";
  o.weights = weights;
  o.calibration_batches = 1;
  o.eval_batches = 1;
  nn::save_weights(*models::make_model(name, sizes), weights);
  return o;
}

}  // namespace cuda_quantize_test

TEST_CASE("cuda quantize: a net of convolutions, with the CPU's figures and a file for both", "[cuda][quant][slow]") {
  if (!has_cuda()) return;
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.image = 16, .channels = 3, .classes = 10, .width = 8};
  auto options = cuda_quantize_test::options_for("resnet18", sizes, folder / "f32");
  options.save = folder / "here";
  const models::QuantizeReport here = models::quantize(options);
  options.device = cuda();
  options.save = folder / "there";
  const models::QuantizeReport there = models::quantize(options);
  CHECK(there.predicted_peak_bytes > 0);
  CHECK(there.predicted_peak_bytes == there.measured_peak_bytes);
  CHECK(there.loss_f32 == Approx(here.loss_f32).epsilon(1e-4));
  CHECK(there.loss_int8 == Approx(here.loss_int8).epsilon(1e-2));
  CHECK(there.f32_weight_bytes == here.f32_weight_bytes);
  CHECK(there.int8_file_bytes == here.int8_file_bytes);
  CHECK(there.ms_int8 > 0);
  REQUIRE(there.layers.size() == here.layers.size());
  for (std::size_t i = 0; i < here.layers.size(); ++i) {
    INFO(here.layers[i].name);
    CHECK(there.layers[i].name == here.layers[i].name);
    CHECK(there.layers[i].cosine == Approx(here.layers[i].cosine).margin(2e-3));
  }
  // A device's packed weights have a different layout; one file serves all.
  CHECK(nn::quant::QuantizedModel::load(folder / "there", cpu)->weight_bytes() == here.int8_weight_bytes);
  CHECK(nn::quant::QuantizedModel::load(folder / "here", cuda())->weight_bytes() == there.int8_weight_bytes);
}

TEST_CASE("cuda quantize: blocks for the linear layers of a model over text", "[cuda][quant]") {
  if (!has_cuda()) return;
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.vocabulary = 55, .sequence = 8, .layers = 1, .heads = 2, .width = 32};
  auto options = cuda_quantize_test::options_for("gpt2", sizes, folder / "f32");
  options.save = folder / "here";
  const models::QuantizeReport here = models::quantize(options);
  options.device = cuda();
  options.save = folder / "there";
  const models::QuantizeReport there = models::quantize(options);
  CHECK(there.scheme == "q8_0");
  CHECK(there.loss_f32 == Approx(here.loss_f32).epsilon(1e-4));
  CHECK(there.loss_int8 == Approx(here.loss_int8).epsilon(1e-4));
  CHECK(there.int8_weight_bytes == here.int8_weight_bytes);
  CHECK(files_test::read_text_file(folder / "there") == files_test::read_text_file(folder / "here"));
}
