// Optimizers whose state waits in a tier between updates: equal bits, and the bytes that a dry run predicts.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/offload_data.h"
#include "support/store_run.h"
#include "support/store_tier.h"

using namespace thimble;
using store_test::MemoryTier;

namespace {

const std::vector<Shape> shapes{{30, 40}, {7}, {0}, {5, 20}};
constexpr std::size_t elements = 30 * 40 + 7 + 5 * 20;

struct Parameters {
  std::vector<optim::Named> list;
  Parameters() {
    RandomGenerator generator(3);
    const GeneratorScope random(generator);
    for (const Shape& shape : shapes) {
      Tensor t = randn(shape);
      if (t.storage()) t.storage()->set_category(memory::Category::parameter);
      list.push_back({"p" + std::to_string(list.size()), t.require_grad()});
    }
  }
  void set_gradients(int step) const {
    RandomGenerator generator(static_cast<std::uint64_t>(10 + step));
    const GeneratorScope random(generator);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i != 1 || step != 1) list[i].tensor.grad() = randn(shapes[i]);  // the second has none in one step
    }
  }
};

std::unique_ptr<optim::Optimizer> make(const std::string& name, const Parameters& parameters,
                                       std::shared_ptr<memory::Tier> tier) {
  if (name == "sgd") {
    return std::make_unique<optim::Sgd>(parameters.list,
                                        optim::SgdOptions{.rate = 0.1, .momentum = 0.9, .tier = std::move(tier)});
  }
  return std::make_unique<optim::Adam>(parameters.list, optim::AdamOptions{.rate = 0.1, .tier = std::move(tier)});
}

std::vector<std::vector<float>> values(optim::Optimizer& optimizer) {
  std::vector<std::vector<float>> list;
  for (const optim::Named& p : optimizer.parameters()) list.push_back(to_host<float>(p.tensor));
  optimizer.fetch_state();
  optimizer.each_state([](std::span<const optim::Named>) {});
  for (const optim::Named& s : optimizer.state()) list.push_back(to_host<float>(s.tensor));
  optimizer.put_state_away();
  return list;
}

// A loss that gives every parameter a gradient.
Tensor loss_of(const Parameters& parameters) {
  Tensor total;
  for (const optim::Named& p : parameters.list) {
    if (p.tensor.elements() == 0) continue;
    const Tensor part = mean(square(p.tensor));
    total = total.defined() ? add(total, part) : part;
  }
  return total;
}

}  // namespace

TEST_CASE("optimizer store: state in a tier gives the same bits, and is not here between updates", "[store]") {
  for (const char* const name : {"sgd", "adamw"}) {
    INFO(name);
    const memory::Stack stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    const Parameters kept_parameters, parameters;
    const auto tier = std::make_shared<MemoryTier>();
    const auto kept = make(name, kept_parameters, nullptr);
    const std::size_t bytes = kept->state_bytes();
    CHECK(bytes == elements * 4 * (kept->name() == std::string("sgd") ? 1 : 2));
    CHECK(stack.ledger->bytes(memory::Category::optimizer) == bytes);
    const auto away = make(name, parameters, tier);
    CHECK(away->offloads_state());
    CHECK(away->state_bytes() == bytes);
    for (int step = 0; step < 4; ++step) {
      CHECK(stack.ledger->bytes(memory::Category::optimizer) == bytes);
      CHECK(tier->statistics().live_bytes == bytes);
      for (const auto& [optimizer, of] : {std::pair(kept.get(), &kept_parameters), {away.get(), &parameters}}) {
        of->set_gradients(step);
        optimizer->step();
        optimizer->zero_grad();
      }
      if (step == 2) CHECK(values(*away) == values(*kept));
    }
    CHECK(values(*away) == values(*kept));
    CHECK(stack.ledger->bytes(memory::Category::optimizer) == bytes);
  }
}

TEST_CASE("optimizer store: a failing tier throws with a type, and says what was updated", "[store]") {
  std::size_t clean = 0, partial = 0;
  for (const nn::FusedUpdate fused : {nn::FusedUpdate::off, nn::FusedUpdate::unsecured}) {
    nn::StepOptions options;
    options.fuses_optimizer = fused;
    const auto step = [&](optim::Optimizer& optimizer, const Parameters& of) {
      nn::training_step(
          optimizer, [&](std::int64_t) { return loss_of(of); }, options);
    };
    const auto counting = std::make_shared<MemoryTier>();
    {
      const Parameters parameters;
      const auto optimizer = make("adamw", parameters, counting);
      step(*optimizer, parameters);
    }
    for (std::uint64_t k = 1; k <= counting->calls(); ++k) {
      INFO("call " << k);
      const auto tier = std::make_shared<MemoryTier>(cpu, k);
      const Parameters parameters, untouched;
      std::unique_ptr<optim::Optimizer> optimizer;
      try {
        optimizer = make("adamw", parameters, tier);
      } catch (const FileError&) {
        continue;
      }
      try {
        step(*optimizer, parameters);
        FAIL("no error");
      } catch (const nn::PartialUpdateError& error) {
        CHECK(error.updated() > 0);
        CHECK(optimizer->step_count() == 1);
        ++partial;
      } catch (const FileError&) {
        CHECK(optimizer->step_count() == 0);
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          CHECK(to_host<float>(parameters.list[i].tensor) == to_host<float>(untouched.list[i].tensor));
        }
        step(*optimizer, parameters);
        step(*optimizer, parameters);
        const Parameters others;
        const auto plain = make("adamw", others, nullptr);
        step(*plain, others);
        step(*plain, others);
        CHECK(values(*optimizer) == values(*plain));
        ++clean;
      }
    }
  }
  CHECK(clean > 0);
  CHECK(partial > 4);
}

TEST_CASE("optimizer store: a run needs what its dry run says, and less than with its state here", "[store]") {
  const std::string folder = offload_test::disk_folder();
  if (folder.empty()) return;
  models::Setup setup;
  setup.model = "mlp";
  setup.sizes.image = 28;
  setup.sizes.width = 1024;
  setup.optimizer.name = "adamw";
  setup.batch = 4;
  const std::size_t here = nn::profile_training(dry(cpu), models::zero_batch_run(setup)).peak_bytes;
  setup.offload.optimizer = true;
  store_run_test::check(setup, folder, here);
}
