// Steps between 8-bit codes against plain formulas, for every instruction set and number of threads; Q8_0 blocks.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/quant_codes.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/core/numbers/minifloat.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/quant/codes.h>
#include <thimble/nn/quant/weight_only.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/kernel_data.h"

namespace quant_codes_test {

using namespace thimble;
using namespace thimble::nn::quant;

std::vector<float> numbers(std::size_t count, float width, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> list(count);
  for (float& v : list) v = (static_cast<float>(random() % 20001) / 10000 - 1) * width;
  return list;
}

std::uint8_t code_of(double v, const CodeScale& s) {
  return static_cast<std::uint8_t>(
      std::clamp(std::nearbyint(v) + s.zero, static_cast<double>(s.low), static_cast<double>(s.high)));
}

/// Runs `f` under every instruction set with 1 and 3 threads; all results must be equal.
template <class F>
auto everywhere(F&& f) {
  kernel_test::Settings settings;
  const auto expected = f();
  for (const kernels::Isa set : kernel_test::supported()) {
    for (const int threads : {1, 3}) {
      kernels::set_isa(set);
      set_thread_count(threads);
      CHECK((f() == expected));
    }
  }
  return expected;
}

Codes codes_of(const Shape& shape, const CodeScale& scale, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> list;
  for (std::int64_t i = 0, n = Tensor::empty(shape, DType::u8).elements(); i < n; ++i) {
    list.push_back(static_cast<std::uint8_t>(random()));
  }
  return {from_host(list, shape), scale};
}

}  // namespace quant_codes_test

using namespace quant_codes_test;

