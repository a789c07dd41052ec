// Parameters that are away between uses: which units are in memory and when, reads and writes, failures.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/offload/tier_store.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/store_tier.h"

using namespace thimble;
using store_test::MemoryTier;

namespace {

/// Linear layers of 8 x n, n x n, n x 4; `is_tied` appends a product with the first layer's weight.
struct Net final : nn::Module {
  explicit Net(memory::Device device, bool is_tied = false) : tied(is_tied) {
    const nn::TensorOptions on{.device = device};
    for (const auto& [in, out] : {std::pair(8, 16), {16, 32}, {32, 24}, {24, 16}}) {
      layers.push_back(&child<nn::Linear>("layer" + std::to_string(layers.size()), in, out, on));
    }
  }
  Tensor loss(const Tensor& x) {
    Tensor h = x;
    for (nn::Linear* const layer : layers) h = relu((*layer)(h));
    if (tied) h = matmul(h, layers.front()->weight);
    return mean(square(h));
  }
  std::vector<nn::Linear*> layers;
  bool tied;
};
constexpr std::size_t unit_bytes[] = {(8 * 16 + 16) * 4, (16 * 32 + 32) * 4, (32 * 24 + 24) * 4, (24 * 16 + 16) * 4};
constexpr std::size_t all_bytes = unit_bytes[0] + unit_bytes[1] + unit_bytes[2] + unit_bytes[3];

struct Trained {
  explicit Trained(std::shared_ptr<ParameterStore> store, memory::Device device = cpu, bool is_tied = false) {
    RandomGenerator generator(5);
    const GeneratorScope random(generator);
    {
      const ParameterStoreScope scope(std::move(store));
      net = std::make_unique<Net>(device, is_tied);
    }
    optimizer = std::make_unique<optim::Adam>(net->trainable(), optim::AdamOptions{.rate = 0.05});
    input = randn({6, 8}, DType::f32, device);
  }
  Tensor step(const nn::StepOptions& options = {}) {
    return nn::training_step(
        *optimizer, [&](std::int64_t) { return net->loss(input); }, options);
  }
  std::vector<std::vector<float>> values() const {
    const ParameterUse use;
    std::vector<std::vector<float>> list;
    for (const optim::Named& p : optimizer->parameters()) list.push_back(to_host<float>(p.tensor));
    for (const optim::Named& s : optimizer->state()) list.push_back(to_host<float>(s.tensor));
    return list;
  }
  std::vector<bool> here() const {
    std::vector<bool> list;
    for (nn::Linear* const layer : net->layers) list.push_back(layer->weight.storage()->is_here());
    return list;
  }
  std::unique_ptr<Net> net;
  std::unique_ptr<optim::Adam> optimizer;
  Tensor input;
};

using Here = std::vector<bool>;

std::shared_ptr<memory::TierStore> make_store(std::shared_ptr<memory::Tier> tier,
                                              const memory::UnitOptions& options = {}) {
  return std::make_shared<memory::TierStore>(std::move(tier), options);
}

}  // namespace

TEST_CASE("parameter store: a model goes as it is made, and is never here as a whole", "[store]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const auto tier = std::make_shared<MemoryTier>();
  const auto store = make_store(tier);
  {
    const Trained trained(store);
    CHECK(store->unit_bytes() == std::vector<std::size_t>(std::begin(unit_bytes), std::end(unit_bytes)));
    CHECK(store->peak_bytes() == unit_bytes[1] + unit_bytes[2]);
    CHECK(stack.ledger->max_allocated(memory::Category::parameter) == 32 * 24 * 4);  // the largest parameter
    CHECK(stack.ledger->bytes(memory::Category::parameter) == 0);
    CHECK(tier->statistics().live_bytes == all_bytes);
    const memory::Storage& storage = *trained.net->layers[1]->weight.storage();
    CHECK_FALSE(storage.is_here());
    CHECK(storage.bytes() == 16 * 32 * 4);
    CHECK(path_name(storage.path()) == "layer1");
    CHECK(storage.category() == memory::Category::parameter);
  }
  CHECK(tier->statistics().live_bytes == 0);
  CHECK(stack.ledger->bytes() == 0);
}

