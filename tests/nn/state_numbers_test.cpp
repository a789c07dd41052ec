// State with impossible numbers: kernels stay within it, operators refuse invalid tensors, and loading such files fails
// before anything changes.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/fp8.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"
#include "support/optim8.h"
#include "support/tensor_files.h"

namespace state_numbers_test {

using namespace thimble;
using files_test::error_of;

constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
const std::vector<std::int64_t> counts{0, 1, 5, -1, -2, -5, least, least + 1, most, most - 1};
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();

std::vector<std::byte> bytes_of(const Tensor& t) {
  const Tensor here = to_device(t.detach(), cpu);
  const memory::Pin pin(here);
  const auto* const first = static_cast<const std::byte*>(pin.data());
  return {first, first + here.bytes()};
}

const Fp8Format delayed{Fp8Scaling::delayed, DType::f8e4m3, DType::f8e5m2, 0};

/// Bytes of everything that a checkpoint holds.
std::vector<std::vector<std::byte>> all_of(const nn::Module& module, const optim::Optimizer& optimizer) {
  std::vector<std::vector<std::byte>> all;
  for (const auto& p : module.parameters()) all.push_back(bytes_of(p.tensor));
  for (const auto& b : module.buffers()) all.push_back(bytes_of(b.tensor));
  for (const auto& s : optimizer.state()) all.push_back(bytes_of(s.tensor));
  return all;
}

}  // namespace state_numbers_test

using namespace state_numbers_test;

TEST_CASE("fp8 state: whatever the counts, the place is inside of the ring", "[fp8]") {
  for (const std::int64_t length : {1, 3, 16, 1024}) {
    for (const std::int64_t recorded : counts) {
      for (const std::int64_t last : counts) {
        for (const std::int64_t step : counts) {
          std::int64_t steps[2] = {recorded, last};
          const kernels::Fp8Place place = kernels::fp8_place(steps, step, length);
          CHECK((place.index >= 0 && place.index < length));
          if (recorded >= 0 && recorded < most && place.is_new) CHECK(place.index == recorded % length);
          if (recorded > 0 && !place.is_new) CHECK(place.index == (recorded - 1) % length);
        }
      }
    }
  }
  // The kernel writes one number of the ring and nothing around it.
  constexpr std::int64_t length = 3, around = 8;
  const float values[4] = {1, -7, 2, 3};
  for (const std::int64_t recorded : counts) {
    std::vector<float> memory(2 * around + length, -1.0f);
    std::fill_n(memory.begin() + around, length, 0.0f);
    float scale = 0, next = 0;
    std::int64_t steps[2] = {recorded, 0};
    kernels::Fp8ScaleArgs args;
    args.values = values, args.count = 4, args.dtype = DType::f32, args.scale = &scale;
    args.history = memory.data() + around, args.length = length, args.next_scale = &next, args.steps = steps;
    args.step = 41;
    kernels::fp8_kernels(cpu).scale(args);
    INFO(recorded);
    CHECK(std::count(memory.begin(), memory.end(), -1.0f) == 2 * around);
    CHECK(std::count(memory.begin() + around, memory.end() - around, 7.0f) == 1);
    CHECK(next == kernels::fp8_scale_from(7, DType::f8e4m3, 0));
  }
}

TEST_CASE("fp8 state: a CUDA device has the CPU's bits with any counts", "[fp8]") {
  if (!thimble::testing::has_cuda()) return;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  const Tensor x = randn({4, 16});
  for (const std::int64_t recorded : counts) {
    std::vector<std::vector<std::byte>> seen[2];
    for (const memory::Device device : {cpu, cuda()}) {
      const Fp8State state{to_device(zeros({3, 5}), device), to_device(zeros({3}), device),
                           to_device(from_host(std::vector<std::int64_t>(6, recorded), {3, 2}), device)};
      const Fp8Use use{delayed, state, 7, true};
      fp8_encode(to_device(x, device), Fp8Role::weight, use, state.scale);
      for (const Tensor* t : {&state.amax, &state.scale, &state.steps}) {
        seen[device.is_cuda() ? 1 : 0].push_back(bytes_of(*t));
      }
    }
    INFO(recorded);
    CHECK(seen[0] == seen[1]);
  }
}

