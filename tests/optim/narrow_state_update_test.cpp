// Narrow parameters with narrow state: 8-bit and bf16 moments and Adafactor, with master copies, stochastic rounding
// and Kahan's sum. An update equals, bit for bit, that for an f32 parameter with the same value, which the tests of
// narrow state compare with plain loops; an element-by-element twin models how the result is stored.

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/optim/adafactor.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/kernel_data.h"
#include "support/model_runs.h"
#include "support/optim8.h"
#include "support/store_tier.h"

using namespace optim8_test;

namespace {

constexpr NarrowUpdate updates[] = {NarrowUpdate::rounded, NarrowUpdate::master, NarrowUpdate::stochastic,
                                    NarrowUpdate::kahan};

bool is_allowed(NarrowUpdate update, DType dtype) {
  if (update == NarrowUpdate::stochastic) return dtype == DType::bf16;
  return update != NarrowUpdate::kahan || size_of(dtype) == 2;
}

std::unique_ptr<Optimizer> make_with(const std::string& name, const std::vector<Named>& list, NarrowUpdate update,
                                     std::shared_ptr<memory::Tier> tier = nullptr) {
  if (name != "adafactor without momentum") return make(name, list, std::move(tier), update);
  return std::make_unique<Adafactor>(list, AdafactorOptions{.rate = 0.02, .tier = std::move(tier), .narrow = update});
}
const std::vector<std::string> all_names{"adamw8",        "adamw_bf16", "momentum8",
                                         "momentum_bf16", "adafactor",  "adafactor without momentum"};

// Larger than a thread's range of blocks, in rows whose length is no multiple of eight.
std::vector<Named> parameters_in(DType dtype) {
  std::vector<Named> list = make_parameters(dtype);
  RandomGenerator generator(8);
  const GeneratorScope random(generator);
  Tensor large = to_dtype(randn({67, 271}), dtype);
  list.push_back({"large.w", large.require_grad()});
  return list;
}

std::vector<Named> copies_in_f32(const std::vector<Named>& list) {
  std::vector<Named> copies;
  for (const Named& p : list) {
    Tensor t = to_dtype(p.tensor.detach(), DType::f32);
    copies.push_back({p.name, t.require_grad()});
  }
  return copies;
}

std::uint32_t site_of(const std::string& name) {
  std::uint32_t hash = 2166136261u;
  for (const char c : name + "#round") hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

/// A narrow parameter, element by element.
template <class T>
struct Twin {
  std::vector<T> stored;
  std::vector<float> extra;  // master, or compensation

  Twin(const Tensor& p, NarrowUpdate update) : extra(static_cast<std::size_t>(p.elements())) {
    const memory::Pin pin(p);
    stored.assign(pin.as<T>(), pin.as<T>() + p.elements());
    for (std::size_t i = 0; i < extra.size() && update == NarrowUpdate::master; ++i) {
      extra[i] = static_cast<float>(stored[i]);
    }
  }
  float read(NarrowUpdate update, std::size_t i) const {
    if (update == NarrowUpdate::master) return extra[i];
    const auto value = static_cast<float>(stored[i]);
    return update == NarrowUpdate::kahan ? value + extra[i] : value;
  }
  void store(NarrowUpdate update, std::size_t i, float value, [[maybe_unused]] const RandomSite& site) {
    if constexpr (std::is_same_v<T, bf16>) {
      if (update == NarrowUpdate::stochastic) {
        const auto element = static_cast<std::int64_t>(i);
        stored[i] = kernels::round_stochastically(value, kernels::rounding_bits(site, element));
        return;
      }
    }
    stored[i] = T(value);
    if (update == NarrowUpdate::master) extra[i] = value;
    if (update == NarrowUpdate::kahan) extra[i] = static_cast<float>(T(value - static_cast<float>(stored[i])));
  }
};

template <class T>
void check_against_twin(const std::string& name, NarrowUpdate update) {
  INFO(name << ", " << to_string(update) << ", " << to_string(dtype_of<T>));
  RandomGenerator generator(77);
  const GeneratorScope scope(generator);
  const std::vector<Named> list = parameters_in(dtype_of<T>), wide = copies_in_f32(list);
  const auto optimizer = make_with(name, list, update), oracle = make_with(name, wide, NarrowUpdate::rounded);
  std::vector<Twin<T>> twins;
  for (const Named& p : list) twins.emplace_back(p.tensor, update);
  for (int step = 1; step <= 3; ++step) {
    set_gradients(list, step);
    for (std::size_t k = 0; k < list.size(); ++k) {
      wide[k].tensor.grad() = to_dtype(list[k].tensor.grad(), DType::f32);
      const memory::WritePin pin(wide[k].tensor);
      for (std::size_t i = 0; i < twins[k].stored.size(); ++i) pin.as<float>()[i] = twins[k].read(update, i);
    }
    optimizer->set_gradient_factor(0.375), oracle->set_gradient_factor(0.375);
    set_thread_count(step);
    optimizer->step(), oracle->step();
    for (std::size_t k = 0; k < list.size(); ++k) {
      RandomSite site;
      site.seed = 77, site.step = static_cast<std::uint64_t>(step), site.site = site_of(list[k].name);
      const std::vector<float> updated = to_host<float>(wide[k].tensor);
      for (std::size_t i = 0; i < updated.size(); ++i) twins[k].store(update, i, updated[i], site);
      const memory::Pin pin(list[k].tensor);
      CHECK(std::memcmp(pin.data(), twins[k].stored.data(), updated.size() * sizeof(T)) == 0);
    }
  }
  // Moments equal the oracle's, all other state the twin's.
  std::vector<Named> moments;
  std::size_t extras = 0;
  for (const Named& s : optimizer->state()) {
    const bool is_extra = s.name.ends_with(".master") || s.name.ends_with(".compensation");
    if (!is_extra) {
      moments.push_back(s);
      continue;
    }
    CHECK(s.name.starts_with(list[extras].name));
    CHECK(to_host<float>(s.tensor) == twins[extras].extra);
    ++extras;
  }
  const bool has_extra = update == NarrowUpdate::master || update == NarrowUpdate::kahan;
  CHECK(extras == (has_extra ? list.size() : 0));
  CHECK(values(moments) == values(oracle->state()));
}

std::vector<std::vector<float>> all_of(const std::vector<Named>& list, Optimizer& optimizer) {
  optimizer.fetch_state();
  std::vector<std::vector<float>> all = values(list);
  for (const auto& s : values(optimizer.state())) all.push_back(s);
  return all;
}

}  // namespace

TEST_CASE("narrow state and updates: bit for bit those of f32, stored by their twins", "[optim8][precision]") {
  const Restore restore;
  for (const std::string& name : all_names) {
    for (const NarrowUpdate update : updates) {
      check_against_twin<bf16>(name, update);
      if (is_allowed(update, DType::f16)) check_against_twin<f16>(name, update);
    }
    check_against_twin<f8e4m3>(name, NarrowUpdate::master);
  }
}

TEST_CASE("narrow state and updates: a variant of the instruction set changes no bit", "[optim8][precision]") {
  const Restore restore;
  for (const std::string& name : all_names) {
    for (const NarrowUpdate update : {NarrowUpdate::master, NarrowUpdate::kahan}) {
      std::vector<std::vector<float>> first;
      for (const kernels::Isa isa : kernel_test::supported()) {
        kernels::set_isa(isa);
        const std::vector<Named> list = make_parameters(DType::bf16);
        const auto optimizer = make_with(name, list, update);
        for (int step = 1; step <= 2; ++step) set_gradients(list, step), optimizer->step();
        const auto all = all_of(list, *optimizer);
        if (first.empty()) first = all;
        CHECK(all == first);
      }
    }
  }
}

TEST_CASE("narrow state and updates: bytes are moments and copies, and a step takes none", "[optim8][precision]") {
  const std::size_t n = 1233 + 1000 + 7;
  for (const std::string& name : all_names) {
    for (const NarrowUpdate update : updates) {
      for (const memory::Device device : {cpu, dry(cpu)}) {
        INFO(name << ", " << to_string(update) << " on " << to_string(device));
        const memory::Stack stack = memory::make_resource(device);
        const ResourceScope on(stack.top);
        const std::vector<Named> list = make_parameters(DType::bf16, device);
        const std::size_t moments = make_with(name, list, NarrowUpdate::rounded)->state_bytes();
        const std::size_t each = update == NarrowUpdate::master ? 4 : update == NarrowUpdate::kahan ? 2 : 0;
        const auto optimizer = make_with(name, list, update);
        CHECK(optimizer->state_bytes() == moments + each * n);
        CHECK(stack.ledger->bytes(memory::Category::optimizer) == moments + each * n);
        if (!device.is_dry) set_gradients(list, 1);
        stack.ledger->reset_peak();
        const std::size_t peak = stack.ledger->max_allocated();
        optimizer->step();
        CHECK(stack.ledger->max_allocated() == peak);
        // f32 parameters need no extra state.
        const std::vector<Named> wide = make_parameters(DType::f32, device);
        CHECK(make_with(name, wide, update)->state_bytes() == moments);
      }
    }
  }
}

TEST_CASE("narrow state and updates: what cannot be stored so is refused", "[optim8][precision]") {
  for (const std::string& name : all_names) {
    for (const DType dtype : {DType::f16, DType::f8e5m2}) {
      for (const NarrowUpdate update : updates) {
        if (is_allowed(update, dtype)) {
          CHECK_NOTHROW(make_with(name, make_parameters(dtype), update));
        } else {
          CHECK_THROWS_AS(make_with(name, make_parameters(dtype), update), DTypeError);
        }
      }
    }
  }
}

TEST_CASE("narrow state and updates: away in a tier, one by one, and in a checkpoint", "[optim8][precision]") {
  const files_test::TemporaryFolder folder;
  struct Net final : nn::Module {
    explicit Net(std::uint64_t) : in(child<nn::Linear>("in", 40, 30, nn::TensorOptions{cpu, DType::bf16})) {}
    nn::Linear& in;
  };
  const auto make_net = [](std::uint64_t seed) {
    RandomGenerator generator(seed);
    const GeneratorScope random(generator);
    return std::make_unique<Net>(seed);
  };
  const auto train = [](const std::vector<Named>& list, Optimizer& optimizer, int first, int end) {
    RandomGenerator generator(21);
    const GeneratorScope random(generator);
    for (int step = first; step < end; ++step) set_gradients(list, step), optimizer.step();
  };
  for (const std::string& name : all_names) {
    for (const NarrowUpdate update : updates) {
      INFO(name << ", " << to_string(update));
      const auto whole = make_net(1), away = make_net(1), part = make_net(1), resumed = make_net(2);
      const auto expected = make_with(name, whole->trainable(), update);
      train(whole->trainable(), *expected, 1, 5);
      const auto bits = all_of(whole->trainable(), *expected);

      const auto in_tier = make_with(name, away->trainable(), update, std::make_shared<store_test::MemoryTier>());
      CHECK(in_tier->state_bytes() == expected->state_bytes());
      train(away->trainable(), *in_tier, 1, 5);
      CHECK(all_of(away->trainable(), *in_tier) == bits);

      const auto before = make_with(name, part->trainable(), update);
      train(part->trainable(), *before, 1, 3);
      const std::string path = folder / (name + to_string(update) + ".safetensors");
      RandomGenerator generator(4);
      nn::save_checkpoint(path, *part, *before, generator);
      const auto after = make_with(name, resumed->trainable(), update);
      nn::load_checkpoint(path, *resumed, *after, generator);
      train(resumed->trainable(), *after, 3, 5);
      CHECK(all_of(resumed->trainable(), *after) == bits);

      // In reverse order, one at a time, like updates during backward.
      const auto singly = make_net(1);
      const auto one_by_one = make_with(name, singly->trainable(), update);
      RandomGenerator same(21);
      const GeneratorScope random(same);
      for (int step = 1; step < 5; ++step) {
        set_gradients(singly->trainable(), step);
        one_by_one->begin_step();
        for (std::size_t i = singly->trainable().size(); i-- > 0;) one_by_one->step_one(i);
        one_by_one->end_step();
      }
      CHECK(all_of(singly->trainable(), *one_by_one) == bits);
    }
  }
}

// ---- Training under policies with narrow parameters and narrow or factored state: bytes against theory and the dry
// run, updates in backward, skipped steps.

using namespace thimble;
using namespace thimble::testing;

namespace {

const char* const policies[] = {"O2", "bf16", "bf16-stochastic", "bf16-kahan", "fp8"};
const char* const optimizers[] = {"adam8", "adamw8", "momentum8", "adafactor", "adamw", "momentum"};

/// A GPT with matrices above and below the limit of narrow state. With adamw and momentum the state is bf16.
models::Setup setup_of(const char* policy, const std::string& optimizer) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 1, setup.sizes.heads = 2, setup.sizes.width = 32, setup.sizes.sequence = 12;
  setup.sizes.vocabulary = 40;
  setup.batch = 4;
  setup.optimizer.name = optimizer;
  if (optimizer == "adamw" || optimizer == "momentum") setup.optimizer.state = DType::bf16;
  models::set_precision(setup, policy);
  return setup;
}

/// Bytes of the optimizer's state by theory.
std::int64_t theory_of(const models::Setup& setup) {
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, nn::precision(setup.precision.policy));
  if (setup.optimizer.name == "adafactor") return theory.factored_state().optimizer;
  const std::int64_t moments = setup.optimizer.name.starts_with("adam") ? 2 : 1;
  const optim::MomentFormat format{.dtype = models::optimizer_state(setup, true)};
  return theory.state(moments, format).optimizer;
}