TEST_CASE("parameter store: the next unit in the direction of the last move is read ahead", "[store]") {
  const auto tier = std::make_shared<MemoryTier>();
  const Trained trained(make_store(tier));
  const NoGrad off;
  const ParameterUse use;
  Tensor x = trained.input;
  const auto run = [&](std::size_t layer) { return (*trained.net->layers[layer])(x); };
  x = run(0);
  CHECK(trained.here() == Here{true, true, false, false});
  x = run(1);
  CHECK(trained.here() == Here{false, true, true, false});
  x = run(2);
  CHECK(trained.here() == Here{false, false, true, true});
  x = run(3);
  CHECK(trained.here() == Here{false, false, true, true});
  const std::uint64_t reads = tier->statistics().reads;
  CHECK(reads == 2 * 4);
  fetch_parameters(trained.net->layers[2]->weight);
  CHECK(trained.here() == Here{false, true, true, false});
  fetch_parameters(trained.net->layers[1]->weight);
  CHECK(trained.here() == Here{true, true, false, false});
  CHECK(tier->statistics().reads == reads + 4);
  CHECK(tier->statistics().writes == 8);  // only from construction: nothing has changed since
  // An operator that needs more than 1 + read_ahead units gets them all.
  fetch_parameters(trained.net->layers[3]->weight, trained.net->layers[0]->bias, trained.net->layers[2]->bias);
  CHECK(trained.here() == Here{true, false, true, true});
}

TEST_CASE("parameter store: after let_go reading begins anew, and a freed unit takes no room", "[store]") {
  const auto store = make_store(std::make_shared<MemoryTier>());
  std::vector<Tensor> units;
  for (int i = 0; i < 4; ++i) {
    const PathScope path("unit" + std::to_string(i));
    units.push_back(zeros({16}, DType::f32, cpu, memory::Category::parameter));
    store->put_away(units.back());
  }
  const auto here = [&] {
    Here list;
    for (const Tensor& t : units) list.push_back(t.defined() && t.storage()->is_here());
    return list;
  };
  const ParameterUse use;
  fetch_parameters(units[3]);
  fetch_parameters(units[1]);  // now in backward's direction
  store->let_go();
  CHECK(here() == Here{false, false, false, false});
  fetch_parameters(units[0]);
  CHECK(here() == Here{true, true, false, false});  // forward again
  fetch_parameters(units[1]);
  CHECK(here() == Here{false, true, true, false});
  units[2] = Tensor();
  fetch_parameters(units[3]);
  CHECK(here() == Here{false, true, false, true});  // takes the place of the freed unit
}

TEST_CASE("parameter store: whatever the way, those ahead are here and no more", "[store]") {
  std::mt19937 random(1);
  for (const int ahead : {0, 1, 2, 3}) {
    const Trained trained(make_store(std::make_shared<MemoryTier>(), {.read_ahead = ahead}));
    int before = 0, direction = 1;
    for (int i = 0; i < 200; ++i) {
      const int unit = static_cast<int>(random() % 4);
      fetch_parameters(trained.net->layers[static_cast<std::size_t>(unit)]->weight);
      if (i > 0 && unit != before) direction = unit > before ? 1 : -1;
      before = unit;
      const Here here = trained.here();
      INFO("read ahead " << ahead << ", fetch " << i << " of unit " << unit << ", direction " << direction);
      for (int k = 0; i > 0 && k <= ahead; ++k) {
        const int at = unit + k * direction;
        if (at >= 0 && at < 4) CHECK(here[static_cast<std::size_t>(at)]);
      }
      CHECK(std::count(here.begin(), here.end(), true) <= ahead + 1);
    }
  }
  // A pinned unit stays, and leaves no room to read ahead.
  const Trained trained(make_store(std::make_shared<MemoryTier>()));
  const memory::Pin pin(trained.net->layers[3]->weight);
  fetch_parameters(trained.net->layers[1]->weight);
  CHECK(trained.here() == Here{false, true, false, true});
}

TEST_CASE("parameter store: units of several modules, and none read ahead", "[store]") {
  for (const std::size_t most : {799, 800, 801, 1200}) {  // three modules of 400 bytes each
    const auto store = make_store(std::make_shared<MemoryTier>(), {.unit_bytes = most});
    std::vector<Tensor> parameters;
    for (const char* const name : {"a", "b", "c"}) {
      const PathScope path(name);
      store->put_away(parameters.emplace_back(zeros({100})));
    }
    CHECK(store->unit_bytes() == (most < 800    ? std::vector<std::size_t>{400, 400, 400}
                                  : most < 1200 ? std::vector<std::size_t>{800, 400}
                                                : std::vector<std::size_t>{1200}));
  }
  const auto none = make_store(std::make_shared<MemoryTier>(), {.read_ahead = 0});
  const auto joined = make_store(std::make_shared<MemoryTier>(), {.unit_bytes = unit_bytes[0] + unit_bytes[1]});
  const Trained one(none), two(joined);
  CHECK(none->peak_bytes() == unit_bytes[2]);
  CHECK(joined->unit_bytes() == std::vector<std::size_t>{unit_bytes[0] + unit_bytes[1], unit_bytes[2], unit_bytes[3]});
  fetch_parameters(one.net->layers[1]->weight);
  CHECK(one.here() == Here{false, true, false, false});
  fetch_parameters(two.net->layers[1]->weight);
  CHECK(two.here() == Here{true, true, true, false});
  CHECK_THROWS_AS(make_store(std::make_shared<MemoryTier>(), {.read_ahead = -1}), ValueError);
  CHECK_THROWS_AS(make_store(nullptr), ValueError);
}

