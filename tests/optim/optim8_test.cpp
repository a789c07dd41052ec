// Updates of optimizers with narrow state against plain loops.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/theory.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/layers.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/kernel_data.h"
#include "support/near.h"
#include "support/optim8.h"
#include "support/store_tier.h"

using namespace optim8_test;

namespace {

// A moment in a plain loop, rounded by the library's quantization after every step.
struct PlainMoment {
  PlainMoment(const Shape& shape, DType dtype, bool is_signed)
      : dtype_(dtype),
        how_{DType::u8, ScaleBlocks::flat(256), DType::f32, is_signed},
        kept_(dtype == DType::u8 ? quantize(zeros(shape), how_) : zeros(shape, dtype)) {}
  std::vector<float> values() const { return to_host<float>(dtype_ == DType::u8 ? dequantize(kept_, how_) : kept_); }
  void set(const std::vector<float>& values) {
    const Tensor t = from_host(values, kept_.shape());
    if (dtype_ != DType::u8) return void(kept_ = to_dtype(t, dtype_));
    kept_ = quantize(t, how_);
    if (how_.is_signed) return;
    const memory::WritePin pin(kept_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto& code = static_cast<std::uint8_t*>(pin.data())[i];
      if (code == 0 && values[i] > 0) code = 1;
    }
  }

 private:
  DType dtype_;
  Quantization how_;
  Tensor kept_;
};

constexpr float b1 = 0.8f, b2 = 0.95f;

// The update of Adam with decoupled decay, in f32 in the order of its formula.
void plain_adamw(std::vector<float>& p, const std::vector<float>& g, PlainMoment& first, PlainMoment& second,
                 int step) {
  std::vector<float> m = first.values(), v = second.values();
  const auto r1 = static_cast<float>(1 - 0.8), r2 = static_cast<float>(1 - 0.95);
  const auto shrink = static_cast<float>(1 - 0.02 * 0.1);
  const auto rate = static_cast<float>(0.02 / (1 - std::pow(0.8, step)));
  const auto correction = static_cast<float>(1 / std::sqrt(1 - std::pow(0.95, step)));
  for (std::size_t i = 0; i < p.size(); ++i) {
    m[i] = b1 * m[i] + r1 * g[i];
    v[i] = b2 * v[i] + r2 * (g[i] * g[i]);
    p[i] = p[i] * shrink - rate * (m[i] / (std::sqrt(v[i]) * correction + 1e-6f));
  }
  first.set(m), second.set(v);
}

}  // namespace

TEST_CASE("optim8: ten steps are those of a plain loop, in every variant and on any number of threads", "[optim8]") {
  const Restore restore;
  for (const DType state : {DType::u8, DType::bf16}) {
    for (const kernels::Isa isa : kernel_test::supported()) {
      kernels::set_isa(isa);
      set_thread_count(isa == kernels::Isa::avx2 ? 3 : 1);
      const std::vector<Named> list = make_parameters(), sgd_list = make_parameters();
      Adam adam = make_adam(list, adam_options, narrow(state));
      Sgd momentum = make_momentum(sgd_list, {0.02, 0.9, 0.1, true}, narrow(state));
      std::vector<std::vector<float>> p = values(list), q = values(sgd_list);
      std::vector<PlainMoment> first, second, buffer;
      for (const Shape& shape : shapes) {
        const DType dtype = shape.elements() < 100 ? DType::f32 : state;
        first.emplace_back(shape, dtype, true), second.emplace_back(shape, dtype, false);
        buffer.emplace_back(shape, dtype, true);
      }
      for (int step = 1; step <= 10; ++step) {
        set_gradients(list, step), set_gradients(sgd_list, step);
        adam.step(), momentum.step();
        for (std::size_t k = 0; k < list.size(); ++k) {
          const std::vector<float> g = to_host<float>(list[k].tensor.grad());
          plain_adamw(p[k], g, first[k], second[k], step);
          std::vector<float> m = buffer[k].values();
          for (std::size_t i = 0; i < g.size(); ++i) {
            const float d = g[i] + 0.1f * q[k][i];
            m[i] = 0.9f * m[i] + d;
            q[k][i] -= 0.02f * (d + 0.9f * m[i]);
          }
          buffer[k].set(m);
        }
      }
      CHECK(values(list) == p);
      CHECK(values(sgd_list) == q);
      CHECK(adam.kept_full() == std::vector<std::string>{"p2"});
      CHECK(momentum.kept_full() == std::vector<std::string>{"p2"});
    }
  }
}

