// FP8 operands and products on a CUDA device: codes, scales and the state of delayed scaling have the CPU's bits,
// products are near the CPU's, and a dry run knows their bytes.

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/ops/quant/fp8_linear.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/models/training/training.h>

#include "emulated/library.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/fp8_twin.h"
#include "support/operator_table.h"
#include "support/sanitizer.h"
#include "support/trained.h"

using namespace thimble;
using namespace thimble::fp8_test;
using kernels::Activation;
using thimble::testing::check_near;
using thimble::testing::fp8_tolerance;
using thimble::testing::has_cuda;
using thimble::testing::is_emulated;

namespace cuda_fp8_test {

constexpr DType e4m3 = DType::f8e4m3, e5m2 = DType::f8e5m2;

std::vector<Fp8Format> formats() {
  return {{Fp8Scaling::current, e4m3, e5m2, 0},
          {Fp8Scaling::delayed, e4m3, e4m3, 2},
          {Fp8Scaling::current, e5m2, e5m2, 0},
          {Fp8Scaling::block, e4m3, e5m2, 0}};
}

std::vector<std::uint8_t> bytes_of(const Tensor& t) {
  const Tensor here = to_device(t.detach(), cpu);
  if (here.elements() == 0) return {};
  const memory::Pin pin(here);
  const auto* const first = static_cast<const std::uint8_t*>(pin.data());
  return {first, first + here.bytes()};
}

// The bits of bf16 values. All NaN are equal: sign and payload depend on the device.
std::vector<std::uint16_t> values_of(const Tensor& t) {
  std::vector<std::uint16_t> bits;
  for (const bf16 value : to_host<bf16>(t)) {
    const auto b = std::bit_cast<std::uint16_t>(value);
    bits.push_back((b & 0x7FFFu) > 0x7F80u ? 0x7FC0 : b);
  }
  return bits;
}

std::vector<std::vector<std::uint8_t>> all_of(const Fp8State& s) {
  return {bytes_of(s.amax), bytes_of(s.scale), bytes_of(s.steps)};
}

void check_operands(const Fp8Operand& there, const Fp8Operand& here) {
  CHECK(bytes_of(there.values) == bytes_of(here.values));
  CHECK(there.scale.defined() == here.scale.defined());
  if (here.scale.defined()) CHECK(bytes_of(there.scale) == bytes_of(here.scale));
}

Tensor leaf(Tensor t) {
  t.require_grad();
  return t;
}

struct Passed {
  Tensor y, dx, dweight, dbias;
};

/// fp8_linear and its gradients on a device; `recomputes` runs it in a checkpoint.
Passed pass(memory::Device device, const Fp8Format& format, const Fp8State& state, const std::vector<Tensor>& operands,
            const Tensor& dy, Activation activation, bool is_in_out, bool recomputes = false) {
  std::vector<Tensor> in;
  for (const Tensor& t : operands) in.push_back(t.defined() ? leaf(to_device(t, device)) : t);
  Tape tape;
  Passed p;
  {
    const Recording on(tape);
    const auto call = [&](const Tensor& x) {
      return fp8_linear(x, in[1], in[2], format, state, true, activation, is_in_out);
    };
    p.y = recomputes ? checkpoint([&](const Tensor& x) { return call(mul(x, 1.0)); }, in[0]) : call(in[0]);
  }
  tape.backward(p.y, to_device(dy, device));
  p.dx = in[0].grad(), p.dweight = in[1].grad();
  if (in[2].defined()) p.dbias = in[2].grad();
  return p;
}

}  // namespace cuda_fp8_test

using namespace cuda_fp8_test;

