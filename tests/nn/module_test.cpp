// A module's list of parameters always matches the parameters its forward uses: after assigning, tying, dropping, and
// without registering.

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/init.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/weight_average.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;

namespace {

std::vector<float> host(const Tensor& t) { return to_host<float>(t); }

struct TwoLayers final : nn::Layer {
  nn::Linear& first = child<nn::Linear>("first", 3, 4);
  nn::Linear& second = child<nn::Linear>("second", 4, 2);
  Tensor forward(const Tensor& x) override { return second(relu(first(x))); }
};

struct Scaled final : nn::Layer {
  explicit Scaled(Tensor value) : gain(add_parameter("gain", std::move(value))) {}
  nn::Parameter gain;
  Tensor forward(const Tensor& x) override { return x * gain; }
};

Tensor step(nn::Layer& net, optim::Optimizer& optimizer, const Tensor& x) {
  return nn::training_step(optimizer, [&](std::int64_t) { return sum(square(net(x))); });
}

const nn::NamedTensor& named(const std::vector<nn::NamedTensor>& list, const std::string& name) {
  for (const nn::NamedTensor& t : list) {
    if (t.name == name) return t;
  }
  throw std::runtime_error("no " + name);
}

}  // namespace

TEST_CASE("module: what is assigned to a parameter is what is trained and saved") {
  TwoLayers net;
  const std::vector<nn::NamedTensor> before = net.parameters();  // a list made earlier changes nothing
  net.first.weight = nn::init::constant({4, 3}, 0.5, DType::f32, cpu);
  net.first.bias = Tensor();  // the layer no longer has a bias
  CHECK(net.parameter_count() == 12 + 8 + 2);
  CHECK(named(net.parameters(), "first.weight").tensor.leaf() == net.first.weight.leaf());

  optim::Sgd sgd(net.trainable(), {.rate = 0.125});
  const Tensor x = full({1, 3}, 1);
  step(net, sgd, x);
  CHECK(host(net.first.weight) != std::vector<float>(12, 0.5f));
  CHECK(host(named(net.parameters(), "first.weight").tensor) == host(net.first.weight));
  const files_test::TemporaryFolder folder;
  nn::save_weights(net, folder / "w.safetensors");
  TwoLayers other;
  other.first.bias = Tensor();
  nn::load_weights(other, folder / "w.safetensors");
  CHECK(host(other.first.weight) == host(net.first.weight));
  CHECK(host(other(x)) == host(net(x)));
}

TEST_CASE("module: a parameter that is assigned under an optimizer ends the next step, with nothing changed") {
  TwoLayers net;
  optim::Sgd sgd(net.trainable(), {.rate = 0.125});
  const Tensor x = full({1, 3}, 1), old = net.first.weight;
  net.first.weight = nn::init::constant({4, 3}, 0.5, DType::f32, cpu);
  const std::vector<float> second = host(net.second.weight), first = host(old);
  CHECK_THROWS_AS(step(net, sgd, x), AutogradError);
  CHECK_THROWS_AS(sgd.step(), AutogradError);
  CHECK(host(net.second.weight) == second);
  CHECK(host(old) == first);
  CHECK(sgd.step_count() == 0);
  net.first.weight = old;  // restored
  step(net, sgd, x);
  CHECK(host(net.second.weight) != second);
  net.second.bias = Tensor();
  CHECK_THROWS_WITH(
      step(net, sgd, x),
      "optimizer: the module's second.bias is undefined and no longer the tensor that is trained, f32 (2) "
      "on cpu; make the optimizer after parameters are assigned, or write into them (copy_into)");
}

TEST_CASE("module: an optimizer may outlive its module") {
  auto net = std::make_unique<TwoLayers>();
  optim::Sgd sgd(net->trainable(), {.rate = 0.125});
  net.reset();
  sgd.step();
  CHECK(sgd.step_count() == 1);
}

TEST_CASE("module: members that hold one tensor are one parameter") {
  struct Tied final : nn::Layer {
    nn::Embedding& words = child<nn::Embedding>("words", 10, 4);
    nn::Linear& head = child<nn::Linear>("head", 4, 10, nn::TensorOptions{}, nn::LinearOptions{.has_bias = false});
    Tensor forward(const Tensor& ids) override { return head(words(ids)); }
  } net;
  CHECK(net.parameter_count() == 80);
  SECTION("of a leaf") { net.head.weight = net.words.weight; }
  SECTION("of a tensor that is none yet") {
    net.words.weight = nn::init::constant({10, 4}, 1, DType::f32, cpu);
    net.head.weight = net.words.weight;
  }
  CHECK(net.parameter_count() == 40);
  CHECK(net.parameters().size() == 1);
  CHECK(net.parameters()[0].name == "words.weight");
  CHECK(net.head.weight.leaf() == net.words.weight.leaf());

  optim::Sgd sgd(net.trainable(), {.rate = 0.125});
  const Tensor ids = from_host(std::vector<std::int64_t>{1, 2}, {2});
  step(net, sgd, ids);
  CHECK(host(net.head.weight) == host(net.words.weight));
  net.head.weight = clone(net.words.weight);  // untied under the optimizer
  CHECK_THROWS_AS(step(net, sgd, ids), AutogradError);
}