TEST_CASE("optim8: updates stay near those of f32 state", "[optim8]") {
  // A block of similar magnitudes, like real gradients: the state's error is a few per cent, and so is the update's.
  RandomGenerator generator(5);
  const GeneratorScope random(generator);
  for (const DType state : {DType::u8, DType::bf16}) {
    Tensor a = zeros({4096}), b = zeros({4096});
    a.require_grad(), b.require_grad();
    Adam narrow_one = make_adam({{"p", a}}, {0.01, 0.9, 0.99}, {state, 0, {}});
    Adam full({{"p", b}}, {0.01, 0.9, 0.99});
    for (int step = 0; step < 30; ++step) {
      const Tensor g = randn({4096});
      a.grad() = g, b.grad() = clone(g);
      narrow_one.step(), full.step();
    }
    const auto x = to_host<double>(a), y = to_host<double>(b);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) difference += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
    INFO(to_string(state) << " " << std::sqrt(difference / size));
    CHECK(std::sqrt(difference / size) < (state == DType::u8 ? 0.05 : 0.02));
    CHECK(difference > 0);
  }
}

TEST_CASE("optim8: a second moment is never rounded to zero", "[optim8]") {
  Tensor p = zeros({256});
  p.require_grad();
  Adam adam = make_adam({{"p", p}}, {0.01, 0.9, 0.9, 1e-12}, {DType::u8, 0, {}});
  std::vector<float> g(256, 1e-6f);  // its square is 1e-12 of the block's largest
  g[0] = 1;
  g[1] = 0;
  for (int step = 0; step < 5; ++step) {
    p.grad() = from_host(g, {256});
    adam.step();
  }
  const auto second = to_host<std::int64_t>(adam.state()[2].tensor);
  CHECK(adam.state()[2].name == "p.second_moment");
  CHECK(second[0] == 255);
  CHECK(second[1] == 0);
  CHECK(second[2] == 1);
  const auto moved = to_host<float>(p);
  CHECK(moved[1] == 0);
  CHECK(std::fabs(moved[2]) <= std::fabs(moved[0]));  // a second moment of zero would make it many times larger
}

TEST_CASE("optim8: narrow parameters, gradients that are not finite", "[optim8]") {
  for (const char* const name : names) {
    INFO(name);
    // Parameters in bf16 are updated in f32 and rounded once.
    const std::vector<Named> half = make_parameters(DType::bf16);
    std::vector<Named> wide;
    for (const Named& p : half) {
      Tensor t = to_dtype(p.tensor.detach(), DType::f32);
      wide.push_back({p.name, t.require_grad()});
    }
    const auto a = make(name, half), b = make(name, wide);
    set_gradients(half, 1);
    for (std::size_t i = 0; i < half.size(); ++i) {
      wide[i].tensor.grad() = to_dtype(half[i].tensor.grad(), DType::f32);
    }
    a->step(), b->step();
    for (std::size_t i = 0; i < half.size(); ++i) {
      CHECK(to_host<float>(half[i].tensor) == to_host<float>(to_dtype(wide[i].tensor.detach(), DType::bf16)));
    }
  }
  // One NaN makes its block NaN for good, and no other block.
  const std::vector<Named> list = make_parameters();
  Adam adam = make_adam(list, adam_options, narrow());
  for (int step = 1; step <= 2; ++step) {
    set_gradients(list, step);
    if (step == 1) {
      const memory::WritePin pin(list[0].tensor.grad());
      pin.as<float>()[5] = std::nanf("");
    }
    adam.step();
  }
  const auto v = to_host<float>(list[0].tensor);
  for (std::size_t i = 0; i < v.size(); ++i) CHECK(std::isnan(v[i]) == (i < 256));
}