TEST_CASE("fp8 state: tensors that are no state are refused", "[fp8]") {
  const Tensor x = zeros({16, 32}), weight = zeros({16, 32});
  const auto error = [&](const Fp8State& state) {
    const std::string of_linear = error_of([&] { fp8_linear(x, weight, {}, delayed, state); });
    const std::string of_encode = error_of([&] { fp8_encode(x, Fp8Role::x, {delayed, state, 0, true}, {}); });
    CHECK((of_encode == "no error") == (of_linear == "no error"));
    return of_linear;
  };
  const Fp8State good = make_fp8_state(16, cpu);
  CHECK(error(good) == "no error");
  const auto with = [&](auto&& change) {
    Fp8State state = good;
    change(state);
    return error(state);
  };
  const std::string begin = "fp8_linear: the state's ";
  for (const Shape& shape : {Shape{1, 2}, Shape{3}, Shape{16, 3}, Shape{3, 0}, Shape{3, 1025}}) {
    CHECK(with([&](Fp8State& s) { s.amax = zeros(shape); }) ==
          "ShapeError " + begin + "amax is " + describe(zeros(shape)) + "; expected dense (3, 1 to 1024)");
  }
  CHECK(with([](Fp8State& s) { s.amax = zeros({3, 16}, DType::f64); }).starts_with("DTypeError " + begin + "amax is "));
  CHECK(with([](Fp8State& s) { s.steps = zeros({3}, DType::i64); }).starts_with("ShapeError " + begin + "steps is "));
  CHECK(with([](Fp8State& s) { s.steps = zeros({3, 2}, DType::i32); }).ends_with("; expected i64"));
  CHECK(with([](Fp8State& s) { s.steps = Tensor(); }).starts_with("ShapeError " + begin + "steps is "));
  CHECK(with([](Fp8State& s) {
          s.steps = zeros({3, 2}, DType::i64, dry(cpu));
        }).starts_with("DeviceError " + begin + "steps is "));
  CHECK(with([](Fp8State& s) { s.scale = zeros({2}); }) != "no error");
  CHECK(with([](Fp8State& s) { s.scale = zeros({3}, DType::f64); }) != "no error");
}

TEST_CASE("fp8 state: a file with numbers that no training makes is refused", "[fp8]") {
  const files_test::TemporaryFolder folder;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  nn::Linear model(32, 16, {.fp8 = nn::Fp8Recipe{}});
  optim::Sgd optimizer(model.trainable(), {});
  const Tensor x = randn({16, 32});
  nn::training_step(optimizer, [&](std::int64_t) { return mean(square(model(x))); });
  nn::save_checkpoint(folder / "good", model, optimizer, generator);
  nn::save_weights(model, folder / "weights");
  const auto before = all_of(model, optimizer);
  const auto check = [&](const std::string& name, std::size_t at, auto value, const std::string& error) {
    files_test::rewrite_element(folder / "good", folder / "bad", "model." + name, at, value);
    files_test::rewrite_element(folder / "weights", folder / "bad_weights", name, at, value);
    const std::string of_state = error_of([&] { nn::load_checkpoint(folder / "bad", model, optimizer, generator); });
    const std::string of_weights = error_of([&] { nn::load_weights(model, folder / "bad_weights"); });
    const std::string end = error.empty() ? "no error" : ": tensor 'model." + name + "' has " + error;
    CHECK(of_state.ends_with(end));
    CHECK(of_weights.ends_with(error.empty() ? "no error" : ": tensor '" + name + "' has " + error));
    if (error.empty()) {
      nn::load_checkpoint(folder / "good", model, optimizer, generator);
    } else {
      CHECK(of_state.starts_with("ValueError load_checkpoint: " + (folder / "bad")));
    }
    CHECK(all_of(model, optimizer) == before);
  };
  const std::string numbers = "; expected finite numbers >= 0", scales = "; expected 0 and 2^-60 to 2^100";
  check("fp8_steps", 2, std::int64_t{-5}, "-5 at (1, 0); expected counts >= 0");
  check("fp8_steps", 5, std::int64_t{-1}, "-1 at (2, 1); expected counts >= 0");
  check("fp8_steps", 0, most, "");
  check("fp8_amax", 17, -1.0f, "-1 at (1, 1)" + numbers);
  check("fp8_amax", 0, not_a_number, "nan at (0, 0)" + numbers);
  check("fp8_amax", 47, infinity, "inf at (2, 15)" + numbers);
  check("fp8_amax", 47, std::numeric_limits<float>::denorm_min(), "");
  check("fp8_scale", 2, -1.0f, "-1 at (2)" + scales);
  check("fp8_scale", 0, not_a_number, "nan at (0)" + scales);
  check("fp8_scale", 1, 1e-30f, "1e-30 at (1)" + scales);
  check("fp8_scale", 1, 0x1p101f, "2.5353e+30 at (1)" + scales);
  check("fp8_scale", 1, 0x1p100f, "");
  check("fp8_scale", 1, 0x1p-60f, "");
  check("fp8_scale", 1, 0.0f, "");
}