TEST_CASE("cuda fp8: codes and scales have the CPU's bits", "[cuda][fp8]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Shape& shape : {Shape{37, 48}, Shape{3, 131}, Shape{130, 300}, Shape{5, 8000}, Shape{0, 16}}) {
      for (const Fp8Format& format : formats()) {
        for (const float known : {0.0f, 0.0123f}) {
          const bool is_delayed = format.scaling == Fp8Scaling::delayed;
          if (known != 0 && !is_delayed) continue;
          const Fp8Use use{format, {}, 0, false};
          const Tensor x = spread(shape, 30, dtype, 1), there = to_device(x, cuda());
          Tensor scales, scales_there;
          if (is_delayed) {
            scales = from_host(std::vector<float>{known, known, known}, {3});
            scales_there = to_device(scales, cuda());
          }
          for (const Fp8Role role : {Fp8Role::x, Fp8Role::weight, Fp8Role::gradient}) {
            INFO(to_string(dtype) << " " << to_string(shape) << ", scaling " << static_cast<int>(format.scaling)
                                  << ", known " << known << ", role " << static_cast<int>(role));
            const Fp8Operand here = fp8_encode(x, role, use, scales);
            check_operands(fp8_encode(there, role, use, scales_there), here);
            check_operands(fp8_round(clone(there), role, use, scales_there), fp8_round(clone(x), role, use, scales));
            if (format.scaling == Fp8Scaling::block || shape[0] == 0) continue;
            // The sides for products: equal codes, as stored and transposed, padded with zeros.
            const Fp8Sides sides = fp8_encode_sides(there, role, use, scales_there, true, true);
            CHECK(bytes_of(sides.plain) == bytes_of(here.values));
            CHECK(bytes_of(sides.scale) == bytes_of(here.scale));
            const Tensor turned_alone = fp8_encode_sides(there, role, use, scales_there, false, true).turned;
            const std::int64_t columns = shape[1], padded = (shape[0] + 15) / 16 * 16;
            REQUIRE(sides.turned.shape() == Shape{columns, padded});
            const std::vector<std::uint8_t> codes = bytes_of(here.values), turned = bytes_of(sides.turned);
            std::size_t wrong = 0;
            for (std::int64_t c = 0; c < columns; ++c) {
              for (std::int64_t r = 0; r < padded; ++r) {
                const unsigned expected = r < shape[0] ? codes[static_cast<std::size_t>(r * columns + c)] : 0u;
                wrong += turned[static_cast<std::size_t>(c * padded + r)] != expected;
              }
            }
            CHECK(wrong == 0);
            CHECK(bytes_of(turned_alone) == turned);
            const Tensor part = Tensor::empty({21, padded}, here.values.dtype(), cuda());
            fp8_turn_into(part, sides.plain, 11, 32);
            CHECK(bytes_of(part) ==
                  std::vector<std::uint8_t>(turned.begin() + 11 * padded, turned.begin() + 32 * padded));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda fp8: windows of codes, and what is not finite", "[cuda][fp8]") {
  if (!has_cuda()) return;
  std::vector<float> values = to_host<float>(spread({40, 300}, 3, DType::f32, 5));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), 3e38f, -0.0f}) {
    values[4000] = bad;
    const Tensor x = from_host(values, {40, 300});
    const Tensor known = from_host(std::vector<float>{1, 1, 1}, {3}), none;
    for (const Fp8Format& format : formats()) {
      const Fp8Use use{format, {}, 0, false};
      for (const Tensor& scales : {known, none}) {
        INFO(bad << ", scaling " << static_cast<int>(format.scaling));
        const Fp8Operand here = fp8_encode(x, Fp8Role::weight, use, scales);
        const Fp8Operand there = fp8_encode(to_device(x, cuda()), Fp8Role::weight, use,
                                            scales.defined() ? to_device(scales, cuda()) : scales);
        check_operands(there, here);
        for (const auto& [row, column, rows, columns] :
             std::vector<std::array<std::int64_t, 4>>{{0, 0, 40, 300}, {3, 128, 5, 128}, {7, 131, 20, 33}}) {
          const Tensor expected = Tensor::empty({rows, columns}, DType::bf16);
          const Tensor got = Tensor::empty({rows, columns}, DType::bf16, cuda());
          fp8_decode_into(expected, here, row, column);
          fp8_decode_into(got, there, row, column);
          CHECK(values_of(got) == values_of(expected));
        }
      }
    }
  }
}

