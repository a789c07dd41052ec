// The state of delayed scaling against a reference, step by step: which values it records, and when.

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/fp8.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/fp8_twin.h"
#include "support/tensor_files.h"

using namespace thimble;
using namespace thimble::fp8_test;

namespace {

const Fp8Format delayed{Fp8Scaling::delayed, DType::f8e4m3, DType::f8e5m2, 1};

/// The reference state.
struct Twin {
  std::vector<float> history[3];
  float scale[3] = {0, 0, 0};
  std::int64_t recorded[3] = {0, 0, 0};
  explicit Twin(std::size_t length) {
    for (auto& h : history) h.assign(length, 0);
  }
  void record(int role, float amax) {
    history[role][static_cast<std::size_t>(recorded[role]++) % history[role].size()] = amax;
    const float most = *std::max_element(history[role].begin(), history[role].end());
    const DType dtype = role == 2 ? DType::f8e5m2 : DType::f8e4m3;
    scale[role] = most > 0 ? kernels::fp8_scale_from(most, dtype, delayed.margin) : 0;
  }
};

void check(const Fp8State& state, const Twin& twin) {
  const std::vector<float> amax = to_host<float>(state.amax), scale = to_host<float>(state.scale);
  const std::vector<std::int64_t> steps = to_host<std::int64_t>(state.steps);
  const std::size_t length = twin.history[0].size();
  for (std::size_t role = 0; role < 3; ++role) {
    INFO("row " << role);
    CHECK(std::vector<float>(amax.begin() + static_cast<std::ptrdiff_t>(role * length),
                             amax.begin() + static_cast<std::ptrdiff_t>((role + 1) * length)) == twin.history[role]);
    CHECK(scale[role] == twin.scale[role]);
    CHECK(steps[2 * role] == twin.recorded[role]);
  }
}

Tensor scaled(const Tensor& t, double factor) { return mul(t, factor); }

struct Layer {
  Tensor x = spread({16, 32}, 1, DType::f32, 1), dy = spread({16, 16}, 1, DType::f32, 2);
  Tensor weight = spread({16, 32}, 1, DType::f32, 3);
  Fp8State state;
  explicit Layer(std::int64_t history) : state(make_fp8_state(history, cpu)) { weight.require_grad(); }
  float amax(const Tensor& t, double factor) const {
    const std::vector<float> values = to_host<float>(scaled(t, factor));
    float most = 0;
    for (const float v : values) most = std::max(most, std::fabs(v));
    return most;
  }
  /// Forward of x times x_factor, and backward of dy times dy_factor.
  Tensor run(double x_factor, double dy_factor, bool records = true, bool recomputes = false) {
    weight.grad() = Tensor();
    Tensor in = scaled(x, x_factor);
    in.require_grad();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      const auto call = [&](const Tensor& t) { return fp8_linear(t, weight, {}, delayed, state, records); };
      y = recomputes ? checkpoint([&](const Tensor& t) { return square(call(mul(t, 1.0))); }, in) : call(in);
    }
    tape.backward(y, scaled(dy, dy_factor));
    return in.grad();
  }
};

std::vector<std::byte> bytes_of(const Tensor& t) {
  const memory::Pin pin(t);
  const auto* const first = static_cast<const std::byte*>(pin.data());
  return {first, first + t.bytes()};
}

