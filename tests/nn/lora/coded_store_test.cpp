// Frozen weights as codes: decoded before use and freed after, forward and backward match the decoded weights bit for
// bit, and bytes match a dry run.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/lora/lora.h>
#include <thimble/nn/quant/weight_only.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/near.h"
#include "support/operator_table.h"
#include "support/weight_codes.h"

using namespace thimble;
using nn::quant::CodedStore;
using weight_code_test::decode_weight;
using weight_code_test::encode_weight;

namespace coded_store_test {

constexpr std::int64_t width = 48, layers = 3;

/// Layers with square weights, under checkpoint() or not, and a head that is not coded.
struct Net final : nn::Module {
  explicit Net(const nn::TensorOptions& on) {
    for (std::int64_t i = 0; i < layers; ++i) {
      blocks.push_back(&child<nn::Linear>("layer" + std::to_string(i), width, width, on));
    }
    head = &child<nn::Linear>("head", width, 4, on.outside_blocks());
  }
  Tensor loss(const Tensor& x, bool is_recomputed = false) {
    Tensor h = x;
    for (nn::Linear* const block : blocks) {
      const auto run = [block](const Tensor& in) { return tanh((*block)(in)); };
      h = is_recomputed ? checkpoint(run, h) : run(h);
    }
    return mean(square((*head)(h)));
  }
  std::vector<nn::Linear*> blocks;
  nn::Linear* head;
};

struct Made {
  std::shared_ptr<CodedStore> store;  // null for a plain net
  std::unique_ptr<Net> net;
  Made(std::optional<WeightCode> code, DType dtype, memory::Device device = cpu) {
    RandomGenerator generator(5);
    const GeneratorScope draws(generator);
    nn::TensorOptions on{device, dtype};
    if (code) on.coded_weights = store = std::make_shared<CodedStore>(*code);
    net = std::make_unique<Net>(on);
  }
};

/// Three steps of Adam over adapters; `values` gets their losses, then the adapters.
void train(Made& made, memory::Device device, DType dtype, bool is_recomputed,
           std::vector<std::vector<float>>* values) {
  RandomGenerator generator(6);
  const GeneratorScope draws(generator);
  nn::add_lora(*made.net, {{.rank = 4, .alpha = 8}});
  optim::Adam adam(made.net->trainable(), {.rate = 0.02});
  const Tensor x = randn({10, width}, dtype, device);
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = nn::training_step(adam, [&](std::int64_t) { return made.net->loss(x, is_recomputed); });
    if (values != nullptr) values->push_back(to_host<float>(loss));
  }
  if (values == nullptr) return;
  for (const nn::Named& p : adam.parameters()) values->push_back(to_host<float>(p.tensor));
}

std::vector<std::vector<float>> values_of_training(Made& made, DType dtype, bool is_recomputed = false) {
  std::vector<std::vector<float>> values;
  train(made, cpu, dtype, is_recomputed, &values);
  return values;
}

}  // namespace coded_store_test

TEST_CASE("coded store: a weight is codes as soon as it is made, and here while it is used", "[lora][nf4]") {
  using namespace coded_store_test;
  for (const WeightCode code : {WeightCode::int8, WeightCode::nf4}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(to_string(code) << " " << to_string(dtype));
      const memory::Stack stack = memory::make_resource(cpu);
      const ResourceScope scope(stack.top);
      const Made made(code, dtype);
      const auto size = static_cast<std::int64_t>(size_of(dtype));
      const auto codes = static_cast<std::int64_t>(coded_bytes(code, width * width));
      const std::int64_t rest = size * (layers * width + width * 4 + 4);  // biases and the head
      const auto booked = [&](const std::string& path = "") {
        return static_cast<std::int64_t>(stack.ledger->bytes(memory::Category::parameter, path));
      };
      CHECK(booked() == layers * codes + rest);
      CHECK(booked("layer1") == codes + size * width);
      CHECK(static_cast<std::int64_t>(made.store->code_bytes()) == layers * codes);
      CHECK(made.store->unit_bytes() ==
            std::vector<std::size_t>(layers, static_cast<std::size_t>(size * width * width)));
      CHECK_FALSE(made.net->blocks[0]->weight.storage()->is_here());
      {
        const ParameterUse use;
        for (nn::Linear* const block : made.net->blocks) {
          fetch_parameters(block->weight);
          CHECK(block->weight.storage()->is_here());
          CHECK(booked() == layers * codes + rest + size * width * width);  // one weight at a time
        }
      }
      CHECK(booked() == layers * codes + rest);
      // A fetched weight is its codes, decoded.
      const Made plain({}, dtype);
      const Tensor& exact = plain.net->blocks[2]->weight;
      const Tensor there = decode_weight(encode_weight(exact, code), code, exact.shape(), dtype);
      CHECK(to_host<float>(made.net->blocks[2]->weight) == to_host<float>(there));
    }
  }
}