TEST_CASE("cuda fp8: the state of delayed scaling goes the CPU's way", "[cuda][fp8]") {
  if (!has_cuda()) return;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  const Fp8Format format{Fp8Scaling::delayed, e4m3, e5m2, 1};
  for (const std::int64_t history : {1, 3, 300}) {
    const Fp8State here = make_fp8_state(history, cpu), there = make_fp8_state(history, cuda());
    const std::vector<double> factors{0, 1, 4, 0.5, std::numeric_limits<double>::infinity(), 0.25, 0.125, 2};
    std::vector<std::vector<std::uint8_t>> before = all_of(here);
    for (const double factor : factors) {
      const std::vector<Tensor> operands{
          spread({16, 32}, factor, DType::bf16, 1), spread({16, 32}, 1, DType::bf16, 3), {}};
      const Tensor dy = spread({16, 16}, 1 / (factor + 1), DType::bf16, 2);
      const bool is_kept = factor != 0.5;  // does not commit that step
      const std::uint64_t number = generator.step();
      for (const memory::Device device : {cpu, cuda()}) {
        generator.set_step(number);
        tape::Transaction step;
        for (const bool recomputes : {false, true}) {  // two passes of a step share a place in the history
          pass(device, format, device.is_cpu() ? here : there, operands, dy, Activation::none, false, recomputes);
        }
        if (is_kept) step.commit();
      }
      generator.set_step(number + 1);
      INFO("history " << history << ", factor " << factor);
      CHECK(all_of(there) == all_of(here));
      CHECK((all_of(here) != before) == is_kept);
      before = all_of(here);
    }
  }
}

