// FP8 with block scales on a CUDA device: which products read codes, that they equal products of decoded values, and
// that a dry run knows their bytes. The emulated device can be of either kind, a GPU only of one.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/ops/quant/fp8_linear.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/fp8.h>

#include "emulated/library.h"
#include "support/catch.h"
#include "support/fp8_twin.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::fp8_test;
using kernels::Activation;
using thimble::testing::check_near;
using thimble::testing::has_cuda;
using thimble::testing::is_emulated;

namespace fp8_block_test {

constexpr DType e4m3 = DType::f8e4m3, e5m2 = DType::f8e5m2;

std::vector<std::uint8_t> bytes_of(const Tensor& t) {
  const Tensor here = to_device(t.detach(), cpu);
  const memory::Pin pin(here);
  const auto* const first = static_cast<const std::uint8_t*>(pin.data());
  return {first, first + here.bytes()};
}

Tensor leaf(Tensor t) {
  t.require_grad();
  return t;
}

struct Sizes {
  std::int64_t rows, in, out;
};

struct Case {
  Fp8Format format;
  DType dtype;
  Activation activation;
};

struct Passed {
  Tensor y, dx, dweight;
};

Passed pass(memory::Device device, const Sizes& s, const Fp8Format& format, DType dtype, bool is_in_out,
            Activation activation) {
  const Tensor x = leaf(to_device(spread({s.rows, s.in}, 3, dtype, 1), device));
  const Shape shape = is_in_out ? Shape{s.in, s.out} : Shape{s.out, s.in};
  const Tensor w = leaf(to_device(spread(shape, 0.1, dtype, 2), device));
  const Tensor bias = leaf(to_device(spread({s.out}, 1, dtype, 3), device));
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = fp8_linear(x, w, bias, format, {}, true, activation, is_in_out);
  }
  tape.backward(y, to_device(spread({s.rows, s.out}, 1, dtype, 4), device));
  return {y, x.grad(), w.grad()};
}

/// Live and peak bytes by category, and the height, of a pass without values.
std::vector<std::size_t> figures(memory::Device device, const Sizes& s, bool needs_dx, bool needs_dweight) {
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope scope(stack.top);
  Tensor x = zeros({s.rows, s.in}, DType::bf16, device), w = zeros({s.out, s.in}, DType::bf16, device);
  if (needs_dx) x.require_grad();
  if (needs_dweight) w.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = fp8_linear(x, w, {}, {Fp8Scaling::block, e4m3, e4m3, 0}, {}, true);
  }
  tape.backward(y, full(y.shape(), 1, DType::bf16, device));
  std::vector<std::size_t> all{stack.arena->statistics().peak_height_bytes};
  for (const memory::Category category :
       {memory::Category::workspace, memory::Category::temporary, memory::Category::gradient}) {
    all.push_back(stack.ledger->bytes(category));
    all.push_back(stack.ledger->max_allocated(category));
  }
  return all;
}

}  // namespace fp8_block_test

using namespace fp8_block_test;

TEST_CASE("cuda fp8 blocks: scales in the order that products read", "[cuda][fp8]") {
  // Scales of x (7, 300): three per row; of a weight (300, 700), as stored and transposed: 3 x 6.
  std::vector<std::uint8_t> x(7 * 3), w(3 * 6);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint8_t>(100 + i);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<std::uint8_t>(130 + i);
  x[4] = 0, w[5] = 255;
  const auto value = [](std::uint8_t code) { return quant::load_scale(&code, DType::u8, 0); };
  const auto same = [](float a, float b) {
    return bit_cast<std::uint32_t>(a) == bit_cast<std::uint32_t>(b);  // all NaN are equal
  };
  for (const bool turns : {false, true}) {
    const std::int64_t outer = turns ? 6 : 3, inner = turns ? 3 : 6, stride = kernels::fp8_square_stride(inner * 128);
    CHECK(stride == (turns ? 4 : 8));
    std::vector<float> x_to(3 * 7, -1), w_to(static_cast<std::size_t>(outer * stride), -1);
    kernels::Fp8ScalesArgs args;
    args.a = {x.data(), 3, 7, 1, 3, x_to.data(), 7};
    args.b = {w.data(), outer, inner, turns ? 1 : 6, turns ? 6 : 1, w_to.data(), stride};
    const kernels::PlaceFp8Scales place{args};
    REQUIRE(place.elements() == 21 + outer * stride);
    for (std::int64_t i = 0; i < place.elements(); ++i) place(i);
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < 7; ++r) {
      for (std::size_t b = 0; b < 3; ++b) wrong += !same(x_to[b * 7 + r], value(x[r * 3 + b]));
    }
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t i = 0; i < stride; ++i) {
        const std::size_t from = static_cast<std::size_t>(turns ? i * 6 + o : o * 6 + i);
        wrong += !same(w_to[static_cast<std::size_t>(o * stride + i)], i < inner ? value(w[from]) : 0.0f);
      }
    }
    CHECK(wrong == 0);
  }
  CHECK(kernels::fp8_square_stride(1) == 4);
  CHECK(kernels::fp8_square_stride(512) == 4);
  CHECK(kernels::fp8_square_stride(513) == 8);
}