TEST_CASE("parameter store: a step has the bits of parameters that stay, and the bytes of its units", "[store]") {
  for (const bool is_tied : {false, true}) {
    for (const nn::FusedUpdate fused : {nn::FusedUpdate::off, nn::FusedUpdate::unsecured}) {
      for (const double clip_norm : {0.0, 0.01}) {
        if (fused != nn::FusedUpdate::off && clip_norm > 0) continue;
        for (const int read_ahead : {0, 1, 2}) {
          INFO("tied " << is_tied << ", fused " << static_cast<int>(fused) << ", read ahead " << read_ahead);
          const nn::StepOptions options{.clip_norm = clip_norm, .fuses_optimizer = fused};
          const memory::Stack stack = memory::make_resource(cpu);
          Trained plain(nullptr, cpu, is_tied);
          const ResourceScope scope(stack.top);
          const auto tier = std::make_shared<MemoryTier>();
          const auto store = make_store(tier, {.read_ahead = read_ahead});
          Trained away(store, cpu, is_tied);
          for (int i = 0; i < 5; ++i) {
            CHECK(item(away.step(options)) == item(plain.step(options)));
            CHECK(stack.ledger->bytes(memory::Category::parameter) == 0);
            CHECK(tier->statistics().live_bytes == all_bytes);
          }
          CHECK(stack.ledger->max_allocated(memory::Category::parameter) == store->peak_bytes());
          CHECK(tier->statistics().writes == 8 * 6);  // every parameter once at construction, once per update
          CHECK(away.values() == plain.values());
        }
      }
    }
  }
}

TEST_CASE("parameter store: a dry run asks for the same memory at the same places", "[store]") {
  const auto events = [](memory::Device device) {
    memory::Options options;
    options.trace = true;
    const memory::Stack stack = memory::make_resource(device, std::move(options));
    const ResourceScope scope(stack.top);
    std::vector<std::size_t> ends;
    {
      Trained trained(make_store(std::make_shared<MemoryTier>(device)), device, true);
      for (int i = 0; i < 4; ++i) {
        trained.step();
        ends.push_back(stack.trace->event_count());
        if (i == 2) {
          const NoGrad off;
          trained.net->loss(trained.input);  // leaves units in memory; the next step starts without them
        }
      }
    }
    return std::pair(stack.trace->events(), ends);
  };
  const auto real = events(cpu), dry_run = events(dry(cpu));
  CHECK((real.first == dry_run.first));
  CHECK(real.second[1] - real.second[0] == real.second[2] - real.second[1]);
}

TEST_CASE("parameter store: every call of a tier that fails is a typed error with nothing lost", "[store]") {
  std::size_t clean = 0, partial = 0;
  for (const nn::FusedUpdate fused : {nn::FusedUpdate::off, nn::FusedUpdate::unsecured}) {
    const nn::StepOptions options{.fuses_optimizer = fused};
    Trained expected(nullptr);
    const auto untouched = expected.values();
    expected.step(options);
    const auto counting = std::make_shared<MemoryTier>();
    {
      Trained trained(make_store(counting));
      trained.step(options);
    }
    for (std::uint64_t k = 1; k <= counting->calls(); ++k) {
      INFO("call " << k << " of " << counting->calls());
      const auto tier = std::make_shared<MemoryTier>(cpu, k);
      std::unique_ptr<Trained> trained;
      try {
        trained = std::make_unique<Trained>(make_store(tier));
      } catch (const FileError&) {
        CHECK(tier->statistics().live_bytes == 0);
        continue;
      }
      try {
        trained->step(options);
        CHECK(trained->values() == expected.values());  // the call that failed only read ahead
      } catch (const nn::PartialUpdateError& error) {
        CHECK(error.updated() > 0);
        // Each parameter is wholly old or wholly updated.
        const auto now = trained->values(), after = expected.values();
        std::size_t updated = 0;
        for (std::size_t i = 0; i < 8; ++i) {
          CHECK((now[i] == untouched[i] || now[i] == after[i]));
          updated += now[i] == after[i];
        }
        CHECK(updated == error.updated());
        ++partial;
      } catch (const FileError&) {
        CHECK(trained->values() == untouched);
        CHECK(trained->optimizer->step_count() == 0);
        trained->step(options);
        CHECK(trained->values() == expected.values());
        ++clean;
      }
    }
  }
  CHECK(clean > 20);
  CHECK(partial > 20);
}