TEST_CASE("module: the handle that add_parameter gives is the parameter") {
  Scaled net(full({3}, 2));
  CHECK(net.gain.requires_grad());
  optim::Sgd sgd(net.trainable(), {.rate = 0.125});
  step(net, sgd, full({1, 3}, 1));
  CHECK(host(net.gain) == std::vector<float>(3, 1.5f));

  struct Dropping final : nn::Module {
    Tensor gain = full({3}, 2);
    Dropping() { static_cast<void>(add_parameter("gain", gain)); }
  } dropping;
  CHECK_THROWS_WITH(
      dropping.parameters(),
      "module: the handle of parameter 'gain' no longer exists; keep what add_parameter returns as a member of type "
      "nn::Parameter");
  struct Slicing final : nn::Module {
    Tensor gain = add_parameter("gain", full({3}, 2));
  } slicing;
  CHECK_THROWS_AS(slicing.trainable(), AutogradError);

  struct List final : nn::Module {
    List() {
      for (int i = 0; i < 20; ++i) gains.push_back(add_parameter("g" + std::to_string(i), full({1}, i)));
    }
    std::vector<nn::Parameter> gains;  // they move when the vector grows
  } list;
  const std::vector<nn::NamedTensor> parameters = list.parameters();
  REQUIRE(parameters.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) CHECK(parameters[i].tensor.leaf() == list.gains[i].leaf());
  CHECK(item(parameters[17].tensor) == 17);
  struct Twice final : nn::Module {
    nn::Parameter a = add_parameter("a", full({1}, 0)), b = add_parameter("a", full({1}, 0));
  };
  CHECK_THROWS_AS(Twice(), ValueError);
}

TEST_CASE("module: a buffer that is assigned is the one that is saved") {
  nn::BatchNorm2d norm(2);
  norm.running_mean = full({2}, 3);
  CHECK(host(named(norm.buffers(), "running_mean").tensor) == std::vector<float>{3, 3});
}

TEST_CASE("module: each form of batch norm has the layer's momentum") {
  nn::BatchNorm2d norm(1, {}, 0.5);
  const Tensor x = from_host(std::vector<float>{3, 5}, {2, 1}), none = zeros({2, 1});
  for (const float expected : {2.0f, 3.0f, 3.5f}) {
    expected == 2 ? norm.with_add_relu(x, none) : expected == 3 ? norm.with_relu(x) : norm(x);
    CHECK(host(norm.running_mean.detach()) == std::vector<float>{expected});
  }
}

TEST_CASE("module: plain members and modules behind pointers are children when they are registered") {
  struct Net final : nn::Layer {
    nn::Linear in{2, 3};
    std::vector<std::unique_ptr<TwoLayers>> blocks;
    Net() {
      child("in", in);
      blocks.push_back(std::make_unique<TwoLayers>());
      child("blocks.0", *blocks[0]);
    }
    Tensor forward(const Tensor& x) override { return (*blocks[0])(in(x)); }
  };
  {
    const PathScope scope("net");
    Net net;
    CHECK(net.parameter_count() == 9 + 16 + 10);
    CHECK(net.parameters()[0].name == "in.weight");
    CHECK(net.parameters().back().name == "blocks.0.second.bias");
    CHECK(path_name(net.in.path()) == "net.in");
    CHECK(path_name(net.blocks[0]->second.path()) == "net.blocks.0.second");
    net.eval();
    CHECK(!net.blocks[0]->second.is_training());
    optim::Sgd sgd(net.trainable(), {.rate = 0.125});
    const std::vector<float> before = host(net.in.weight);
    step(net, sgd, full({1, 2}, 1));
    CHECK(host(net.in.weight) != before);
    net.blocks.clear();  // destroyed before its parent
    CHECK(net.parameter_count() == 9);
  }
  struct Again final : nn::Module {
    nn::Linear in{2, 3};
    Again() {
      child("in", in);
      child("in2", in);
    }
  };
  CHECK_THROWS_AS(Again(), ValueError);
  struct SameName final : nn::Module {
    nn::Linear a{2, 3}, b{2, 3};
    SameName() {
      child("in", a);
      child("in", b);
    }
  };
  CHECK_THROWS_AS(SameName(), ValueError);
}