/// A model in training.
struct Net {
  explicit Net(const models::Setup& setup)
      : generator(5),
        random(generator),
        model(models::make_model(setup.model, setup.sizes, models::tensor_options(setup, cpu))),
        optimizer(models::make_optimizer(setup, *model)),
        batch(make_batch(*model, setup.batch)),
        options(models::step_options(setup, true, cpu)) {}

  void step(double kick = 1) {
    nn::training_step(
        *optimizer,
        [&](std::int64_t i) { return mul(model->loss(models::micro_batch(batch, i, options.micro_batches)), kick); },
        options);
  }
  std::vector<std::vector<double>> all() const {
    std::vector<std::vector<double>> list;
    for (const auto& p : model->parameters()) list.push_back(to_host<double>(p.tensor));
    for (const auto& s : optimizer->state()) list.push_back(to_host<double>(s.tensor));
    list.push_back({static_cast<double>(optimizer->step_count())});
    return list;
  }

  RandomGenerator generator;
  GeneratorScope random;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  models::Batch batch;
  nn::StepOptions options;
};

}  // namespace

TEST_CASE("narrow state under a policy: theory == predicted == measured", "[precision][optim8][theory]") {
  const Threads alone;
  for (const char* const policy : policies) {
    for (const char* const optimizer : optimizers) {
      INFO(policy << ", " << optimizer);
      models::Setup setup = setup_of(policy, optimizer);
      {
        const memory::Stack stack = memory::make_resource(cpu);
        const ResourceScope scope(stack.top);
        const Net net(setup);
        CHECK(static_cast<std::int64_t>(net.optimizer->state_bytes()) == theory_of(setup));
        CHECK(stack.ledger->bytes(memory::Category::optimizer) == net.optimizer->state_bytes());
      }
      for (const int micro_batches : {1, 2}) {
        setup.micro_batches = micro_batches;
        const nn::MakeRun make = models::zero_batch_run(setup);
        const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), make, 2, true);
        const nn::MemoryProfile measured = nn::profile_training(cpu, make, 2, true);
        CHECK(predicted.peak_bytes == measured.peak_bytes);
        CHECK(predicted.peak_live_bytes == measured.peak_live_bytes);
        CHECK(predicted.peak_by_category == measured.peak_by_category);
      }
    }
  }
}