TEST_CASE("coded store: training has the bits of decoded weights, recomputed or not", "[lora][nf4]") {
  using namespace coded_store_test;
  for (const WeightCode code : {WeightCode::int8, WeightCode::nf4}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(to_string(code) << " " << to_string(dtype));
      Made plain({}, dtype);
      for (nn::Linear* const block : plain.net->blocks) {
        const NoGrad off;
        copy_into(block->weight, decode_weight(encode_weight(block->weight, code), code, block->weight.shape(), dtype));
      }
      const auto expected = values_of_training(plain, dtype);
      CHECK(expected[0] != expected[2]);
      Made coded(code, dtype), again(code, dtype);
      CHECK(values_of_training(coded, dtype) == expected);
      CHECK(values_of_training(again, dtype, true) == expected);
    }
  }
}

TEST_CASE("coded store: a dry run takes the same blocks", "[lora][nf4]") {
  using namespace coded_store_test;
  for (const WeightCode code : {WeightCode::int8, WeightCode::nf4}) {
    const auto run = [&](memory::Device device) {
      memory::Stack stack = memory::make_resource(device, {.trace = true});
      const ResourceScope scope(stack.top);
      Made made(code, DType::bf16, device);
      train(made, device, DType::bf16, true, nullptr);
      return stack;
    };
    const memory::Stack real = run(cpu), dried = run(dry(cpu));
    CHECK(*real.trace == *dried.trace);
    CHECK(real.arena->statistics() == dried.arena->statistics());
    CHECK(real.ledger->max_allocated() == dried.ledger->max_allocated());
    CHECK(real.ledger->bytes() == 0);
  }
}

TEST_CASE("coded store: adapters are trained over it on a CUDA device", "[lora][nf4][cuda]") {
  using namespace coded_store_test;
  if (!testing::has_cuda()) return;
  for (const WeightCode code : {WeightCode::int8, WeightCode::nf4}) {
    INFO(to_string(code));
    std::vector<std::vector<float>> there;
    Made here(code, DType::f32), device(code, DType::f32, cuda());
    train(device, cuda(), DType::f32, true, &there);
    const auto expected = values_of_training(here, DType::f32);
    REQUIRE(there.size() == expected.size());
    for (std::size_t i = 0; i < there.size(); ++i) {
      CHECK(thimble_test::largest_difference(there[i], expected[i]) <= 1e-4 * thimble_test::largest_of(expected[i]));
    }
  }
}

TEST_CASE("coded store: weights are read into it, and dry as for real", "[lora][nf4]") {
  using namespace coded_store_test;
  const files_test::TemporaryFolder folder;
  std::vector<float> expected;
  {
    Made source({}, DType::f32);
    RandomGenerator generator(77);
    const GeneratorScope draws(generator);
    for (nn::Linear* const block : source.net->blocks) fill_normal(block->weight, 0, 0.1);
    nn::save_weights(*source.net, folder / "weights");
    const Tensor w = to_dtype(source.net->blocks[1]->weight.detach(), DType::bf16);
    expected =
        to_host<float>(decode_weight(encode_weight(w, WeightCode::nf4), WeightCode::nf4, w.shape(), DType::bf16));
  }
  std::vector<float> values;
  const auto run = [&](memory::Device device) {
    memory::Stack stack = memory::make_resource(device, {.trace = true});
    const ResourceScope scope(stack.top);
    Made made(WeightCode::nf4, DType::bf16, device);
    device.is_dry ? nn::visit_weights(*made.net) : void(nn::load_weights(*made.net, folder / "weights"));
    const std::size_t events = stack.trace->events().size();
    if (!device.is_dry) values = to_host<float>(made.net->blocks[1]->weight);
    return std::pair(stack, events);
  };
  const auto [real, events] = run(cpu);
  const auto [dried, dry_events] = run(dry(cpu));
  CHECK(values == expected);
  REQUIRE(events == dry_events);
  CHECK(events > 30);
  const auto& there = real.trace->events();
  const auto& here = dried.trace->events();
  CHECK(std::equal(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(events), here.begin()));
  Made made(WeightCode::nf4, DType::f32);
  nn::add_lora(*made.net, {{.rank = 2}});
  CHECK_THROWS_WITH(nn::merge_lora(*made.net), Catch::Contains("coded weight"));
}