std::vector<std::byte> all_of(const Fp8State& s) {
  std::vector<std::byte> all = bytes_of(s.amax);
  for (const Tensor* t : {&s.scale, &s.steps}) {
    const std::vector<std::byte> more = bytes_of(*t);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace

TEST_CASE("fp8 state: a ring of steps, scales of those before", "[fp8]") {
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  Layer layer(3);
  Twin twin(3);
  const double factors[] = {1, 4, 0.5, 0.25, 0.125, 0.125, 2};
  for (const double factor : factors) {
    // This step computes with the scale from before it; values of x beyond the scale saturate.
    const Fp8Use use{delayed, layer.state, 0, false};
    const Tensor in = scaled(layer.x, factor);
    const Fp8Operand codes = fp8_encode(in, Fp8Role::x, use, layer.state.scale);
    const float own = kernels::fp8_scale_from(layer.amax(layer.x, factor), DType::f8e4m3, 1);
    CHECK(to_host<float>(codes.scale)[0] == (twin.scale[0] == 0 ? own : twin.scale[0]));
    {
      tape::Transaction step;
      layer.run(factor, 1 / factor);
      check(layer.state, twin);  // nothing before the commit
      step.commit();
    }
    twin.record(0, layer.amax(layer.x, factor));
    twin.record(1, layer.amax(layer.weight.detach(), 1));
    twin.record(2, layer.amax(layer.dy, 1 / factor));
    check(layer.state, twin);
  }
}

TEST_CASE("fp8 state: passes of one step share a place", "[fp8]") {
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  Layer layer(4);
  Twin twin(4);
  tape::Transaction step;
  for (const double factor : {1.0, 3.0, 2.0}) layer.run(factor, factor);
  step.commit();
  twin.record(0, layer.amax(layer.x, 3));
  twin.record(1, layer.amax(layer.weight.detach(), 1));
  twin.record(2, layer.amax(layer.dy, 3));
  check(layer.state, twin);
}

TEST_CASE("fp8 state: what records nothing", "[fp8]") {
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  Layer layer(2);
  {
    tape::Transaction step;
    layer.run(1, 1);
    step.commit();
  }
  const std::vector<std::byte> before = all_of(layer.state);
  layer.run(5, 5, false);  // evaluation
  CHECK(all_of(layer.state) == before);
  {
    tape::Transaction dropped;  // a step that failed
    layer.run(5, 5);
  }
  CHECK(all_of(layer.state) == before);
  {
    tape::Transaction skipped;  // a step that a loss scaler skipped
    layer.run(5, 5);
    skipped.drop_state();
    skipped.commit();
  }
  CHECK(all_of(layer.state) == before);
  // Neither x nor dy is finite, so only the weight is recorded.
  for (const double factor : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    tape::Transaction step;
    layer.run(factor, factor);
    step.commit();
    const std::vector<std::int64_t> steps = to_host<std::int64_t>(layer.state.steps);
    CHECK(steps[0] == 1);
    CHECK(steps[2] > 1);
    CHECK(steps[4] == 1);
    CHECK(to_host<float>(layer.state.amax)[0] == layer.amax(layer.x, 1));
  }
}

TEST_CASE("fp8 state: zeros leave the scale to the next tensor", "[fp8]") {
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  Layer layer(4);
  const auto step_of = [&](double factor) {
    tape::Transaction step;
    const Tensor dx = layer.run(1, factor);
    step.commit();
    return to_host<float>(dx);
  };
  for (const float v : step_of(0)) CHECK(v == 0);
  CHECK(to_host<float>(layer.state.scale)[2] == 0.0f);
  // A gradient of 1e-9 would round to 0 under a scale of 1.
  const std::vector<float> dx = step_of(1e-9);
  CHECK(std::any_of(dx.begin(), dx.end(), [](float v) { return v != 0; }));
  CHECK(to_host<float>(layer.state.scale)[2] > 0.0f);
}

TEST_CASE("fp8 state: a recompute uses the scales of its forward and records nothing", "[fp8]") {
  for (const bool has_transaction : {true, false}) {
    INFO("in a transaction: " << has_transaction);
    std::vector<std::vector<std::byte>> seen[2];
    for (const bool recomputes : {false, true}) {
      RandomGenerator generator(1);
      const GeneratorScope scope(generator);
      Layer layer(2);
      for (const double factor : {1.0, 8.0, 0.5}) {
        std::unique_ptr<tape::Transaction> step = has_transaction ? std::make_unique<tape::Transaction>() : nullptr;
        Tensor dx;
        if (recomputes) {
          dx = layer.run(factor, 1, true, true);
        } else {
          // The same program without a segment.
          layer.weight.grad() = Tensor();
          Tensor in = scaled(layer.x, factor);
          in.require_grad();
          Tape tape;
          Tensor y;
          {
            const Recording on(tape);
            y = square(fp8_linear(mul(in, 1.0), layer.weight, {}, delayed, layer.state));
          }
          tape.backward(y, layer.dy);
          dx = in.grad();
        }
        if (step) step->commit();
        generator.set_step(generator.step() + (has_transaction ? 0 : 1));
        auto& list = seen[recomputes ? 1 : 0];
        list.push_back(bytes_of(dx));
        list.push_back(bytes_of(layer.weight.grad()));
        list.push_back(all_of(layer.state));
      }
    }
    CHECK(seen[0] == seen[1]);
  }
}

// ---- Checkpoints name the recipe for FP8: several recipes have the same tensors, and a run must not go on under
// another.

namespace {

using files_test::error_of;

struct Training {
  std::unique_ptr<models::Model> model;
  optim::Adam optimizer;
  RandomGenerator generator{3};

  explicit Training(const char* policy, const std::function<void(nn::Fp8Recipe&)>& change = {})
      : model(make(policy, change)), optimizer(model->trainable(), {.narrow = optim::NarrowUpdate::master}) {}
  static std::unique_ptr<models::Model> make(const char* policy, const std::function<void(nn::Fp8Recipe&)>& change) {
    nn::TensorOptions on = nn::precision(policy).on(cpu);
    if (change) change(*on.fp8);
    return models::make_model("char-gpt", {.vocabulary = 19, .sequence = 4, .layers = 1, .heads = 2, .width = 16}, on);
  }
  void save(const std::string& path) const { nn::save_checkpoint(path, *model, optimizer, generator); }
  std::string load(const std::string& path) {
    return error_of([&] { nn::load_checkpoint(path, *model, optimizer, generator); });
  }
};

}  // namespace

TEST_CASE("fp8 recipes: a checkpoint of another one is refused by name", "[fp8]") {
  const files_test::TemporaryFolder folder;
  std::vector<std::pair<std::string, std::unique_ptr<Training>>> same;  // recipes with equal tensors
  const auto add = [&](const char* text, const char* policy, const std::function<void(nn::Fp8Recipe&)>& change = {}) {
    same.emplace_back(text, std::make_unique<Training>(policy, change));
    CHECK(nn::fp8_recipe_text(*same.back().second->model) == text);
  };
  add("none", "bf16");
  add("current, f8e4m3 forward, f8e5m2 gradients, margin 0", "fp8-current");
  add("current, f8e4m3 forward, f8e5m2 gradients, margin 2", "fp8-current", [](nn::Fp8Recipe& r) { r.margin = 2; });
  add("current, f8e4m3 forward, f8e4m3 gradients, margin 0", "fp8-current", [](nn::Fp8Recipe& r) { r.hybrid = false; });
  add("block, f8e4m3 forward, f8e4m3 gradients, margin 0", "fp8-block");
  for (const auto& [text, from] : same) {
    const std::string path = folder / "c";
    from->save(path);
    CHECK(SafetensorsReader(path).header().metadata.at("thimble.fp8") == text);
    for (const auto& [other, to] : same) {
      const std::string error = to->load(path);
      CHECK(error == (other == text ? "no error"
                                    : "ValueError load_checkpoint: " + path + ": the recipe for FP8 is '" + text +
                                          "' in the file; the model's is '" + other + "'"));
    }
  }
  Training hybrid("fp8"), plain("fp8", [](nn::Fp8Recipe&r) { r.hybrid = false; });
  hybrid.save(folder / "delayed");
  CHECK(hybrid.load(folder / "delayed") == "no error");
  CHECK(plain.load(folder / "delayed").find("'delayed, f8e4m3 forward, f8e5m2 gradients, margin 0' in the file") !=
        std::string::npos);
}

TEST_CASE("fp8 recipes: files from before they were named load", "[fp8]") {
  const files_test::TemporaryFolder folder;
  Training training("fp8-current");
  training.save(folder / "new");
  const auto rewrite = [&](const std::function<void(std::map<std::string, std::string>&)>& change) {
    const SafetensorsReader file(folder / "new");
    std::map<std::string, std::string> metadata = file.header().metadata;
    change(metadata);
    files_test::write_zeros(folder / "old", file.header().tensors, metadata);
  };
  rewrite([](auto& metadata) { CHECK(metadata.erase("thimble.fp8") == 1); });
  CHECK(training.load(folder / "old") == "no error");
  rewrite([](auto& metadata) { metadata["thimble.fp8"] = ""; });
  CHECK(training.load(folder / "old").ends_with("the metadata's thimble.fp8 is empty"));
}