TEST_CASE("module: callers of a layer get the one that took its place") {
  struct Doubled final : nn::Layer {
    explicit Doubled(nn::Linear& layer)
        : base(layer), factor(add_parameter("factor", nn::init::constant({1}, 2, DType::f32, cpu))) {}
    Tensor forward(const Tensor& x) override { return is_off ? forward_of(base, x) : forward_of(base, x) * factor; }
    std::string_view difference() const override { return is_off ? "" : "is doubled"; }
    nn::Linear& base;
    nn::Parameter factor;
    bool is_off = false;
  };
  TwoLayers net;
  net.eval();
  const Tensor x = full({1, 3}, 1);
  const std::vector<float> before = host(net.second(relu(net.first(x))));
  Doubled& doubled = nn::replace<Doubled>(net.second);
  CHECK(net.second.replacement() == &doubled);
  CHECK_FALSE(doubled.is_training());
  CHECK(doubled.path() == net.second.path());
  const std::vector<float> after = host(net(x));
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(after[i] == 2 * before[i]);
  std::vector<std::string> names;
  for (const nn::NamedTensor& p : net.parameters()) names.push_back(p.name);
  CHECK(names ==
        std::vector<std::string>{"first.weight", "first.bias", "second.weight", "second.bias", "second.factor"});
  CHECK_THROWS_WITH(nn::replace<Doubled>(net.second), "second is doubled; only a plain layer can be replaced");
  doubled.is_off = true;
  CHECK(host(net(x)) == before);
  nn::replace<Doubled>(net.second);  // again, while the first replacement has no effect
  CHECK(host(net(x)) == after);
  struct Owner final : nn::Module {
    explicit Owner(TwoLayers& layers) { child("of", layers); }
  };
  const Owner owner(net);
  CHECK(path_name(net.second.replacement()->path()) == "of.second");
}

TEST_CASE("module: one without parameters has nothing to train, and says how that is mended") {
  struct Net final : nn::Module {
    nn::Linear in{2, 3};  // not registered
  } net;
  CHECK(net.parameters().empty());
  CHECK_THROWS_AS(net.trainable(), ValueError);
}

TEST_CASE("layer scope: layers without options are made with its device and dtypes") {
  const auto of = [](nn::Module&& net) {
    const Tensor first = net.parameters().front().tensor;
    return std::pair(first.device(), first.dtype());
  };
  const std::pair plain(cpu, DType::f32), narrow(dry(cpu), DType::bf16);
  const auto made = [&] { return of(nn::Linear(3, 5)); };
  CHECK(made() == plain);
  {
    const nn::LayerScope scope({.device = dry(cpu), .dtype = DType::bf16, .norms = DType::f32, .compute = DType::f16});
    CHECK(made() == narrow);
    CHECK(of(nn::Embedding(3, 5)) == narrow);
    CHECK(of(nn::Conv1d(3, 5, 1)) == narrow);
    CHECK(of(nn::LayerNorm(3)) == std::pair(dry(cpu), DType::f32));
    CHECK(nn::Linear(3, 5).compute() == DType::f16);
    CHECK(of(nn::Linear(3, 5, {.device = cpu})) == std::pair(cpu, DType::bf16));
    {
      const nn::LayerScope inner({.dtype = DType::f16});
      CHECK(made() == std::pair(dry(cpu), DType::f16));
    }
    CHECK(made() == narrow);
    auto elsewhere = narrow;
    std::thread([&] { elsewhere = made(); }).join();
    CHECK(elsewhere == plain);
  }
  CHECK(made() == plain);
}

TEST_CASE("module: an average of weights is in their dtype, and in f32 at least", "[module]") {
  const std::vector<nn::Named> list{{"a", full({1}, 1, DType::f64).require_grad()},
                                    {"b", full({1}, 1, DType::bf16).require_grad()}};
  nn::WeightAverage average(list, 0.75);
  fill(list[0].tensor, 1 + 0x1p-40);
  average.update();
  REQUIRE(average.buffers().size() == 2);
  CHECK(average.buffers()[0].tensor.dtype() == DType::f64);
  CHECK(item(average.buffers()[0].tensor) == 1 + 0x1p-42);
  CHECK(average.buffers()[1].tensor.dtype() == DType::f32);
}
