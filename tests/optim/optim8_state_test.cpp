// Narrow optimizer state: its bytes, files and tiers; options that are refused.

#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/theory.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/layers.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/optim8.h"
#include "support/store_tier.h"

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
      CHECK(stack.ledger->bytes(Category::optimizer) == expected);
      if (!device.is_dry) set_gradients(list, 1);
      stack.ledger->reset_peak();
      const std::size_t peak = stack.ledger->max_allocated();
      optimizer->step();  // needs no memory of its own
      CHECK(stack.ledger->max_allocated() == peak);
    }
  }
  // GPT-2: 2.05 bytes per parameter with all that stays in f32.
  models::Setup setup;
  setup.model = "gpt2";
  setup.optimizer = "adamw8";
  const auto model = models::make_model(setup.model, setup.sizes, {dry(cpu), DType::f32});
  const auto optimizer = models::make_optimizer(setup, *model);
  CHECK(std::string(optimizer->name()) == "adamw8");
  const auto formula =
      static_cast<std::size_t>(models::make_theory("gpt2", setup.sizes).state(2, {.dtype = DType::u8}).optimizer);
  CHECK(optimizer->state_bytes() == formula);
  CHECK(static_cast<double>(formula) <= 2.05 * static_cast<double>(model->parameter_count()));
  CHECK(static_cast<double>(formula) >= 2.03125 * static_cast<double>(model->parameter_count()));
  setup.full_state = {"wte"};
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
    // Of another optimizer.
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
    setup.optimizer = optimizer;
    setup.state = state;
    setup.full_state = std::move(full);
    CHECK_THROWS_AS(models::optimizer_state(setup, true), ValueError);
  };
  refused("sgd", DType::u8, {});
  refused("adafactor", DType::bf16, {});
  refused("adam8", DType::bf16, {});
  refused("adam", DType::f16, {});
  refused("adam", DType::f32, {"wte"});
  setup = {};
  setup.optimizer = "momentum";
  setup.state = DType::bf16;
  CHECK(models::optimizer_state(setup, true) == DType::bf16);
  setup.optimizer = "momentum8";
  setup.state = DType::u8;
  CHECK(models::optimizer_state(setup, true) == DType::u8);
}