TEST_CASE("cuda fp8 blocks: codes give what decoded values give", "[cuda][fp8]") {
  if (!has_cuda()) return;
  const bool emulates = is_emulated();
  const Fp8Format plain{Fp8Scaling::block, e4m3, e4m3, 0}, hybrid{Fp8Scaling::block, e4m3, e5m2, 0};
  for (const Sizes& s : {Sizes{64, 272, 144}, Sizes{24, 16, 640}, Sizes{8, 1040, 16}, Sizes{12, 32, 32}}) {
    for (const bool is_in_out : {false, true}) {
      for (const Case& c : {Case{plain, DType::bf16, Activation::none}, Case{hybrid, DType::f32, Activation::gelu_tanh},
                            Case{hybrid, DType::f16, Activation::relu}}) {
        const DType dtype = c.dtype;
        INFO(s.rows << " x " << s.in << " x " << s.out << ", in-out " << is_in_out << ", " << to_string(dtype));
        const auto run = [&](memory::Device device) {
          return pass(device, s, c.format, dtype, is_in_out, c.activation);
        };
        const Passed here = run(cpu), there = run(cuda());
        const double tolerance = thimble::testing::fp8_tolerance(dtype, emulates);
        // A rounded value may come out of an activation as the next code.
        const bool is_exact = dtype == DType::f32 && emulates;
        const double behind = c.activation == Activation::none ? tolerance : is_exact ? 1e-2 : 0.1;
        check_near(there.y, here.y, tolerance);
        check_near(there.dx, here.dx, behind);
        check_near(there.dweight, here.dweight, behind);
        if (!emulates) continue;
        {
          // The own kernels add in one order, whether they read codes or values.
          const emulated::CapabilityScope before_units(80);
          const Passed decoded = run(cuda());
          CHECK(bytes_of(there.y) == bytes_of(decoded.y));
          CHECK(bytes_of(there.dx) == bytes_of(decoded.dx));
          CHECK(bytes_of(there.dweight) == bytes_of(decoded.dweight));
        }
        const emulated::LibraryScope library;
        const int products = emulated::block_products;
        const Passed by_library = run(cuda());
        check_near(by_library.y, here.y, tolerance);
        check_near(by_library.dx, here.dx, behind);
        check_near(by_library.dweight, here.dweight, behind);
        CHECK(emulated::block_products - products == (s.rows % 8 == 0 ? 2 : 0));  // y and dx
      }
    }
  }
}

TEST_CASE("cuda fp8 blocks: what is not finite reaches what decoded values reach", "[cuda][fp8]") {
  if (!is_emulated()) return;
  const Fp8Use use{{Fp8Scaling::block, e4m3, e4m3, 0}, {}, 0, false};
  for (const bool by_library : {false, true}) {
    emulated::has_library = by_library;
    std::vector<float> values = to_host<float>(spread({16, 144}, 1, DType::f32, 1));
    values[5 * 144 + 130] = std::numeric_limits<float>::infinity();
    for (int c = 0; c < 128; ++c) values[static_cast<std::size_t>(7 * 144 + c)] = 0;  // a block of zeros
    const Tensor x = from_host(values, {16, 144}), w = spread({32, 144}, 1, DType::f32, 2);
    const Fp8Operand a = fp8_encode(to_device(x, cuda()), Fp8Role::x, use, {});
    const Fp8Sides b = fp8_encode_sides(to_device(w, cuda()), Fp8Role::weight, use, {}, true, false);
    const Tensor c = Tensor::empty({16, 32}, DType::f32, cuda());
    fp8_matmul_into({"product", a, {b.plain, b.scale}, c, {}, {}});
    const std::vector<float> got = to_host<float>(c);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::isnan(got[i]) == (i / 32 == 5));
  }
  emulated::has_library = false;
}