TEST_CASE("optim8: gradients are multiplied by their factor as they are read", "[optim8]") {
  for (const char* const name : names) {
    INFO(name);
    const std::vector<Named> plain = make_parameters(), scaled = make_parameters();
    const auto a = make(name, plain), b = make(name, scaled);
    b->set_gradient_factor(1.0 / 1024);
    for (int step = 1; step <= 3; ++step) {
      set_gradients(plain, step), set_gradients(scaled, step);
      for (const Named& p : scaled) {  // exact: a power of two
        std::vector<float> g = to_host<float>(p.tensor.grad());
        for (float& v : g) v *= 1024;
        p.tensor.grad() = from_host(g, p.tensor.shape());
      }
      a->step(), b->step();
    }
    CHECK(values(scaled) == values(plain));
    CHECK(values(b->state()) == values(a->state()));
  }
}

// ---- Narrow optimizer state: bytes, files and tiers; refused options.

using namespace optim8_test;

TEST_CASE("optim8: state bytes are the formula, what the ledger books, and the same on a dry device", "[optim8]") {
  const auto blocks = [](std::size_t n) { return (n + 255) / 256; };
  const std::size_t n0 = 1233, n1 = 1000, n2 = 7;
  const std::size_t codes = n0 + n1 + 4 * (blocks(n0) + blocks(n1));
  for (const char* const name : names) {
    const std::string kind = name;
    const std::size_t expected = kind == "adamw8"          ? 2 * codes + 8 * n2
                                 : kind == "adamw_bf16"    ? 4 * (n0 + n1) + 8 * n2
                                 : kind == "momentum8"     ? codes + 4 * n2
                                 : kind == "momentum_bf16" ? 2 * (n0 + n1) + 4 * n2
                                                           : 4 * (3 + 411 + n0) + 8 * (n1 + n2);
    for (const memory::Device device : {cpu, dry(cpu)}) {
      INFO(name << " on " << to_string(device));
      const memory::Stack stack = memory::make_resource(device);
      const ResourceScope on(stack.top);
      const std::vector<Named> list = make_parameters(DType::f32, device);
      const auto optimizer = make(name, list);
      CHECK(optimizer->state_bytes() == expected);
      CHECK(stack.ledger->bytes(memory::Category::optimizer) == expected);
      if (!device.is_dry) set_gradients(list, 1);
      stack.ledger->reset_peak();
      const std::size_t peak = stack.ledger->max_allocated();
      optimizer->step();  // allocates nothing
      CHECK(stack.ledger->max_allocated() == peak);
    }
  }
  // GPT-2: 2.05 bytes per parameter, including all state in f32.
  models::Setup setup;
  setup.model = "gpt2";
  setup.optimizer.name = "adamw8";
  const auto model = models::make_model(setup.model, setup.sizes, {dry(cpu), DType::f32});
  const auto optimizer = models::make_optimizer(setup, *model);
  CHECK(std::string(optimizer->name()) == "adamw8");
  const auto formula =
      static_cast<std::size_t>(models::make_theory("gpt2", setup.sizes).state(2, {.dtype = DType::u8}).optimizer);
  CHECK(optimizer->state_bytes() == formula);
  CHECK(static_cast<double>(formula) <= 2.05 * static_cast<double>(model->parameter_count()));
  CHECK(static_cast<double>(formula) >= 2.03125 * static_cast<double>(model->parameter_count()));
  setup.optimizer.full_state = {"wte"};
  CHECK(models::make_optimizer(setup, *model)->state_bytes() > formula + std::size_t{38'000'000} * 5);
}