TEST_CASE("state numbers: a second moment below zero, or none, is refused", "[optim]") {
  const files_test::TemporaryFolder folder;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  for (const auto& [is_factored, dtype] :
       {std::pair{false, DType::f32}, {true, DType::f32}, {false, DType::bf16}, {false, DType::f64}}) {  // of moments
    const DType own = dtype == DType::f64 ? dtype : DType::f32;
    nn::Linear model(288, 256, {.dtype = own});  // state larger than one block of a file
    std::unique_ptr<optim::Optimizer> optimizer;
    if (is_factored) {
      optimizer = std::make_unique<optim::Adafactor>(model.trainable(), optim::AdafactorOptions{});
    } else {
      optim::AdamOptions options;
      if (dtype == DType::bf16) options.moments = {.dtype = dtype, .smallest = 1};
      optimizer = std::make_unique<optim::Adam>(model.trainable(), options);
    }
    const Tensor x = randn({16, 288}, own);
    nn::training_step(*optimizer, [&](std::int64_t) { return mean(square(model(x))); });
    nn::save_checkpoint(folder / "good", model, *optimizer, generator);
    const auto before = all_of(model, *optimizer);
    int checked = 0;
    for (const optim::Named& s : optimizer->state()) {
      const std::string kind = s.name.substr(s.name.rfind('.') + 1);
      const bool is_square = kind == "second_moment" || kind == "row_moment" || kind == "column_moment";
      checked += is_square ? 1 : 0;
      const auto last = static_cast<std::size_t>(s.tensor.elements()) - 1;
      std::string place;
      for (const std::int64_t size : s.tensor.shape()) place += (place.empty() ? "" : ", ") + std::to_string(size - 1);
      REQUIRE(s.tensor.dtype() == dtype);
      const auto put = [&](auto minus_one) {
        files_test::rewrite_element(folder / "good", folder / "bad", "optimizer." + s.name, last, minus_one);
      };
      dtype == DType::f64 ? put(-1.0) : dtype == DType::f32 ? put(-1.0f) : put(std::uint16_t{0xBF80});
      const std::string error = error_of([&] { nn::load_checkpoint(folder / "bad", model, *optimizer, generator); });
      INFO(s.name << ": " << error);
      if (is_square) {
        CHECK(error.starts_with("ValueError load_checkpoint: "));
        CHECK(error.ends_with("tensor 'optimizer." + s.name + "' has -1 at (" + place +
                              "); expected finite numbers >= 0"));
        CHECK(all_of(model, *optimizer) == before);
      } else {
        CHECK(error == "no error");  // a first moment may be negative
        nn::load_checkpoint(folder / "good", model, *optimizer, generator);
      }
    }
    CHECK(checked >= 2);
  }
}

TEST_CASE("state numbers: what is not finite is not written over a checkpoint", "[optim]") {
  const files_test::TemporaryFolder folder;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  nn::Linear model(4, 2);
  optim::Adam optimizer(model.trainable(), {});
  nn::save_checkpoint(folder / "c", model, optimizer, generator);
  const std::string good = files_test::read_text_file(folder / "c");
  for (const float bad : {not_a_number, infinity, -infinity}) {
    for (const Tensor& t : {Tensor(model.weight), optimizer.state()[1].tensor}) {
      fill(t, bad);
      CHECK_THROWS_AS(nn::save_checkpoint(folder / "c", model, optimizer, generator), nn::NotFiniteError);
      CHECK(files_test::read_text_file(folder / "c") == good);
      CHECK(folder.entries() == 1);
      CHECK_NOTHROW(nn::save_weights(model, folder / "w"));  // bare weights are written unchecked
      std::filesystem::remove(folder / "w");
      fill(t, 0.5);
    }
  }
  CHECK_NOTHROW(nn::save_checkpoint(folder / "c", model, optimizer, generator));
}

TEST_CASE("optim8: a file whose scales of blocks are no magnitudes is refused", "[optim8]") {
  const files_test::TemporaryFolder folder;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  for (const char* const kind : {"adam8", "adamw8", "momentum8"}) {
    nn::Linear model(40, 16);
    std::unique_ptr<optim::Optimizer> optimizer;
    if (std::string(kind) == "momentum8") {
      optimizer = std::make_unique<optim::Sgd>(model.trainable(),
                                               optim::SgdOptions{.momentum = 0.9, .moments = optim8_test::narrow()});
    } else {
      optim::AdamOptions options;
      options.is_decoupled = std::string(kind) == "adamw8";
      options.moments = optim8_test::narrow();
      optimizer = std::make_unique<optim::Adam>(model.trainable(), options);
    }
    REQUIRE(std::string(optimizer->name()) == kind);
    const Tensor x = randn({16, 40});
    nn::training_step(*optimizer, [&](std::int64_t) { return mean(square(model(x))); });
    nn::save_checkpoint(folder / "good", model, *optimizer, generator);
    const auto before = all_of(model, *optimizer);
    std::size_t scales = 0;
    for (const optim::Named& s : optimizer->state()) {
      if (!s.name.ends_with("_scale")) continue;
      ++scales;
      for (const auto& [value, text] :
           {std::pair{-1.0f, "-1"}, std::pair{not_a_number, "nan"}, std::pair{infinity, "inf"}}) {
        files_test::rewrite_element(folder / "good", folder / "bad", "optimizer." + s.name, 2, value);
        CHECK(error_of([&] { nn::load_checkpoint(folder / "bad", model, *optimizer, generator); }) ==
              "ValueError load_checkpoint: " + (folder / "bad") + ": tensor 'optimizer." + s.name + "' has " + text +
                  " at (2); expected finite numbers >= 0");
        CHECK(all_of(model, *optimizer) == before);
      }
      files_test::rewrite_element(folder / "good", folder / "bad", "optimizer." + s.name, 2, 0.0f);
      CHECK_NOTHROW(nn::load_checkpoint(folder / "bad", model, *optimizer, generator));
      nn::load_checkpoint(folder / "good", model, *optimizer, generator);
    }
    CHECK(scales == (std::string(kind) == "momentum8" ? 1 : 2));
  }
}