TEST_CASE("cuda fp8 blocks: a dry run has the bytes of either kind of device", "[cuda][fp8][slow]") {
  if (!has_cuda()) return;
  for (const auto& [dx, dweight] : {std::pair(true, true), std::pair(true, false), std::pair(false, true)}) {
    const Sizes s{64, 272, 144};
    INFO("dx " << dx << ", dW " << dweight);
    CHECK(figures(cuda(), s, dx, dweight) == figures(dry(cuda()), s, dx, dweight));
    if (!is_emulated()) continue;
    std::vector<std::vector<std::size_t>> kinds;
    for (const int capability : {80, 90}) {
      const emulated::CapabilityScope own(capability);
      kinds.push_back(figures(cuda(), s, dx, dweight));
      CHECK(figures(dry(cuda()), s, dx, dweight) == kinds.back());
      // A plan for the other capability.
      const AssumedCapability other(capability == 80 ? 90 : 80);
      CHECK(figures(dry(cuda()), s, dx, dweight) != kinds.back());
    }
    CHECK(kinds[0] != kinds[1]);
  }
}

TEST_CASE("cuda fp8 blocks: the bytes of a forward", "[cuda][fp8]") {
  const memory::Device device = dry(cuda());
  for (const int capability : {80, 90}) {
    const AssumedCapability assumed(capability);
    const memory::Stack stack = memory::make_resource(device);
    const ResourceScope scope(stack.top);
    const Tensor x = Tensor::empty({2048, 1040}, DType::bf16, device);
    const Tensor w = Tensor::empty({1040, 528}, DType::bf16, device);
    fp8_linear(x, w, {}, {Fp8Scaling::block, e4m3, e4m3, 0}, {}, true, Activation::none, true);
    const std::size_t library = 16 * 2048 * 528;
    // W's transposed codes and 9 x 5 scales; scales in f32: 9 for each of x's rows, and 12 (of 9) for W's 5 block rows.
    const std::size_t codes = 1040 * 528 + 9 * 5 + 4 * (9 * 2048 + 5 * 12) + library;
    // x's decoded window, and W, decoded in the free room.
    const std::size_t decoded = 2 * 2048 * 1040 + 2 * 1040 * 528 + library;
    CHECK(stack.ledger->max_allocated(memory::Category::workspace) == (capability == 90 ? codes : decoded));
  }
}

TEST_CASE("cuda fp8 blocks: one rule of sizes, dtypes and device", "[cuda][fp8]") {
  const Fp8BlockProduct product{64, 272, 144, e4m3, e4m3, DType::bf16};
  const memory::Device device = dry(cuda());
  for (const int capability : {75, 80, 86, 89, 90, 100, 120}) {
    const AssumedCapability assumed(capability);
    CHECK(compute_capability(device) == capability);
    CHECK(fp8_blocks_on_units(device, product) == (capability == 90));
    CHECK(why_no_fp8_blocks(device).empty() == (capability == 90));
  }
  CHECK(compute_capability(cpu) == 0);
  CHECK_FALSE(fp8_blocks_on_units(cpu, product));
  const AssumedCapability assumed(90);
  for (const Fp8BlockProduct& fits :
       {Fp8BlockProduct{8, 16, 16, e4m3, e4m3, DType::f32}, {64, 272, 144, e5m2, e4m3, DType::f16}}) {
    CHECK(fp8_blocks_on_units(device, fits));
  }
  for (const Fp8BlockProduct& not_so : {Fp8BlockProduct{60, 272, 144, e4m3, e4m3, DType::bf16},
                                        {64, 264, 144, e4m3, e4m3, DType::bf16},
                                        {64, 272, 136, e4m3, e4m3, DType::bf16},
                                        {64, 272, 144, e5m2, e5m2, DType::bf16},
                                        {0, 272, 144, e4m3, e4m3, DType::bf16},
                                        {64, 272, 144, e4m3, e4m3, DType::f64}}) {
    CHECK_FALSE(fp8_blocks_on_units(device, not_so));
  }
  kernels::Fp8GemmArgs args;
  args.m = 64, args.n = 272, args.k = 144;
  args.a_row_stride = args.b_row_stride = 144, args.c_row_stride = 272;
  args.in_blocks = true;
  CHECK(kernels::cuda_fp8_gemm_workspace_bytes(args) == 16 * 64 * 272);
  args.m = 60;
  CHECK(kernels::cuda_fp8_gemm_workspace_bytes(args) == 0);
  args.in_blocks = false;
  CHECK(kernels::cuda_fp8_gemm_workspace_bytes(args) == 16 * 60 * 272);
}