TEST_CASE("optim8: state of a shard says where its scales lie among those of the whole", "[optim8]") {
  const std::vector<Named> list{{"p", zeros({44}).require_grad(), 256, 300}};  // the last 44 of 300
  const Adam adam = make_adam(list, adam_options, narrow());
  for (const Named& s : adam.state()) {
    INFO(s.name);
    const bool is_scale = s.name.ends_with("_scale");
    CHECK(s.first_element == (is_scale ? 1 : 256));
    CHECK(s.elements_of_whole == (is_scale ? 2 : 300));
  }
  // A shard's state is as narrow as the whole parameter's.
  const MomentFormat format{.dtype = DType::u8, .smallest = 100};
  for (const std::int64_t whole : {0, 99, 100}) {
    CHECK(is_kept_full({"p", zeros({50}), 25, whole}, format) == (whole < 100));
  }
}

TEST_CASE("optim8: state goes to a tier and back, and into a checkpoint", "[optim8]") {
  const files_test::TemporaryFolder folder;
  struct Net final : nn::Module {
    explicit Net(int) : in(child<nn::Linear>("in", 40, 30, nn::TensorOptions{})) {}
    nn::Linear& in;
  };
  for (const char* const name : names) {
    INFO(name);
    const std::vector<Named> kept_list = make_parameters(), list = make_parameters();
    const auto tier = std::make_shared<store_test::MemoryTier>();
    const auto kept = make(name, kept_list), away = make(name, list, tier);
    CHECK(away->state_bytes() == kept->state_bytes());
    for (int step = 1; step <= 3; ++step) {
      set_gradients(kept_list, step), set_gradients(list, step);
      kept->step(), away->step();
    }
    CHECK(values(list) == values(kept_list));
    away->fetch_state();
    CHECK(values(away->state()) == values(kept->state()));

    const auto train = [&](Net& net, Optimizer& optimizer, int first, int end) {
      for (int step = first; step < end; ++step) {
        set_gradients(net.trainable(), step);
        optimizer.step();
      }
    };
    const auto make_net = [](std::uint64_t seed) {
      RandomGenerator generator(seed);
      const GeneratorScope random(generator);
      return std::make_unique<Net>(0);
    };
    const auto whole = make_net(1), part = make_net(1), resumed = make_net(2);
    const auto whole_optimizer = make(name, whole->trainable()), part_optimizer = make(name, part->trainable()),
               resumed_optimizer = make(name, resumed->trainable());
    train(*whole, *whole_optimizer, 1, 6);
    train(*part, *part_optimizer, 1, 4);
    RandomGenerator generator(4);
    const std::string path = folder / (std::string(name) + ".safetensors");
    nn::save_checkpoint(path, *part, *part_optimizer, generator);
    nn::load_checkpoint(path, *resumed, *resumed_optimizer, generator);
    CHECK(resumed_optimizer->step_count() == 3);
    train(*resumed, *resumed_optimizer, 4, 6);
    CHECK(values(resumed->trainable()) == values(whole->trainable()));
    CHECK(values(resumed_optimizer->state()) == values(whole_optimizer->state()));
    // The state of another optimizer.
    const auto other = make(std::string(name) == "adamw8" ? "adafactor" : "adamw8", resumed->trainable());
    CHECK_THROWS_AS(nn::load_checkpoint(path, *resumed, *other, generator), ValueError);
  }
}