TEST_CASE("narrow state under a policy: updates in backward have the bits of updates after it", "[precision][optim8]") {
  const Threads alone;
  for (const char* const policy : {"bf16", "bf16-stochastic", "bf16-kahan"}) {
    for (const char* const optimizer : optimizers) {
      INFO(policy << ", " << optimizer);
      models::Setup setup = setup_of(policy, optimizer);
      setup.optimizer.clip_norm = 0;
      Net after(setup);
      for (int i = 0; i < 3; ++i) after.step();
      setup.fuses_optimizer = true;
      Net fused(setup);
      const auto before = fused.all();
      for (int i = 0; i < 3; ++i) fused.step();
      CHECK(fused.all() == after.all());
      CHECK(fused.all() != before);
    }
  }
}

TEST_CASE("narrow state under a policy: a skipped step changes nothing", "[precision][optim8][scaler]") {
  const Threads alone;
  for (const char* const optimizer : optimizers) {
    INFO(optimizer);
    const models::Setup setup = setup_of("O2", optimizer);
    Net net(setup);
    const std::unique_ptr<optim::GradScaler> scaler = models::make_scaler(setup);
    net.options.scaler = scaler.get();
    net.step();
    const auto before = net.all();
    net.step(1e30);
    CHECK(scaler->state().skipped_steps == 1);
    CHECK(net.all() == before);
    net.step();
    CHECK(net.all() != before);
  }
}

TEST_CASE("theory: Adafactor's state against the optimizer", "[theory][optim8]") {
  const std::vector<Shape> shapes{{5, 7}, {9}, {3, 4, 6}, {1, 8}, {8, 1}, {}};
  std::vector<optim::Named> list;
  models::Theory theory;
  for (const Shape& shape : shapes) {
    theory.weight(shape);
    Tensor t = Tensor::empty(shape, DType::f32, dry(cpu));
    list.push_back({"p" + std::to_string(list.size()), t.require_grad()});
  }
  const auto bytes = static_cast<std::int64_t>(optim::Adafactor(list, {}).state_bytes());
  CHECK(theory.factored_state().optimizer == bytes);
  CHECK(bytes == 4 * (5 + 7 + 9 + 12 + 6 + 8 + 8 + 1));
}