TEST_CASE("cuda fp8 blocks: what products are of is said", "[cuda][fp8]") {
  const Fp8Format block{Fp8Scaling::block, e4m3, e4m3, 0}, tensor{Fp8Scaling::current, e4m3, e5m2, 0};
  const auto text = [](memory::Device device, const Fp8Format& format) {
    return nn::fp8_products_text(device, format);
  };
  CHECK(text(cpu, block) == "of bf16 values, in which FP8 ones are exact");
  CHECK(text(dry(cuda()), tensor) == "of codes: y, dx, dW");
  {
    const AssumedCapability assumed(90);
    CHECK(text(dry(cuda()), block) ==
          "of codes: y and dx, of rows in multiples of 8; of bf16 values: dW, whose sum is over rows with their own "
          "scales");
    CHECK(text(dry(cuda()), {Fp8Scaling::block, e5m2, e5m2, 0}) ==
          "of bf16 values: E5M2 codes are not multiplied with each other");
  }
  const AssumedCapability assumed(89);
  CHECK(text(dry(cuda()), block) == "of bf16 values: compute capability 8.9, and 9.0 has units for them");
}

TEST_CASE("cuda fp8 blocks: what is refused", "[cuda][fp8]") {
  const memory::Device device = dry(cuda());
  const auto codes = [&](const Shape& shape, const Shape& scale, DType scale_dtype = DType::u8) {
    return Fp8Operand{Tensor::empty(shape, e4m3, device), Tensor::empty(scale, scale_dtype, device)};
  };
  const Tensor c = Tensor::empty({16, 144}, DType::bf16, device);
  const Fp8Operand x = codes({16, 272}, {16, 3}), w = codes({144, 272}, {2, 3});
  CHECK_NOTHROW(fp8_matmul_into({"product", x, w, c, {}, {}}));
  CHECK_NOTHROW(fp8_matmul_into(
      {"product", x, {w.values, view::transpose(Tensor::empty({3, 2}, DType::u8, device))}, c, {}, {}}));
  CHECK_THROWS_AS(fp8_matmul_into({"product", codes({16, 272}, {16, 2}), w, c, {}, {}}), ShapeError);
  CHECK_THROWS_AS(fp8_matmul_into({"product", x, codes({144, 272}, {144, 3}), c, {}, {}}), ShapeError);
  CHECK_THROWS_AS(fp8_matmul_into({"product", x, codes({144, 272}, {1}, DType::f32), c, {}, {}}), DTypeError);
  CHECK_THROWS_AS(fp8_matmul_into({"product", codes({16, 272}, {1}, DType::f32), w, c, {}, {}}), DTypeError);
  const Fp8Use use{{Fp8Scaling::block, e4m3, e4m3, 0}, {}, 0, false};
  const Tensor dy = Tensor::empty({16, 144}, DType::bf16, device);
  CHECK_THROWS_AS(fp8_encode_sides(dy, Fp8Role::gradient, use, {}, true, true), ValueError);
  CHECK_NOTHROW(fp8_encode_sides(dy, Fp8Role::gradient, use, {}, true, false));
}