TEST_CASE("cuda fp8: products and gradients near the CPU's, and the same bits again", "[cuda][fp8]") {
  if (!has_cuda()) return;
  struct Row {
    std::int64_t rows, in, out;
  };
  for (const Fp8Format& format : formats()) {
    for (const Row& row : {Row{75, 160, 144}, Row{32, 16, 48}, Row{5, 7, 9}}) {
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        for (const bool is_in_out : {false, true}) {
          for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
            if (row.rows > 70 && (testing::has_sanitizer || activation == Activation::relu || dtype == DType::f16)) {
              continue;
            }
            INFO("scaling " << static_cast<int>(format.scaling) << ", " << row.rows << " x " << row.in << " x "
                            << row.out << ", " << to_string(dtype) << ", in-out " << is_in_out << ", activation "
                            << static_cast<int>(activation));
            const std::vector<Tensor> operands{
                spread({row.rows, row.in}, 3, dtype, 1),
                spread(is_in_out ? Shape{row.in, row.out} : Shape{row.out, row.in}, 0.1, dtype, 2),
                spread({row.out}, 1, dtype, 3)};
            const Tensor dy = spread({row.rows, row.out}, 1, dtype, 4);
            const auto run = [&](memory::Device device, bool recomputes) {
              return pass(device, format, make_fp8_state(4, device), operands, dy, activation, is_in_out, recomputes);
            };
            const Passed here = run(cpu, false), there = run(cuda(), false), again = run(cuda(), true);
            const double tolerance = fp8_tolerance(dtype, is_emulated());
            check_near(there.y, here.y, tolerance);
            if (activation != Activation::none && (dtype != DType::f32 || !is_emulated())) {
              // A rounded value may come out of an activation as the next code.
              check_near(there.dx, here.dx, 0.1);
              check_near(there.dweight, here.dweight, 0.1);
            } else {
              check_near(there.dx, here.dx, activation == Activation::none ? tolerance : 1e-2);
              check_near(there.dweight, here.dweight, activation == Activation::none ? tolerance : 1e-2);
            }
            check_near(there.dbias, here.dbias, tolerance);
            {
              // With a library: checks the work after its products.
              const emulated::LibraryScope library;
              check_near(run(cuda(), false).y, here.y, tolerance);
            }
            for (const auto& [a, b] : {std::pair(there.y, again.y), std::pair(there.dx, again.dx),
                                       std::pair(there.dweight, again.dweight)}) {
              CHECK(bytes_of(a) == bytes_of(b));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("cuda fp8: a product into some columns of a wider matrix", "[cuda][fp8]") {
  if (!has_cuda()) return;
  const Fp8Use use{{Fp8Scaling::current, e4m3, e5m2, 0}, {}, 0, false};
  const Tensor a = to_device(spread({20, 32}, 3, DType::f32, 1), cuda());
  const Tensor b = to_device(spread({24, 32}, 1, DType::f32, 2), cuda());
  const Fp8Operand x = fp8_encode(a, Fp8Role::x, use, {}), w = fp8_encode(b, Fp8Role::weight, use, {});
  const Tensor whole = Tensor::empty({20, 24}, DType::f32, cuda()), wide = full({20, 40}, 7, DType::f32, cuda());
  fp8_matmul_into({"product", x, w, whole, {}, {}});
  // Columns 8 to 24, written after 10 others.
  const Fp8Operand part{view::slice(w.values, 0, 8, 24), w.scale};
  fp8_matmul_into({"product", x, part, view::slice(wide, 1, 10, 26), {}, {}});
  const std::vector<float> all = to_host<float>(whole), got = to_host<float>(wide);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 20; ++i) {
    for (std::size_t j = 0; j < 40; ++j) {
      wrong += got[i * 40 + j] != (j >= 10 && j < 26 ? all[i * 24 + j - 2] : 7.0f);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda fp8: the bytes of turned copies", "[cuda][fp8]") {
  if (!has_cuda()) return;
  // 32 MiB hold 128 columns of 2^18 rows: three windows, the last one short.
  const memory::Stack stack = memory::make_resource(dry(cuda()));
  const ResourceScope scope(stack.top);
  const Fp8Format format{Fp8Scaling::current, e4m3, e5m2, 0};
  constexpr std::int64_t rows = std::int64_t{1} << 18;
  const Tensor x = Tensor::empty({rows, 304}, DType::bf16, dry(cuda()));
  const Tensor w = leaf(Tensor::empty({16, 304}, DType::bf16, dry(cuda())));
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = fp8_linear(x, w, {}, format, {}, true);
  }
  tape.backward(y, Tensor::empty(y.shape(), DType::bf16, dry(cuda())));
  // dy's transposed codes, a window of x's, and the workspace of cuBLASLt for a window.
  CHECK(stack.ledger->max_allocated(memory::Category::workspace) == 16 * rows + 128 * rows + 16 * 128 * 16);
}

TEST_CASE("cuda fp8: a dry run has the same events, and nothing turned is kept", "[cuda][fp8]") {
  if (!has_cuda()) return;
  for (const Fp8Format& format : formats()) {
    for (const Activation activation : {Activation::none, Activation::gelu_erf}) {
      CHECK(check_kept(format, activation, cuda()) == check_kept(format, activation, dry(cuda())));
    }
  }
}

TEST_CASE("cuda fp8: what cuBLASLt may be asked for", "[cuda][fp8]") {
  using namespace thimble::kernels;
  Fp8GemmArgs args;
  args.m = 33, args.n = 48, args.k = 64;
  args.a_row_stride = args.b_row_stride = 64, args.c_row_stride = 48;
  CHECK(is_library_fp8_gemm(args));
  CHECK(cuda_fp8_gemm_workspace_bytes(args) == 16 * 33 * 48);
  CHECK(fp8_kernels(dry(cuda())).gemm_workspace_bytes(args) == 16 * 33 * 48);
  if (fp8_cuda) CHECK(fp8_cuda->gemm_workspace_bytes == fp8_cuda_sizes.gemm_workspace_bytes);
  for (const auto& change : std::vector<std::function<void(Fp8GemmArgs&)>>{
           [](Fp8GemmArgs& a) { a.b_dtype = DType::f8e5m2; }, [](Fp8GemmArgs& a) { a.c_dtype = DType::f32; },
           [](Fp8GemmArgs& a) { a.activation = Activation::gelu_erf, a.pre_activation = &a; },
           [](Fp8GemmArgs& a) { a.b_row_stride = 80; }, [](Fp8GemmArgs& a) { a.bias = &a; }}) {
    Fp8GemmArgs other = args;
    change(other);
    CHECK(is_library_fp8_gemm(other));
  }
  for (const auto& change : std::vector<std::function<void(Fp8GemmArgs&)>>{
           [](Fp8GemmArgs& a) { a.a_dtype = a.b_dtype = DType::f8e5m2; }, [](Fp8GemmArgs& a) { a.k = 56; },
           [](Fp8GemmArgs& a) { a.n = 40; }, [](Fp8GemmArgs& a) { a.m = 0; }, [](Fp8GemmArgs& a) { a.k = 0; },
           [](Fp8GemmArgs& a) { a.a_row_stride = 72; }, [](Fp8GemmArgs& a) { a.b_row_stride = 65; },
           [](Fp8GemmArgs& a) { a.c_row_stride = 52; }, [](Fp8GemmArgs& a) { a.c_dtype = DType::f64; }}) {
    Fp8GemmArgs other = args;
    change(other);
    CHECK_FALSE(is_library_fp8_gemm(other));
    CHECK(cuda_fp8_gemm_workspace_bytes(other) == 0);
  }
}

TEST_CASE("cuda fp8: what is refused", "[cuda][fp8]") {
  const Fp8Use use{{Fp8Scaling::current, e4m3, e5m2, 0}, {}, 0, false};
  const Tensor x = zeros({16, 32});
  CHECK_THROWS_AS(fp8_encode_sides(x, Fp8Role::x, use, {}, true, true), DeviceError);
  const memory::Device device = dry(cuda());
  const auto codes = [&](const Shape& shape, DType dtype) {
    return Fp8Operand{Tensor::empty(shape, dtype, device), Tensor::empty({1}, DType::f32, device)};
  };
  const Tensor c = Tensor::empty({16, 48}, DType::bf16, device);
  CHECK_NOTHROW(fp8_matmul_into({"product", codes({16, 32}, e4m3), codes({48, 32}, e4m3), c, {}, {}}));
  CHECK_NOTHROW(fp8_matmul_into({"product", codes({16, 30}, e4m3), codes({48, 32}, e5m2), c, {}, {}}));
  CHECK_THROWS_AS(fp8_matmul_into({"product", codes({16, 16}, e4m3), codes({48, 32}, e4m3), c, {}, {}}), ShapeError);
  CHECK_THROWS_AS(fp8_matmul_into({"product", codes({16, 32}, e4m3), codes({32, 32}, e4m3), c, {}, {}}), ShapeError);
  CHECK_THROWS_AS(fp8_matmul_into({"product", codes({16, 32}, DType::i8), codes({48, 32}, e4m3), c, {}, {}}),
                  DTypeError);
  CHECK_THROWS_AS(fp8_matmul_into({"product",
                                   codes({16, 32}, e4m3),
                                   codes({48, 32}, e4m3),
                                   Tensor::empty({16, 48}, DType::f64, device),
                                   {},
                                   {}}),
                  DTypeError);
  CHECK_THROWS_AS(
      fp8_matmul_into(
          {"product", codes({16, 32}, e4m3), codes({48, 32}, e4m3), Tensor::empty({16, 48}, DType::bf16), {}, {}}),
      DeviceError);
  const Tensor turned = Tensor::empty({8, 16}, e4m3, device), plain = Tensor::empty({16, 32}, e4m3, device);
  CHECK_NOTHROW(fp8_turn_into(turned, plain, 4, 12));
  CHECK_THROWS_AS(fp8_turn_into(turned, plain, 28, 36), ShapeError);
  CHECK_THROWS_AS(fp8_turn_into(turned, plain, 4, 11), ShapeError);
  CHECK_THROWS_AS(fp8_turn_into(Tensor::empty({8, 16}, e5m2, device), plain, 4, 12), DTypeError);
  CHECK_THROWS_AS(fp8_turn_into(Tensor::empty({8, 16}, e4m3), Tensor::empty({16, 32}, e4m3), 4, 12), DeviceError);
}

// ---- FP8 training on a CUDA device: on a GPU if there is one; in a build without CUDA on tests/emulated.

using files_test::read_text_file;
using files_test::TemporaryFolder;
using thimble::testing::has_cuda;
using trained_test::run;
using trained_test::Run;

namespace {

models::RunOptions tiny(const char* precision, memory::Device device) {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 12;
  models::set_precision(options.setup, precision);
  options.data = "synthetic";
  options.steps = 4;
  options.eval_batches = 1;
  options.warmup = 0;
  options.device = device;
  return options;
}

}  // namespace

TEST_CASE("cuda fp8 train: losses near the CPU's, predicted bytes, a run that is cut goes on bit by bit",
          "[cuda][fp8]") {
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  for (const char* precision : {"fp8", "fp8-current", "fp8-block"}) {
    INFO(precision);
    const Run expected = run(tiny(precision, cpu));
    models::RunOptions whole = tiny(precision, cuda());
    whole.save = folder / "whole";
    const Run got = run(whole);
    CHECK(got.report.predicted_peak_bytes == got.report.measured_peak_bytes);
    REQUIRE(got.losses.size() == expected.losses.size());
    for (std::size_t i = 0; i < got.losses.size(); ++i) {
      CHECK(got.losses[i] == Approx(expected.losses[i]).epsilon(2e-2));
    }
    CHECK(got.report.evaluation->loss == Approx(expected.report.evaluation->loss).epsilon(2e-2));

    models::RunOptions first = tiny(precision, cuda()), second = tiny(precision, cuda());
    first.steps = 2;
    first.save = folder / "half";
    run(first);
    second.resume = first.save;
    second.save = folder / "rest";
    const Run rest = run(second);
    REQUIRE(rest.losses.size() == 2);
    CHECK(rest.losses[1] == got.losses[3]);
    CHECK(read_text_file(second.save) == read_text_file(whole.save));  // parameters, moments, state of scaling

    // Captured steps: the number of the step, which places the amax in the history, changes from replay to replay.
    models::RunOptions recorded = tiny(precision, cuda());
    recorded.captures_steps = true;
    recorded.save = folder / "recorded";
    const Run replayed = run(recorded);
    CHECK(replayed.report.captured_launches > 0);
    CHECK(replayed.losses == got.losses);
    CHECK(read_text_file(recorded.save) == read_text_file(whole.save));
    CHECK(replayed.report.predicted_peak_bytes == replayed.report.measured_peak_bytes);
  }
}

TEST_CASE("cuda fp8 train: a budget is kept by recomputation, with the same losses", "[cuda][fp8][slow]") {
  if (!has_cuda()) return;
  for (const char* precision : {"fp8", "fp8-block"}) {
    INFO(precision);
    models::RunOptions options = tiny(precision, cuda());
    options.setup.sizes.layers = 6, options.setup.sizes.width = 32, options.setup.sizes.sequence = 128;
    options.setup.batch = 4;
    options.steps = 2;
    const Run free = run(options);
    options.budget_bytes = free.report.measured_peak_bytes - (std::size_t{2} << 20);
    const Run planned = run(options);
    CHECK(planned.report.measured_peak_bytes <= options.budget_bytes);
    CHECK(planned.report.predicted_peak_bytes == planned.report.measured_peak_bytes);
    CHECK(planned.losses == free.losses);
  }
}