TEST_CASE("optim8: options that make no sense are refused", "[optim8]") {
  const std::vector<Named> list = make_parameters();
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
    CHECK_THROWS_AS(make_adam(list, {-1}, {dtype}), ValueError);
    CHECK_THROWS_AS(make_adam(list, {0.1, 1}, {dtype}), ValueError);
    CHECK_THROWS_AS(make_adam(list, {}, {dtype, -1}), ValueError);
    CHECK_THROWS_AS(make_adam(list, {}, {dtype, 0, {"q"}}), ValueError);
    CHECK_THROWS_AS(make_momentum(list, {0.1, 1}, {dtype}), ValueError);
    CHECK_THROWS_AS(make_momentum(list, {0.1, 0.9, -1}, {dtype}), ValueError);
  }
  CHECK_THROWS_AS(make_adam(list, {}, {DType::f16}), ValueError);
  CHECK_THROWS_AS(make_momentum(list, {0.1, 0}, {DType::u8}), ValueError);
  CHECK_THROWS_AS(make_momentum(list, {0.1, 0}, {DType::bf16}), ValueError);
  for (const AdafactorOptions& options :
       {AdafactorOptions{.rate = -1}, AdafactorOptions{.beta1 = 1}, AdafactorOptions{.decay = 0},
        AdafactorOptions{.decay = 1.5}, AdafactorOptions{.epsilon1 = 0}, AdafactorOptions{.epsilon2 = -1},
        AdafactorOptions{.clip = 0}, AdafactorOptions{.weight_decay = std::nan("")}}) {
    CHECK_THROWS_AS(Adafactor(list, options), ValueError);
  }
  CHECK_THROWS_AS(Adafactor(make_parameters(DType::f64), {}), DTypeError);
  CHECK(make_adam(make_parameters(DType::f64), {}, narrow()).kept_full().size() == shapes.size());
  CHECK(make_adam(list, {}, {DType::u8, 0, {"p1"}}).kept_full() == std::vector<std::string>{"p1"});
  CHECK(Adam(list, {}).kept_full().empty());

  models::Setup setup;
  const auto refused = [&](const char* optimizer, DType state, std::vector<std::string> full) {
    setup.optimizer.name = optimizer;
    setup.optimizer.state = state;
    setup.optimizer.full_state = std::move(full);
    CHECK_THROWS_AS(models::optimizer_state(setup, true), ValueError);
  };
  refused("sgd", DType::u8, {});
  refused("adafactor", DType::bf16, {});
  refused("adam8", DType::bf16, {});
  refused("adam", DType::f16, {});
  refused("adam", DType::f32, {"wte"});
  setup = {};
  setup.optimizer.name = "momentum";
  setup.optimizer.state = DType::bf16;
  CHECK(models::optimizer_state(setup, true) == DType::bf16);
  setup.optimizer.name = "momentum8";
  setup.optimizer.state = DType::u8;
  CHECK(models::optimizer_state(setup, true) == DType::u8);
}

// ---- Adafactor against plain loops in f64.

using namespace optim8_test;