TEST_CASE("parameter store: copies and pins fetch, a launch beside them is refused by name", "[store]") {
  const Trained trained(make_store(std::make_shared<MemoryTier>()));
  const nn::Parameter& weight = trained.net->layers[3]->weight;
  const nn::Parameter& first = trained.net->layers[0]->weight;
  try {
    launch(cpu, [&](const Addresses& at) { at(weight); });
    FAIL("no error");
  } catch (const AwayError& error) {
    CHECK(std::string(error.what()).find("f32 (16, 24) on cpu in 'layer3'") != std::string::npos);
  }
  const std::uint32_t version = weight.storage()->version();
  {
    const memory::Pin pin(weight);
    CHECK(pin.as<float>()[0] == to_host<float>(weight)[0]);
    to_host<float>(first);
    weight.storage()->store()->let_go();
    CHECK(trained.here() == Here{false, false, false, true});  // pinned, so it stays
  }
  CHECK(weight.storage()->version() == version);
  fill(weight, 3);
  weight.storage()->store()->let_go();
  CHECK(trained.here() == Here{false, false, false, false});
  CHECK(to_host<float>(weight) == std::vector<float>(16 * 24, 3.0f));
  {
    const memory::WritePin pin(weight);
    pin.as<float>()[7] = 5;
  }
  copy_into(first, full({16, 8}, 2));
  weight.storage()->store()->let_go();
  CHECK(to_host<float>(weight)[7] == 5);
  CHECK(to_host<float>(first)[0] == 2);
}

TEST_CASE("parameter store: what cannot go is refused and stays", "[store]") {
  const auto tier = std::make_shared<MemoryTier>();
  const auto store = make_store(tier), other = make_store(std::make_shared<MemoryTier>());
  const Tensor t = randn({4, 6}).require_grad();
  CHECK_THROWS_AS(store->put_away(Tensor()), ValueError);
  CHECK_THROWS_AS(store->put_away(t.window({2, 6}, {6, 1}, 0)), ValueError);
  CHECK_THROWS_AS(make_store(std::make_shared<MemoryTier>(dry(cpu)))->put_away(t), DeviceError);
  {
    const memory::Pin pin(t);
    CHECK_THROWS_AS(store->put_away(t), ValueError);
  }
  CHECK(t.storage()->is_here());
  store->put_away(t);
  store->put_away(t);  // tied: already put away
  CHECK(tier->statistics().writes == 1);
  CHECK_THROWS_AS(other->put_away(t), ValueError);
  store->put_away(zeros({0}));
}

TEST_CASE("parameter store: frozen parameters come for forward and backward and are never written again", "[store]") {
  const auto tier = std::make_shared<MemoryTier>();
  Trained plain(nullptr), away(make_store(tier));
  for (Trained* const trained : {&plain, &away}) {
    trained->net->freeze("layer1");
    trained->optimizer = std::make_unique<optim::Adam>(trained->net->trainable(), optim::AdamOptions{.rate = 0.05});
  }
  for (int i = 0; i < 3; ++i) CHECK(item(away.step()) == item(plain.step()));
  CHECK(away.values() == plain.values());
  CHECK(tier->statistics().writes == 8 + 3 * 6);
  CHECK(away.here() == Here{false, false, false, false});
}

TEST_CASE("parameter store: a tape's hold keeps no bytes here, and writes are found", "[store]") {
  const auto tier = std::make_shared<MemoryTier>();
  const auto store = make_store(tier);
  const Trained trained(store);
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = trained.net->loss(trained.input);
  }
  const Tensor& weight = trained.net->layers[2]->weight;
  CHECK(weight.storage()->is_held_for_backward());
  store->let_go();
  CHECK_FALSE(weight.storage()->is_here());
  fill(weight, 1);
  store->let_go();
  CHECK_THROWS_AS(tape.backward(loss), AutogradError);
}