TEST_CASE("quant_codes: numbers to codes and back", "[quant]") {
  const CodeScale scale{0.037F, 100, 0, 255};
  std::vector<float> x = numbers(40'000, 8, 1);
  x[5] = 0.037F * 2.5F;  // a tie
  x[6] = 1e30F;
  x[7] = -1e30F;
  const Tensor t = from_host(x, {8, 5000});
  const auto codes = everywhere([&] { return to_host<std::uint8_t>(to_codes(t, scale).tensor); });
  for (std::size_t i = 0; i < x.size(); ++i)
    REQUIRE(codes[i] == code_of(static_cast<double>(x[i] / scale.scale), scale));
  const auto back = everywhere([&] { return to_host<float>(from_codes(to_codes(t, scale))); });
  for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(back[i] == static_cast<float>(codes[i] - 100) * scale.scale);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[39'999] = bad;
    CHECK_THROWS_AS(to_codes(from_host(x, {40'000}), scale), ValueError);
  }
  CHECK_THROWS_AS(to_codes(zeros({2}, DType::f16), scale), DTypeError);
  CHECK_THROWS_AS(from_codes({zeros({2}, DType::i8), scale}), DTypeError);
}

TEST_CASE("quant_codes: pools, means, sums, relu and concatenation", "[quant]") {
  const CodeScale scale{0.05F, 90, 0, 255}, other{0.11F, 17, 0, 255}, out{0.13F, 60, 0, 255};
  const Codes x = codes_of({3, 7, 6, 5}, scale, 3), y = codes_of({3, 7, 6, 5}, other, 4);
  const auto a = to_host<std::uint8_t>(x.tensor), b = to_host<std::uint8_t>(y.tensor);

  SECTION("the largest of a window is that of the numbers") {
    for (const bool rounds_up : {false, true}) {
      // Rounded up, the second one's last windows would begin at 8 and 6, where the image and its padding end.
      for (const StepWindow& window : {StepWindow{{3, 2}, {2, 2}, {1, 0}, {1, 1}, rounds_up},
                                       StepWindow{{2, 2}, {4, 3}, {1, 0}, {1, 1}, rounds_up}}) {
        const auto pooled = everywhere([&] { return to_host<float>(from_codes(max_pool_of(x, window))); });
        const Tensor exact =
            max_pool2d(from_codes(x), {window.kernel, window.stride, window.padding, window.dilation, rounds_up});
        CHECK(max_pool_of(x, window).tensor.shape() == exact.shape());
        CHECK((pooled == to_host<float>(exact)));
      }
    }
    CHECK_THROWS_AS(max_pool_of(x, {{9, 9}, {1, 1}, {0, 0}, {1, 1}, false}), ShapeError);
  }
  SECTION("means") {
    const auto means = everywhere([&] { return to_host<std::uint8_t>(mean_of(x, out).tensor); });
    const float factor = scale.scale / (out.scale * 42.0F);
    for (std::size_t n = 0; n < 3; ++n) {
      for (std::size_t c = 0; c < 5; ++c) {
        int sum = 0;
        for (std::size_t p = 0; p < 42; ++p) sum += a[(n * 42 + p) * 5 + c] - scale.zero;
        CHECK(means[n * 5 + c] == code_of(static_cast<double>(static_cast<float>(sum) * factor), out));
      }
    }
  }
  SECTION("sums") {
    for (const bool has_relu : {false, true}) {
      const auto sums = everywhere([&] { return to_host<std::uint8_t>(sum_of(x, y, has_relu, out).tensor); });
      const CodeScale to{out.scale, out.zero, has_relu ? out.zero : 0, 255};
      for (std::size_t i = 0; i < a.size(); ++i) {
        const float v = static_cast<float>(a[i] - 90) * (scale.scale / out.scale) +
                        static_cast<float>(b[i] - 17) * (other.scale / out.scale);
        REQUIRE(sums[i] == code_of(static_cast<double>(v), to));
      }
    }
    CHECK_THROWS_AS(sum_of(x, codes_of({3, 7, 6, 4}, other, 1), false, out), ShapeError);
  }
  SECTION("relu and concatenation") {
    const auto floored = everywhere([&] { return to_host<std::uint8_t>(relu_of(x).tensor); });
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(floored[i] == std::max<std::uint8_t>(a[i], 90));
    const Codes z = codes_of({3, 7, 6, 2}, scale, 5);
    const auto joined = everywhere([&] { return to_host<std::uint8_t>(concat_of({x, z}).tensor); });
    CHECK((joined == to_host<std::uint8_t>(concat({x.tensor, z.tensor}, 3))));
    CHECK_THROWS_AS(concat_of({x, codes_of({3, 7, 5, 2}, scale, 5)}), ShapeError);
  }
}

TEST_CASE("quant_codes: weights get a scale for each filter, or one", "[quant]") {
  const std::vector<float> w{1, -2, 0.5F, 0, 0, 0, 1e-3F, 5e-4F, -1e-3F};
  std::vector<std::int8_t> codes(9);
  std::vector<float> scales(3);
  REQUIRE(kernels::quantize_weight_codes(w.data(), DType::f32, 3, 3, false, nullptr, codes.data(), scales.data()));
  CHECK((codes == std::vector<std::int8_t>{64, -127, 32, 0, 0, 0, 127, 64, -127}));
  CHECK(scales[0] == static_cast<float>(2.0 / 127));
  CHECK(scales[1] == 1.0F);
  REQUIRE(kernels::quantize_weight_codes(w.data(), DType::f32, 3, 3, true, nullptr, codes.data(), scales.data()));
  CHECK((scales == std::vector<float>(3, static_cast<float>(2.0 / 127))));
  CHECK(codes[6] == 0);
  const float least[] = {1, 0, 0};
  REQUIRE(kernels::quantize_weight_codes(w.data(), DType::f32, 3, 3, false, least, codes.data(), scales.data()));
  CHECK(scales[0] == 1.0F);
  CHECK(codes[1] == -2);
  std::vector<float> bad = w;
  bad[4] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(
      kernels::quantize_weight_codes(bad.data(), DType::f32, 3, 3, false, nullptr, codes.data(), scales.data()));
}

TEST_CASE("q8: blocks are those of the format", "[quant]") {
  std::vector<float> x = numbers(64, 3, 7);
  for (std::size_t i = 32; i < 64; ++i) x[i] = 0;
  const Tensor blocks = quantize_q8(from_host(x, {1, 64}));
  const auto bytes = to_host<std::uint8_t>(blocks);
  REQUIRE(bytes.size() == 68);
  float amax = 0;
  for (std::size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[i]));
  const float d = amax / 127;
  const f16 stored(d);
  CHECK(std::memcmp(bytes.data(), &stored, 2) == 0);
  for (std::size_t i = 0; i < 32; ++i) {
    CHECK(static_cast<std::int8_t>(bytes[2 + i]) == static_cast<std::int8_t>(std::nearbyint(x[i] * (1 / d))));
  }
  for (std::size_t i = 34; i < 68; ++i) CHECK(bytes[i] == 0);
  const auto back = to_host<float>(dequantize_q8(blocks));
  for (std::size_t i = 0; i < 32; ++i) CHECK(std::fabs(back[i] - x[i]) <= d * 0.51F);
}

TEST_CASE("q8: codes and scales are those of quantize()", "[quant]") {
  std::vector<float> x = numbers(64 * 96, 3, 9);
  for (std::size_t i = 0; i < 32; ++i) x[i] *= 1e-7F;
  for (std::size_t i = 32; i < 64; ++i) x[i] = 0;
  const Tensor t = from_host(x, {64, 96});
  const Tensor codes = quantize(t, {DType::i8, ScaleBlocks::flat(32), DType::f16});
  const auto one = to_host<std::int8_t>(codes.detach());
  const auto scales = to_host<f16>(*codes.scale());
  const auto bytes = to_host<std::uint8_t>(quantize_q8(t));
  int different = 0;
  for (std::size_t block = 0; block < 64 * 3; ++block) {
    different += std::memcmp(bytes.data() + block * 34, &scales[block], 2) != 0;
    different += std::memcmp(bytes.data() + block * 34 + 2, one.data() + block * 32, 32) != 0;
  }
  CHECK(different == 0);
}

TEST_CASE("q8: a linear layer has the bits of one with the weight in f32", "[quant]") {
  const std::int64_t in = 4096, out = 150;  // several tiles
  const Tensor weight = from_host(numbers(static_cast<std::size_t>(in * out), 1, 1), {out, in});
  const Tensor bias = from_host(numbers(static_cast<std::size_t>(out), 1, 2), {out});
  const Tensor x = from_host(numbers(static_cast<std::size_t>(6 * in), 1, 3), {2, 3, in});
  const Tensor blocks = quantize_q8(weight);
  kernel_test::Settings settings;
  for (const kernels::Isa set : kernel_test::supported()) {
    kernels::set_isa(set);
    for (const int threads : {1, 2}) {
      set_thread_count(threads);
      using kernels::Activation;
      for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
        const Tensor y = linear_q8(x, blocks, bias, activation);
        CHECK((y.shape() == Shape{2, 3, out}));
        CHECK((to_host<float>(y) == to_host<float>(linear(x, dequantize_q8(blocks), bias, activation))));
      }
    }
  }
  CHECK((to_host<std::uint8_t>(quantize_q8(view::transpose(contiguous(view::transpose(weight))))) ==
         to_host<std::uint8_t>(blocks)));
}

TEST_CASE("q8: what does not fit is refused", "[quant]") {
  const Tensor blocks = quantize_q8(zeros({4, 32}));
  CHECK_THROWS_AS(quantize_q8(zeros({4, 33})), ShapeError);
  CHECK_THROWS_AS(quantize_q8(zeros({4, 32}, DType::f16)), DTypeError);
  CHECK_THROWS_AS(quantize_q8(full({4, 32}, std::numeric_limits<double>::quiet_NaN())), ValueError);
  CHECK_THROWS_AS(quantize_q8(full({4, 32}, 1e9)), ValueError);
  CHECK_THROWS_AS(linear_q8(zeros({2, 64}), blocks), ShapeError);
  CHECK_THROWS_AS(linear_q8(zeros({2, 32}, DType::bf16), blocks), DTypeError);
  CHECK_THROWS_AS(linear_q8(zeros({2, 32}), zeros({4, 34}, DType::i8)), DTypeError);
  CHECK_THROWS_AS(linear_q8(zeros({2, 32}), blocks, zeros({5})), ShapeError);
  CHECK_THROWS_AS(dequantize_q8(zeros({4, 33}, DType::u8)), ShapeError);
  Tape tape;
  const Recording on(tape);
  Tensor x = zeros({2, 32});
  x.require_grad();
  CHECK_THROWS_AS(linear_q8(x, blocks), AutogradError);
}

TEST_CASE("q8: a GPT's linear layers in blocks, their bytes and their file", "[quant]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const models::ModelOptions options{
      .vocabulary = 50, .sequence = 16, .layers = 2, .heads = 2, .width = 64, .dropout = 0};
  const auto model = models::make_model("char-gpt", options);
  model->eval();
  const NoGrad off;
  const Tensor ids = zeros({2, 16}, DType::i64);
  const auto exact = to_host<float>(model->forward(ids));
  const std::size_t before = stack.ledger->bytes_by_category()[static_cast<std::size_t>(memory::Category::parameter)];
  const std::size_t layers = quantize_linear_weights(*model);
  CHECK(layers == 8);
  // 12 x 64^2 numbers per block of the model, from 4 bytes to 34 / 32.
  const std::size_t numbers = 2 * 12 * 64 * 64;
  CHECK(stack.ledger->bytes_by_category()[static_cast<std::size_t>(memory::Category::parameter)] ==
        before - numbers * 4 + numbers * 34 / 32);
  const auto near = to_host<float>(model->forward(ids));
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    signal += static_cast<double>(exact[i]) * exact[i];
    noise += std::pow(static_cast<double>(exact[i]) - near[i], 2);
  }
  CHECK(noise > 0);
  CHECK(noise < 1e-4 * signal);

  const files_test::TemporaryFolder folder;
  nn::save_weights(*model, folder / "a");
  const auto other = models::make_model("char-gpt", options);
  other->eval();
  quantize_linear_weights(*other);
  nn::load_weights(*other, folder / "a");
  CHECK((to_host<float>(other->forward(ids)) == near));
  nn::save_weights(*other, folder / "b");
  CHECK((files_test::read_text_file(folder / "a") == files_test::read_text_file(folder / "b")));
  CHECK_THROWS_AS(nn::load_weights(*models::make_model("char-gpt", options), folder / "a"), ValueError);
}