TEST_CASE("optim8: Adafactor against plain loops in f64", "[optim8]") {
  for (const AdafactorOptions& options :
       {AdafactorOptions{.rate = 0.05}, AdafactorOptions{.rate = 0.05, .has_relative_step = true},
        AdafactorOptions{
            .rate = 0.05, .scales_by_parameter = false, .beta1 = 0.9, .weight_decay = 0.1, .smallest_decayed_rank = 2},
        AdafactorOptions{.rate = 0.05, .clip = 0.3}}) {
    const std::vector<Named> list = make_parameters();
    Adafactor adafactor(list, options);
    struct State {
      std::vector<double> p, r, c, m;
    };
    std::vector<State> expected;
    for (const Named& p : list) {
      const bool is_matrix = p.tensor.rank() == 2;
      const auto n = static_cast<std::size_t>(p.tensor.elements());
      expected.push_back({to_host<double>(p.tensor), std::vector<double>(is_matrix ? 3 : 0),
                          std::vector<double>(is_matrix ? 411 : n), std::vector<double>(n)});
    }
    for (int step = 1; step <= 8; ++step) {
      set_gradients(list, step);
      adafactor.step();
      for (std::size_t k = 0; k < list.size(); ++k) {
        State& s = expected[k];
        const std::vector<double> g = to_host<double>(list[k].tensor.grad());
        const double b = 1 - std::pow(step, -0.8);
        std::vector<double> u(g.size());
        const auto rms = [](const std::vector<double>& x) {
          double sum = 0;
          for (const double v : x) sum += v * v;
          return std::sqrt(sum / static_cast<double>(x.size()));
        };
        if (s.r.empty()) {
          for (std::size_t i = 0; i < g.size(); ++i) {
            s.c[i] = b * s.c[i] + (1 - b) * (g[i] * g[i] + 1e-30);
            u[i] = g[i] / std::sqrt(s.c[i]);
          }
        } else {
          for (double& v : s.r) v *= b;
          for (double& v : s.c) v *= b;
          for (std::size_t i = 0; i < g.size(); ++i) {
            s.r[i / 411] += (1 - b) * (g[i] * g[i] + 1e-30) / 411;
            s.c[i % 411] += (1 - b) * (g[i] * g[i] + 1e-30) / 3;
          }
          const double mean = (s.r[0] + s.r[1] + s.r[2]) / 3;
          for (std::size_t i = 0; i < g.size(); ++i) u[i] = g[i] / std::sqrt(s.r[i / 411] * s.c[i % 411] / mean);
        }
        const double clip = 1 / std::max(1.0, rms(u) / options.clip);
        const double base = options.has_relative_step ? std::min(1e-2, 1 / std::sqrt(step)) : 0.05;
        const double rate = options.scales_by_parameter ? base * std::max(1e-3, rms(s.p)) : base;
        const double decay = list[k].tensor.rank() >= options.smallest_decayed_rank ? options.weight_decay : 0;
        for (std::size_t i = 0; i < g.size(); ++i) {
          s.m[i] = options.beta1 * s.m[i] + (1 - options.beta1) * u[i] * clip;
          s.p[i] = s.p[i] * (1 - base * decay) - rate * (options.beta1 > 0 ? s.m[i] : u[i] * clip);
        }
      }
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const auto got = to_host<double>(list[k].tensor);
      double worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        worst = thimble_test::worse(worst, std::abs(got[i] - expected[k].p[i]));
      INFO("largest error " << worst);
      CHECK(worst <= 8 * 10 * 0x1p-23);
    }
  }
  const Restore restore;
  std::vector<std::vector<float>> one;
  for (const int threads : {1, 4}) {
    set_thread_count(threads);
    const std::vector<Named> list = make_parameters();
    Adafactor adafactor(list, {});
    set_gradients(list, 1);
    adafactor.step();
    if (one.empty()) one = values(list);
    CHECK(values(list) == one);
  }
}

TEST_CASE("optim8: Adafactor's settings are its options", "[optim8]") {
  CHECK_NOTHROW(Adafactor(make_parameters(), {.decay = 1}));
  const Adafactor adafactor(make_parameters(), {.has_relative_step = true,
                                                .scales_by_parameter = false,
                                                .beta1 = 0.1,
                                                .decay = 0.2,
                                                .epsilon1 = 0.3,
                                                .epsilon2 = 0.4,
                                                .clip = 0.5,
                                                .weight_decay = 0.6,
                                                .smallest_decayed_rank = 7});
  const std::vector<std::pair<std::string, double>> expected{
      {"has_relative_step", 1},    {"scales_by_parameter", 0}, {"beta1", 0.1}, {"decay", 0.2},
      {"epsilon1", 0.3},           {"epsilon2", 0.4},          {"clip", 0.5},  {"weight_decay", 0.6},
      {"smallest_decayed_rank", 7}};
  std::vector<std::pair<std::string, double>> found;
  for (const Setting& s : adafactor.settings()) found.emplace_back(s.name, s.value);
  CHECK(found == expected);
}
